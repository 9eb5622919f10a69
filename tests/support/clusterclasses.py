"""Objects of the shipped ClusterClasses, and their faults against schemas."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import jsonschema

from caphv import data
from caphv.api.object import Obj
from sandbox import manifests
from tests.support.openapi import object_schema


@functools.cache
def objects(name: str) -> list[Obj]:
    files = sorted((data.folder("clusterclass") / name).glob("*.yaml"))
    return manifests.read(files)


def strict(schema: Any) -> Any:
    """The schema with all unknown fields refused, as the core's server side apply does."""
    if isinstance(schema, list):
        return [strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    free = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and not free:
        found["additionalProperties"] = False
    return found


def problems(obj: Obj, crd: Obj) -> list[str]:
    version = obj["apiVersion"].rpartition("/")[2]
    schema = copy.deepcopy(object_schema(crd, version))
    schema["properties"]["metadata"] = {"type": "object"}
    validator = jsonschema.Draft202012Validator(strict(schema))
    return [f"{obj['kind']} {error.json_path}: {error.message}" for error in validator.iter_errors(obj)]


def templates(name: str) -> Iterator[tuple[tuple[str, str], Obj]]:
    for obj in objects(name):
        if obj["kind"] != "ClusterClass":
            yield (obj["apiVersion"].partition("/")[0], obj["kind"]), obj


def rename(class_and_templates: list[Obj], name: str, new_name: str) -> list[Obj]:
    """Copy a ClusterClass and its templates, and replace the prefix `name` in their names."""
    return [_rename(obj, name, new_name) for obj in class_and_templates]


def _rename(node: Any, name: str, new_name: str) -> Any:
    if isinstance(node, list):
        return [_rename(entry, name, new_name) for entry in node]
    if not isinstance(node, dict):
        return node

    copy = {key: _rename(value, name, new_name) for key, value in node.items()}
    # Replace only names of objects, in their metadata and in references to them. Names of variables
    # and patches stay.
    is_object_name = "kind" in copy or "namespace" in copy
    if is_object_name and str(copy.get("name", "")).startswith(name):
        copy["name"] = new_name + copy["name"].removeprefix(name)
    return copy
