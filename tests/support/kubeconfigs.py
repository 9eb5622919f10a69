"""Kubeconfigs for tests of their fields."""

from __future__ import annotations

import base64
from typing import Any

from sandbox.processes import pki

CANARY = "canary-token-4711"


CA = pki.CA.create("test")


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def valid() -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": "https://harvester.example.com:6443/",
                    "certificate-authority-data": encoded(CA.certificate),
                },
            }
        ],
        "users": [{"name": "u", "user": {"token": CANARY}}],
    }


def with_cluster(**fields: Any) -> dict[str, Any]:
    config = valid()
    config["clusters"][0]["cluster"].update(named(fields))
    return config


def named(fields: dict[str, Any]) -> dict[str, Any]:
    return {name if name == "tokenFile" else name.replace("_", "-"): value for name, value in fields.items()}
