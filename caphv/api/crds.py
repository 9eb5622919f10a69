"""Generate the CRDs from the JSON Schemas, so that one place describes every field.

`python -m caphv.api.crds` writes `deploy/crds`; with `--check` it writes nothing and fails on stale
files.

A CRD allows less than JSON Schema ("structural schemas"): no `$ref`, no `examples`, and `metadata`
without any content. The keywords `x-caphv-versions`, `x-caphv-strict`, `x-caphv-cel`, `x-caphv-new`
and `x-caphv-crd` are explained in `schemas/definitions.json`.
"""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from caphv import data
from caphv.api import generated
from caphv.api.bounds import with_bounds
from caphv.api.object import Obj, at

# The C emitter is an optional part of PyYAML.
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_SHARED = "definitions.json"
_KINDS = (
    "harvestercluster",
    "harvesterclusteridentity",
    "harvesterclustertemplate",
    "harvestermachine",
    "harvestermachinetemplate",
)
_CLONED = "harvestermachine"
_STRICT = "x-caphv-strict"
_RULES = "x-kubernetes-validations"
_CEL = "x-caphv-cel"
_NEW = "x-caphv-new"
_MACRO = re.compile(r"\$(\w+)\(([^()]*)\)")
# Keywords that only readers of the schema files need.
_DROPPED = frozenset({"$schema", "$id", "$defs", "$comment", "title", "examples", "deprecated"})


def custom_resource_definitions() -> list[Obj]:
    """Return the `apiextensions.k8s.io/v1` CustomResourceDefinitions of all kinds, sorted by name.

    Raises:
        FileNotFoundError: the schemas are not installed.
        ValueError: a `$ref` in them leads nowhere.
    """
    files = _load(data.folder("schemas"))
    shared = files[_SHARED]["x-caphv-crd"]
    definitions = [_definition(files, shared, f"{kind}.json") for kind in _KINDS]
    # Copy through JSON, so that no parts are shared. Callers may then change one version, and YAML
    # gets no aliases.
    return list(json.loads(json.dumps(definitions)))


def kinds_of_files() -> list[Obj]:
    """Return the schemas of kinds that exist only in files, each without references.

    Raises what `custom_resource_definitions` raises.
    """
    form = _Form(_load(data.folder("schemas")), version="", strict=False)
    schemas = [
        _structural(form, name, schema)
        for name, schema in form.files.items()
        if "x-caphv-file" in schema
    ]
    return list(json.loads(json.dumps(schemas)))


def missing_fields(crd: Obj) -> list[str]:
    """Return the fields that this release has and a CRD of a cluster lacks, as sorted paths.

    The API server drops such fields without a word. If a whole object is missing, only the path of
    the object is listed, and not the paths of its fields.

    :param crd: the CustomResourceDefinition of any kind; a kind of another project lacks nothing
    """
    name = crd["metadata"]["name"]
    served = {version["name"]: version for version in crd["spec"].get("versions") or ()}

    missing: set[str] = set()
    expected = [item for item in custom_resource_definitions() if item["metadata"]["name"] == name]
    for version in (version for item in expected for version in item["spec"]["versions"]):
        schema = at(served.get(version["name"]), "schema", "openAPIV3Schema")
        missing |= set(_missing_paths(version["schema"]["openAPIV3Schema"], schema, ""))
    return sorted(missing)


def _missing_paths(expected: Obj, schema: object, path: str) -> Iterator[str]:
    """Yield the paths of properties that a schema lacks, the outermost ones only."""
    properties = at(schema, "properties") or {}
    for name, child in (expected.get("properties") or {}).items():
        if name in properties:
            yield from _missing_paths(child, properties[name], f"{path}{name}.")
        else:
            yield f"{path}{name}"
    if "items" in expected:
        yield from _missing_paths(expected["items"], at(schema, "items"), f"{path[:-1]}[].")


def render() -> dict[str, str]:
    """Return the content of `deploy/crds` as YAML texts by file name.

    The same schemas always give the same texts.
    """
    files = {}
    for crd in custom_resource_definitions():
        name = f"{crd['spec']['group']}_{crd['spec']['names']['plural']}.yaml"
        files[name] = yaml.dump(crd, Dumper=_Dumper, sort_keys=True, width=120, allow_unicode=True)
    return files


def files() -> dict[Path, str | None]:
    """Return the files of `deploy/crds`, None for those of kinds that no longer exist."""
    directory = data.folder("deploy/crds")
    return {
        **dict.fromkeys(directory.glob("*.yaml")),
        **{directory / name: text for name, text in render().items()},
    }


def _load(directory: Path) -> dict[str, Obj]:
    return {
        path.name: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(directory.glob("*.json"))
    }


def _definition(files: dict[str, Obj], shared: Obj, file: str) -> Obj:
    """Return the CustomResourceDefinition of a schema file."""
    details = files[file]["x-caphv-crd"]
    names = details["names"]
    kind: str = names["kind"]

    versions = []
    for name in shared["served"]:
        version = {
            "name": name,
            "served": True,
            "storage": name == shared["stored"],
            "additionalPrinterColumns": details["columns"],
            "schema": {"openAPIV3Schema": _object_schema(files, file, name)},
        }
        if details.get("status"):
            version["subresources"] = {"status": {}}
        versions.append(version)

    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names['plural']}.{shared['group']}",
            "labels": shared["labels"] | details.get("labels", {}),
        },
        "spec": {
            "group": shared["group"],
            "scope": details.get("scope", shared["scope"]),
            "names": {
                **names,
                "listKind": f"{kind}List",
                "singular": kind.lower(),
                "categories": shared["categories"],
            },
            "conversion": {"strategy": "None"},
            "versions": versions,
        },
    }


