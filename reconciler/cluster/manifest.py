"""Puts the kubeconfig of Harvester's cloud provider and CSI driver into the manifests of a cluster. Pure functions.

No error of this module quotes a manifest: they hold credentials.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

import yaml

from caphv.api.object import Obj
from caphv.runtime.text import TextError, load_yaml

SECRET_NAMESPACE = "kube-system"  # noqa: S105 - a namespace
"""Namespace of the Secret with the kubeconfig in the workload cluster (contract)."""

# Each costs a start of the parser.
_MOST_DOCUMENTS = 1000
_DOCUMENT = re.compile(r"^---(?=\s|$)", re.MULTILINE)


class ManifestError(ValueError):
    """A manifest cannot be extended; the message quotes nothing of it."""


def with_credentials(manifest: str, name: str, key: str, content: str) -> str:
    """Put `content` under a key of the v1 Secret `kube-system/<name>` in a manifest; it is appended where absent.

    Every other document stays as it is, byte for byte, and all of them when the Secret holds the content already.
    Raises ManifestError when the manifest is not YAML.
    """
    documents = [*_documents(manifest)]
    if len(documents) > _MOST_DOCUMENTS:
        raise ManifestError(f"holds more than {_MOST_DOCUMENTS:,} documents; split it")
    for start, end in documents:
        secret = _load(manifest[start:end])
        if not _is_secret(secret, name):
            continue
        if _value(secret, key) == content:
            return manifest
        secret["data"] = {**(secret.get("data") or {}), key: base64.b64encode(content.encode()).decode()}
        if secret.get("stringData"):
            secret["stringData"].pop(key, None)
        return f"{manifest[:start]}\n{yaml.safe_dump(secret, sort_keys=False)}{manifest[end:]}"
    new = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": SECRET_NAMESPACE},
        "type": "Opaque",
        "data": {key: base64.b64encode(content.encode()).decode()},
    }
    before = manifest if not manifest or manifest.endswith("\n") else f"{manifest}\n"
    return f"{before}---\n{yaml.safe_dump(new, sort_keys=False)}"


def _documents(manifest: str) -> Iterator[tuple[int, int]]:
    """Start and end of each document, without its marker."""
    marks = [*_DOCUMENT.finditer(manifest)]
    starts = [0, *(mark.end() for mark in marks)]
    ends = [*(mark.start() for mark in marks), len(manifest)]
    return zip(starts, ends, strict=True)


def _load(document: str) -> Any:
    try:
        return load_yaml(document)
    except TextError as error:
        raise ManifestError(f"holds a document that {error}; correct it") from None


def _is_secret(document: Any, name: str) -> bool:
    if not isinstance(document, dict) or (document.get("apiVersion"), document.get("kind")) != ("v1", "Secret"):
        return False
    metadata = document.get("metadata") or {}
    return (metadata.get("namespace"), metadata.get("name")) == (SECRET_NAMESPACE, name)


def _value(secret: Obj, key: str) -> str | None:
    plain = (secret.get("stringData") or {}).get(key)
    if plain is not None:
        return str(plain)
    try:
        return base64.b64decode((secret.get("data") or {}).get(key) or "").decode()
    except (binascii.Error, ValueError, TypeError):
        return None
