"""Compiled schemas: every error at once, in Kubernetes' words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv import data
from caphv.api.object import Obj
from caphv.validation import schema as compiled

pytestmark = pytest.mark.unit


@pytest.fixture
def schemas(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write schemas that take the place of the real ones."""
    folder = tmp_path / "schemas"
    folder.mkdir()
    monkeypatch.setattr(data, "folder", lambda _name: folder)

    def clear() -> None:
        for cached in (compiled.load, compiled._sources, compiled._validators):
            cached.cache_clear()

    def write(**files: Obj) -> None:
        for name, schema in files.items():
            (folder / f"{name}.json").write_text(json.dumps(schema))
        clear()

    clear()
    yield write
    clear()


def reported(schema: str, obj: Any, **options: Any) -> list[str]:
    return [str(finding) for finding in compiled.load(f"{schema}.json").findings(obj, **options)]


def test_all_errors_are_reported_in_order_of_fields() -> None:
    obj = {"spec": {"cpu": "4", "more": 1, "volumes": [{"volumeType": "pvc", "volumeSize": True}, 5]}}
    assert reported("harvestermachine", obj) == [
        'spec.cpu: Invalid type: "4": must be of type integer, for example 4',
        'spec.memory: Required value: must be set, for example "8Gi"',
        "spec.more: Unknown field: there is no such field: correct its name or remove it",
        "spec.networks: Required value: must be set",
        'spec.sshKeyPair: Required value: must be set, for example "default/admin"',
        'spec.sshUser: Required value: must be set, for example "opensuse"',
        'spec.volumes[0].volumeSize: Invalid value: true: must be of type integer or string, for example "40Gi"',
        'spec.volumes[0].volumeType: Unsupported value: "pvc": must be "storageClass" or "image"',
        "spec.volumes[1]: Invalid type: 5: must be of type object",
    ]


def test_versions_differ_where_the_schema_says_so() -> None:
    obj = json.loads((data.folder("schemas") / "harvestermachine.json").read_text())["examples"][0]
    obj["spec"]["volumes"][0]["volumeType"] = "pvc"
    assert reported("harvestermachine", obj, version="v1alpha1") == []
    assert len(reported("harvestermachine", obj, version="v1beta1")) == 1


def test_unknown_fields_can_be_let_through_and_metadata_is_open() -> None:
    obj = json.loads((data.folder("schemas") / "harvestercluster.json").read_text())["examples"][0]
    obj["metadata"]["anything"] = 1
    assert reported("harvestercluster", obj) == []
    obj["spec"]["vmNetworkConfig"]["mtu"] = 9000
    assert reported("harvestercluster", obj) == [
        "spec.vmNetworkConfig.mtu: Unknown field: there is no such field: correct its name or remove it"
    ]
    assert reported("harvestercluster", obj, unknown_fields=False) == []


def test_paths_begin_where_the_object_stands() -> None:
    (found,) = reported("harvestercluster", {}, root=("items", 3))
    assert found.startswith("items[3].spec: Required value")


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"minimum": 3}, 2, "Invalid value: 2: must be at least 3"),
        ({"exclusiveMaximum": 3}, 3, "Invalid value: 3: must be less than 3"),
        ({"minLength": 1}, "", 'Invalid value: "": must not be empty'),
        ({"maxLength": 1}, "ab", 'Too long: "ab": must have at most 1 characters'),
        ({"minItems": 1}, [], "Invalid value: []: must not be empty"),
        ({"maxItems": 1}, [1, 2], "Too many: must have at most 1 items"),
        ({"uniqueItems": True}, [1, 1], "Duplicate value: [1, 1]: must not have the same item twice"),
        ({"pattern": "^a{2}$"}, "b", 'Invalid value: "b": does not have the form that the schema describes'),
        ({"type": "string", "enum": ["a", "b"]}, 5, 'Unsupported value: 5: must be "a" or "b"'),
        ({"type": "string", "enum": ["a", "b"]}, "c", 'Unsupported value: "c": must be "a" or "b"'),
        ({"const": "a"}, "b", 'Unsupported value: "b": must be "a"'),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, 1, "Invalid value: 1: must be of type null or string"),
        ({"not": {"const": 1}}, 1, "Invalid value: 1: does not have the form that the schema describes"),
        ({"writeOnly": True, "type": "integer"}, "secret", "Invalid type: must be of type integer"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "Required value: needs b as well"),
    ],
)
def test_every_keyword_is_put_into_words(schemas: Any, schema: Obj, value: Any, text: str) -> None:
    schemas(a={"properties": {"field": schema}})
    assert reported("a", {"field": value}) == [f"field: {text}"]


