"""The schema files by themselves: valid, complete and with examples that hold."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from caphv import data
from caphv.api.object import Obj

pytestmark = pytest.mark.unit

FILES: dict[str, Obj] = {
    path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(data.folder("schemas").glob("*.json"))
}
KINDS = [name for name, schema in FILES.items() if {"properties", "x-caphv-crd"} <= schema.keys()]
REGISTRY: Registry[Any] = Registry().with_resources(
    (schema["$id"], Resource(contents=schema, specification=DRAFT202012)) for schema in FILES.values()
)


def nodes(schema: Obj, path: str) -> Iterator[tuple[str, Obj]]:
    """Every schema in a file, `$defs` included, with its JSON pointer."""
    yield path, schema
    for group in ("properties", "$defs"):
        for name, child in schema.get(group, {}).items():
            yield from nodes(child, f"{path}/{group}/{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from nodes(schema[key], f"{path}/{key}")


def resolved(file: str, node: Obj) -> Obj:
    """The schema with what it refers to; what stands next to the reference wins."""
    if "$ref" not in node:
        return node
    contents = REGISTRY.resolver(FILES[file]["$id"]).lookup(node["$ref"]).contents
    siblings = {key: value for key, value in node.items() if key != "$ref"}
    # A whole file brings its own base, for which the reference would mean itself.
    return contents | (siblings if "$id" in contents else node)


ALL_NODES = [(file, path, node) for file in FILES for path, node in nodes(FILES[file], file)]
FIELDS = [
    (file, path, resolved(file, node)) for file, path, node in ALL_NODES if path.split("/")[-2:-1] == ["properties"]
]
EXAMPLES = [(file, path, resolved(file, node)) for file, path, node in ALL_NODES if "examples" in resolved(file, node)]


def test_there_is_one_file_for_each_kind() -> None:
    assert sorted(KINDS) == [
        "harvestercluster.json",
        "harvesterclusteridentity.json",
        "harvesterclustertemplate.json",
        "harvestermachine.json",
        "harvestermachinetemplate.json",
    ]


@pytest.mark.parametrize("file", FILES)
def test_schema_is_valid_2020_12(file: str) -> None:
    assert FILES[file]["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    Draft202012Validator.check_schema(FILES[file])


@pytest.mark.parametrize(("file", "path", "field"), FIELDS, ids=[path for _, path, _ in FIELDS])
def test_field_is_described(file: str, path: str, field: Obj) -> None:
    assert len(field.get("description", "")) > 10
    composed = "properties" in field or "$ref" in field.get("items", {}) or "properties" in field.get("items", {})
    if not composed:
        assert field.get("examples"), "a field that is not made of others needs examples"


@pytest.mark.parametrize(("file", "path", "schema"), EXAMPLES, ids=[path for _, path, _ in EXAMPLES])
def test_examples_hold(file: str, path: str, schema: Obj) -> None:
    based = {"$id": FILES[file]["$id"], "$defs": FILES[file].get("$defs", {})} | schema
    validator = Draft202012Validator(based, registry=REGISTRY)
    for example in schema["examples"]:
        validator.validate(example)


@pytest.mark.parametrize("file", KINDS)
def test_kind_has_a_whole_example(file: str) -> None:
    example = FILES[file]["examples"][0]
    assert example["kind"] == FILES[file]["title"]


@pytest.mark.parametrize("file", KINDS)
def test_a_wrong_object_is_refused(file: str) -> None:
    example = FILES[file]["examples"][0] | {"spec": {"template": {"spec": {"cpu": "many"}}, "cpu": "many"}}
    assert not Draft202012Validator(FILES[file], registry=REGISTRY).is_valid(example)
