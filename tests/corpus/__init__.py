"""Invalid objects with their faults, and valid objects: the same for every entry point.

A case is written as changes of a base object (`base.yaml`): `set` maps paths below the spec of the cluster or machine
to values, null removes a field. `kinds: machines` stands for HarvesterMachine and HarvesterMachineTemplate, `clusters`
for the other two, `templates` for both templates. `expect` maps a path below that spec, or one that begins with
`metadata` or `spec.template`, to the rule that is broken there. `old` is `set` for the object before a change,
`status` its status, `annotations` those of both, `templateMetadata` the metadata in a template. `spec` stands for the
whole spec instead, null for none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from caphv.api.names import GROUP, VERSIONS
from caphv.api.object import Obj

FOLDER = Path(__file__).parent
_KINDS = {
    "clusters": ("HarvesterCluster", "HarvesterClusterTemplate"),
    "machines": ("HarvesterMachine", "HarvesterMachineTemplate"),
    "templates": ("HarvesterClusterTemplate", "HarvesterMachineTemplate"),
}


@dataclass(frozen=True)
class Case:
    """One object, or one change from `old` to `object`; `errors` are pairs of path and rule, none for a valid one."""

    name: str
    kind: str
    version: str
    object: Obj
    old: Obj | None
    errors: frozenset[tuple[str, str]]
    dry_run: bool = False

    def __str__(self) -> str:
        return f"{self.name} ({self.kind} {self.version})"


def invalid() -> list[Case]:
    """Every invalid object, in each of its kinds and versions."""
    return [case for entry in _entries("invalid") for case in _cases(entry)]


def valid() -> list[Case]:
    """Every valid object, in each of its kinds and versions."""
    return [case for entry in _entries("valid") for case in _cases(entry)]


def exceptions() -> list[Obj]:
    """What the CRDs cannot refuse: `rule`, `kinds` and `why`."""
    return _read(FOLDER / "exceptions.yaml")


@cache
def _entries(folder: str) -> list[Obj]:
    paths = sorted((FOLDER / folder).glob("*.yaml"))
    return [{**entry, "name": f"{path.stem}: {entry['name']}"} for path in paths for entry in _read(path)]


def _cases(entry: Obj) -> Iterator[Case]:
    unknown = entry.keys() - {
        "name",
        "kinds",
        "set",
        "spec",
        "expect",
        "old",
        "status",
        "annotations",
        "metadata",
        "templateMetadata",
        "dryRun",
        "versions",
    }
    assert not unknown, f"{entry['name']}: {unknown}"
    kinds = entry["kinds"]
    for kind in _KINDS.get(kinds, (kinds,)):
        for version in entry.get("versions", VERSIONS):
            yield Case(
                name=entry["name"],
                kind=kind,
                version=version,
                object=_object(entry, kind, version, entry.get("set") or {}),
                old=_object(entry, kind, version, entry["old"] or {}) if "old" in entry else None,
                errors=frozenset((_path(kind, path), rule) for path, rule in _expected(entry)),
                dry_run=bool(entry.get("dryRun")),
            )


def _expected(entry: Obj) -> Iterator[tuple[str, str]]:
    for path, rules in (entry.get("expect") or {}).items():
        for rule in rules if isinstance(rules, list) else [rules]:
            yield path, rule


def _path(kind: str, path: str) -> str:
    if path.startswith(("metadata", "spec.")):
        return path
    spec = "spec.template.spec" if kind.endswith("Template") else "spec"
    return f"{spec}.{path}" if path else spec


def _object(entry: Obj, kind: str, version: str, changes: Obj) -> Obj:
    spec = copy.deepcopy(_bases()["cluster" if "Cluster" in kind else "machine"])
    for path, value in changes.items():
        _set(spec, path, copy.deepcopy(value))
    metadata = {"name": "demo", "namespace": "clusters", **(entry.get("metadata") or {})}
    metadata = {name: value for name, value in metadata.items() if value is not None}
    if entry.get("annotations"):
        metadata["annotations"] = entry["annotations"]
    obj: Obj = {"apiVersion": f"{GROUP}/{version}", "kind": kind, "metadata": metadata}
    template = {"metadata": entry["templateMetadata"]} if "templateMetadata" in entry else {}
    obj["spec"] = {"template": {**template, "spec": spec}} if kind.endswith("Template") else spec
    if "spec" in entry:
        obj["spec"] = entry["spec"]
        if obj["spec"] is None:
            del obj["spec"]
    if entry.get("status") and not kind.endswith("Template"):
        obj["status"] = entry["status"]
    return obj


@cache
def _bases() -> Obj:
    return _read(FOLDER / "base.yaml")


def _read(path: Path) -> Any:
    # The C parser is an optional part of PyYAML.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)


def _set(spec: Obj, path: str, value: Any) -> None:
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    place: Any = spec
    for part in parents:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[part]
    if value is None and isinstance(place, dict):
        place.pop(last, None)
    elif isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value