def test_fields_of_schemas_applied_in_place_are_known(schemas: Any) -> None:
    condition = {"if": {"properties": {"a": {"const": 1}}}, "then": {"properties": {"b": {"type": "integer"}}}}
    schemas(a={"type": "object", "properties": {"a": {}}, "allOf": [condition]})
    assert reported("a", {"a": 1, "b": 2}) == []
    assert [text.partition(":")[0] for text in reported("a", {"a": 1, "b": 2, "c": 3})] == ["c"]


def test_references_are_resolved_among_the_files(schemas: Any) -> None:
    schemas(
        a={"$id": "https://example.com/a.json", "properties": {"b": {"$ref": "b.json#/$defs/number"}}},
        b={"$id": "https://example.com/b.json", "$defs": {"number": {"type": "integer"}}},
    )
    assert reported("a", {"b": "x"}) == ['b: Invalid type: "x": must be of type integer']


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(KeyError):
        compiled.load("nothing.json")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)))
def test_both_validators_agree_and_nothing_is_too_strange(obj: Any) -> None:
    for file in ("harvestermachine.json", "harvestercluster.json"):
        fast, slow = compiled._validators(file, None, True)
        assert fast.is_valid(obj) == slow.is_valid(obj) == (compiled.load(file).findings(obj) == [])


PATTERNS = {
    (file.name, pattern)
    for file in sorted(data.folder("schemas").glob("*.json"))
    for pattern in re.findall(r'"pattern": ("(?:[^"\\\\]|\\\\.)*")', file.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize(("file", "pattern"), sorted(PATTERNS))
def test_no_pattern_takes_a_line_feed_at_the_end_in_either_validator(file: str, pattern: str) -> None:
    schema = {"type": "string", "pattern": json.loads(pattern)}
    rust, python = jsonschema_rs.Draft202012Validator(schema), compiled.ExplainingValidator(schema)
    for text in (
        "",
        "a",
        "demo",
        "default/demo",
        "40Gi",
        "v1.34.2+rke2r1",
        "172.17.1.1",
        "172.17.1.0/24",
        "example.com",
        "1h",
    ):
        for value in (text, f"{text}\n", f"{text}\n\n"):
            assert rust.is_valid(value) == python.is_valid(value), value
        if not text or schema["pattern"].endswith("$"):
            assert not python.is_valid(f"{text}\n")


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [("^a$", "a\n", False), ("^a[$]$", "a$", True), (r"^a\\$$", "a$", True), ("^[]$]$", "$", True), ("a", "xax", True)],
)  # fmt: skip
def test_the_end_of_a_pattern_is_the_end_of_the_text(pattern: str, text: str, matches: bool) -> None:
    assert compiled.ExplainingValidator({"pattern": pattern.replace("\\\\", "\\")}).is_valid(text) is matches


def test_an_object_that_only_one_validator_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agreeable:
        def iter_errors(self, _obj: object) -> Iterator[object]:
            yield from ()

    real = compiled._validators("harvestermachine.json", None, True)
    monkeypatch.setattr(compiled, "_validators", lambda *_: real._replace(explaining=Agreeable()))
    assert [found.rule for found in compiled.load("harvestermachine.json").findings({"spec": 1})] == [
        "schema-disagreement"
    ]
