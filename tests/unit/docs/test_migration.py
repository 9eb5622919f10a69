"""Values of the Go provider's chart: the page about the Go provider has a row for each that ours refuses."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft7Validator

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
