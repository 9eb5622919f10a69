"""What crdify would report between the Go provider's CRDs and ours, and between our versions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api import crds, names
from caphv.api.object import Obj
from tests.support.crdchanges import MAXIMA, MINIMA, Break, breaks

pytestmark = pytest.mark.unit

CRDS = {crd["spec"]["names"]["plural"]: crd for crd in crds.custom_resource_definitions()}
# A kind that the Go provider does not have.
OF_GO = [plural for plural in CRDS if plural != "harvesterclusteridentities"]
# Values that the Go provider's webhook or Harvester refused, or that no object needs, are refused by the CRD. Objects
# that are stored with such a value stay: API servers of 1.31 and later do not validate what an update leaves as it was.
TIGHTER = {*MAXIMA, *MINIMA, "pattern", "enum", "x-kubernetes-validations"}
# Values of ours that a client of v0.10 does not know, by the end of the field's path.
NEW_VALUES = {".loadBalancerConfig.ipamType": {"none"}}
# Fields that take a few values only, by the end of their paths: others would not be a mask, or an operator.
ENUMS = (".subnetMask", ".operator")
# The only field that differs between our versions: one had no values, the other has those that the webhook took.
IN_NEW_VERSION = ".volumes[].volumeType"


@pytest.mark.parametrize("plural", OF_GO)
def test_no_object_and_no_client_of_the_go_provider_is_broken(shared_crds: Path, plural: str) -> None:
    found = [change for change in changes(shared_crds, plural) if change.rule not in TIGHTER]
    for change in found:
        assert change.rule == "enumAddition", change
        assert isinstance(change.old, list)
        assert isinstance(change.new, list)
        added = [values for end, values in NEW_VALUES.items() if change.path.endswith(end)]
        assert [set(change.new) - set(change.old)] == added, change
    # The field is in both versions of the cluster and its template.
    assert len(found) == (2 if "cluster" in plural else 0)


@pytest.mark.parametrize("plural", OF_GO)
def test_only_what_users_write_is_tighter_and_no_value_that_had_a_limit(shared_crds: Path, plural: str) -> None:
    for change in changes(shared_crds, plural):
        if change.rule not in TIGHTER:
            continue
        is_of_whole_object = change.path == "" and change.rule == "x-kubernetes-validations"
        assert change.path.startswith(".spec") or is_of_whole_object, change
        # No limit of the Go provider became lower; all are new.
        assert change.old in (None, []), change
        assert change.rule != "enum" or change.path.endswith(ENUMS), change


def changes(shared_crds: Path, plural: str) -> list[Break]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    theirs = yaml.load((shared_crds / "go-provider" / f"{names.GROUP}_{plural}.yaml").read_text(), Loader=loader)
    return list(breaks(theirs, CRDS[plural]))


@pytest.mark.parametrize("plural", CRDS)
def test_versions_differ_in_one_field_only(plural: str) -> None:
    """Versions are not converted, so each must accept what is stored in the other."""
    older, newer = (one_version(CRDS[plural], version) for version in sorted(names.VERSIONS))
    differing = {change.path for change in (*breaks(older, newer), *breaks(newer, older))}
    assert all(path.endswith(IN_NEW_VERSION) for path in differing)
    assert [change.rule for change in breaks(older, newer)] == ["enum"] * len(differing)
    assert len(differing) == (1 if "machine" in plural else 0)


def one_version(crd: Obj, version: str) -> Obj:
    """The CRD with only this version, under a name that both have."""
    alone = copy.deepcopy(crd)
    (found,) = [candidate for candidate in alone["spec"]["versions"] if candidate["name"] == version]
    alone["spec"]["versions"] = [found | {"name": "compared"}]
    return alone


# The rules themselves

BASE: Obj = {
    "type": "object",
    "required": ["kept"],
    "properties": {
        "kept": {"type": "string", "maxLength": 10, "enum": ["a", "b"]},
        "list": {"type": "array", "minItems": 1, "items": {"type": "string", "default": "x"}},
        "map": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 1, "maximum": 5}},
    },
}


def crd(schema: Obj) -> Obj:
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {"spec": {"scope": "Namespaced", "versions": [version]}}


def edit(path: str, **keywords: Any) -> Callable[[Obj], None]:
    """An edit of a field of the schema; None removes a keyword."""

    def change(whole: Obj) -> None:
        node = whole["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for name in path.split("."):
            node = node.get(name) or node["properties"][name]
        for keyword, value in keywords.items():
            node[keyword.replace("x_kubernetes_validations", "x-kubernetes-validations")] = value
            if value is None:
                del node[keyword]

    return change


def remove_version(whole: Obj) -> None:
    whole["spec"]["versions"][0]["name"] = "v2"


def stop_serving(whole: Obj) -> None:
    whole["spec"]["versions"][0]["served"] = False


def change_scope(whole: Obj) -> None:
    whole["spec"]["scope"] = "Cluster"


def remove_field(whole: Obj) -> None:
    del whole["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["list"]


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        (change_scope, {("scope", "")}),
        (remove_version, {("storedVersionRemoval", "")}),
        (stop_serving, {("servedVersionRemoval", "")}),
        (remove_field, {("existingFieldRemoval", ".list"), ("existingFieldRemoval", ".list[]")}),
        (edit("kept", maxLength=9), {("maxLength", ".kept")}),
        (edit("kept", maxLength=11), set()),
        (edit("kept", maxLength=None), set()),
        (edit("kept", minLength=0), {("minLength", ".kept")}),
        (edit("kept", enum=["a"]), {("enum", ".kept")}),
        (edit("kept", enum=["a", "b", "c"]), {("enumAddition", ".kept")}),
        (edit("kept", enum=["b", "a"]), set()),
        (edit("kept", enum=None), {("enumAddition", ".kept")}),
        (edit("kept", type="integer"), {("type", ".kept")}),
        (edit("kept", pattern="^a"), {("pattern", ".kept")}),
        (edit("kept", format="date"), {("format", ".kept")}),
        (edit("kept", nullable=True), {("nullable", ".kept")}),
        (edit("kept", description="another"), set()),
        (edit("list", minItems=2, maxItems=3), {("minItems", ".list"), ("maxItems", ".list")}),
        (edit("list.items", default="y"), {("default", ".list[]")}),
        (edit("list.items", default=None), {("default", ".list[]")}),
        (edit("map.additionalProperties", minimum=0, maximum=6), set()),
        (edit("map.additionalProperties", minimum=2, maximum=4), {("minimum", ".map{}"), ("maximum", ".map{}")}),
        (edit("map", maxProperties=3, minProperties=1), {("maxProperties", ".map"), ("minProperties", ".map")}),
        (edit("map", required=["a"]), {("required", ".map")}),
        (edit("map", x_kubernetes_validations=[{"rule": "false"}]), {("x-kubernetes-validations", ".map")}),
    ],
)
def test_each_rule_finds_its_change_and_no_other(change: Callable[[Obj], None], rules: set[tuple[str, str]]) -> None:
    new = copy.deepcopy(crd(BASE))
    assert list(breaks(crd(BASE), new)) == []
    change(new)
    assert {(found.rule, found.path) for found in breaks(crd(BASE), new)} == rules