@dataclass(frozen=True)
class _Form:
    """Settings of the schemas to generate: API version, and whether strict patches apply."""

    files: dict[str, Obj]
    version: str
    strict: bool


def _object_schema(files: dict[str, Obj], file: str, version: str) -> Obj:
    form = _Form(files, version, strict=file != f"{_CLONED}.json")
    schema = _structural(form, file, files[file])
    schema["properties"]["spec"] = with_bounds(schema["properties"]["spec"])
    schema["properties"]["metadata"] = {"type": "object"}
    return ratcheting(schema)


def _structural(form: _Form, file: str, node: Obj) -> Obj:
    """Return the structural form of `node`, a schema in `file`."""
    if "$ref" in node:
        target = _resolve(form.files, file, node["$ref"])
        # Siblings of a reference take precedence, because they are more specific than its target.
        siblings = {key: value for key, value in node.items() if key != "$ref"}
        return _patch(
            _structural(form, target.file, target.schema), _structural(form, file, siblings)
        )

    schema = {
        key: _value(form, file, key, value)
        for key, value in node.items()
        if key not in _DROPPED and not key.startswith("x-caphv-")
    }
    schema = _patch(schema, node.get("x-caphv-versions", {}).get(form.version, {}))
    if form.strict and _STRICT in node:
        strict = {key: _value(form, file, key, value) for key, value in node[_STRICT].items()}
        schema = _patch(schema, strict)
    return schema


def _patch(schema: Obj, patch: Obj) -> Obj:
    """Return a schema after a merge patch of its keywords. The rules of both apply."""
    result = {key: value for key, value in (schema | patch).items() if value is not None}
    if _RULES in schema and _RULES in patch:
        result[_RULES] = [*schema[_RULES], *patch[_RULES]]
    return result


def _value(form: _Form, file: str, key: str, value: Any) -> Any:
    if key == "properties":
        return {name: _structural(form, file, schema) for name, schema in value.items()}
    if key in {"items", "additionalProperties"}:
        return _structural(form, file, value)
    if key == _RULES:
        cel = form.files[_SHARED][_CEL]
        return [
            rule | {part: spelled_out(rule[part], cel) for part in ("rule", _NEW) if part in rule}
            for rule in value
        ]
    return value


def spelled_out(rule: str, shared: Obj) -> str:
    """Return a rule without macros.

    Schemas use macros because CEL cannot define functions, and rules about numbers of addresses are
    long.
    """
    text = rule
    # The text of a macro may hold other macros, so search from the beginning again.
    while match := _MACRO.search(text):
        name = match[1]
        argument = match[2]
        if name not in shared:
            msg = (
                f"schemas: ${name} of rule {text!r} is not in {_CEL} of {_SHARED}: correct the "
                "name or define it"
            )
            raise ValueError(msg)
        text = text[: match.start()] + shared[name].replace("@", argument) + text[match.end() :]
    return text


def ratcheting(node: Obj, *, comparable: bool = True) -> Obj:
    """Return a structural schema whose rules accept values that broke the same rule before.

    An API server accepts a value that does not change. But a rule about two fields belongs to their
    parent object, which changes with any other of its fields. Items of a list have no old value,
    unless the list is a map. Rules about a whole list or map do not change, because an API server
    cannot estimate the cost of iterating over the old one. It cannot do so for texts deeper in an
    old value either, so such rules name the old values to accept themselves.
    """
    result = dict(node)
    if comparable and "properties" in node and _RULES in node:
        result[_RULES] = [_forgiving(rule) for rule in node[_RULES]]

    inner = comparable and node.get("x-kubernetes-map-type") != "atomic"
    if "properties" in node:
        result["properties"] = {
            name: ratcheting(child, comparable=inner) for name, child in node["properties"].items()
        }
    if isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = ratcheting(node["additionalProperties"], comparable=inner)
    if "items" in node:
        keyed = inner and node.get("x-kubernetes-list-type") == "map"
        result["items"] = ratcheting(node["items"], comparable=keyed)
    return result


def _forgiving(rule: Obj) -> Obj:
    """Return a rule that accepts values which already broke it before the change.

    A rule may also name a condition under which a new object may break it, in `x-caphv-new`.
    """
    if "oldSelf" in rule["rule"]:
        return rule
    before = re.sub(r"\bself\b", "oldSelf.value()", rule["rule"])
    exception = f"oldSelf.hasValue() && !({before})"
    if _NEW in rule:
        exception = f"oldSelf.hasValue() ? !({before}) : {rule[_NEW]}"
    others = {key: value for key, value in rule.items() if key != _NEW}
    return others | {"rule": f"({rule['rule']}) || ({exception})", "optionalOldSelf": True}


class _Target(NamedTuple):
    """The schema that a reference names, and its file."""

    file: str
    schema: Obj


def _resolve(files: dict[str, Obj], file: str, ref: str) -> _Target:
    """Return the target of a reference in a file. Raises `ValueError` if it leads nowhere."""
    name, _, pointer = ref.partition("#")
    target_file = name or file
    node: Any = files.get(target_file)
    for part in filter(None, pointer.split("/")):
        node = node.get(part) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        msg = (
            f"schemas/{file}: $ref {ref!r} leads nowhere: correct the reference or add the "
            "definition"
        )
        raise ValueError(msg)
    return _Target(target_file, node)


def main(arguments: list[str] | None = None) -> int:
    """Write `deploy/crds`, or only compare it with `--check`. Return the exit status."""
    return generated.main(arguments, "caphv.api.crds", files())


if __name__ == "__main__":
    sys.exit(main())
