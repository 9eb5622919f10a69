"""The Go provider's chart: a row for each value that ours refuses, and its class, which Helm would delete."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.support import doccommands
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

# Of its last release, with other values than the defaults.
GO: dict[str, Any] = {
    "image": {"repository": "registry.example.com/go-provider", "tag": "v0.2.7", "pullPolicy": "Always"},
    "replicas": 2,
    "resources": {"limits": {"cpu": "500m", "memory": "1024Mi"}},
    "webhooks": {"enabled": True, "certSecretName": "caphv-webhook-tls", "certManager": {"enabled": True}},
    "leaderElect": True,
    "metrics": {"bindAddress": "127.0.0.1:8080"},
    "healthProbe": {"bindAddress": ":8081"},
    "serviceAccount": {"create": True, "name": "caphv-controller-manager"},
    "clusterClass": {"enabled": True},
    "namespace": "caphv-system",
}
SCHEMA = json.loads((CHECKOUT / "deploy" / "chart" / "values.schema.json").read_text(encoding="utf-8"))
PAGE = (CHECKOUT / "docs" / "reference" / "go-provider.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("| Value of the Go provider's chart |")[2].partition("\n\n")[0]
ROWS = [line.split("|")[1:3] for line in TABLE.splitlines() if line.startswith("| `")]


def leaves(values: dict[str, Any], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Paths of all values that are no maps; resources are one value."""
    found = []
    for name, value in values.items():
        inner = isinstance(value, dict) and name != "resources"
        found += leaves(value, (*path, name)) if inner else [(*path, name)]
    return found


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return dict(value)


def value_of(path: tuple[str, ...]) -> Any:
    value: Any = GO
    for name in path:
        value = value[name]
    return value


@pytest.mark.parametrize("path", leaves(GO), ids=".".join)
def test_a_value_that_the_chart_refuses_has_a_row(path: tuple[str, ...]) -> None:
    accepted = Draft7Validator(SCHEMA).is_valid(nested(path, value_of(path)))
    (row,) = [new for old, new in ROWS if ".".join(path) in re.findall(r"`([A-Za-z.]+)[:`]", old)]
    assert accepted is ("The same" in row or "Leave them out" in row)


def test_what_replaces_a_value_is_accepted() -> None:
    replacements = {
        "leaderElection": True,
        "webhooks": {"certificate": "cert-manager"},
        "clusterClasses": {"namespaces": ["team-a"], "names": ["harvester-rke2"]},
        "metrics": {"secure": False},
    }
    assert list(Draft7Validator(SCHEMA).iter_errors(replacements)) == []
    assert list(Draft7Validator(SCHEMA).iter_errors({"webhooks": {"certificate": "self-signed"}})) == []
    named = {name for _, new in ROWS for name in re.findall(r"`([A-Za-z]+(?:\.[A-Za-z]+)?)[:`]", new)}
    assert {".".join(path) for path in leaves(replacements)} <= named


def test_the_class_in_a_release_of_helm_is_saved(tmp_path: Path) -> None:
    deployment: dict[str, Any] = {"kind": "Deployment", "spec": {"template": {"kind": "HarvesterMachineTemplate"}}}
    kept: list[dict[str, Any]] = [
        {"kind": "ClusterClass", "spec": {"infrastructure": {"ref": {"kind": "HarvesterClusterTemplate"}}}},
        {"kind": "HarvesterClusterTemplate", "spec": {}},
        {"kind": "RKE2ConfigTemplate", "spec": {}},
    ]
    documents = [deployment, *kept, {"kind": "ServiceAccount"}]
    # As Helm prints them.
    texts = [f"---\n# Source: {yaml.safe_dump({'apiVersion': 'v1', **each}, sort_keys=False)}" for each in documents]
    (tmp_path / "manifest").write_text("".join(texts).replace("# Source: ", "# Source: caphv/templates/x.yaml\n"))
    (tmp_path / "helm").write_text('#!/bin/sh\ncase "$1" in get) cat manifest ;; esac\n')
    (tmp_path / "helm").chmod(0o755)
    page = CHECKOUT / "docs" / "migration.md"
    (block,) = (each for each in doccommands.blocks(page) if "helm uninstall" in each)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-euo", "pipefail", "-c", block], cwd=tmp_path, env=environment, check=True)
    found = [each for each in yaml.safe_load_all((tmp_path / "class.yaml").read_text()) if each]
    assert found == [{"apiVersion": "v1", **each} for each in kept]
