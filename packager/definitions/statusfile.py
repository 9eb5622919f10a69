"""The file `caphv-status.yaml` at the top of a repository: all defined clusters and the problems of their definitions.

The same source and repository make the same file, so it never causes a commit by itself. Sources that share a
repository share the file: each one writes the rows with its name, and leaves those of others as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from caphv.api.object import Key, Obj
from caphv.runtime.text import Limits, TextError, load_yaml
from packager.addons.merge import at
from packager.definitions import files, ownership
from packager.definitions.builder import MANIFEST_ROOT, BuildResult
from packager.git.prune import Plan
from packager.git.snapshot import Snapshot
from packager.rendering import yaml

_LIMITS = Limits(size=16 * 1024 * 1024, nodes=1_000_000, seconds=30)


def with_status(plan: Plan, built: BuildResult, snapshot: Snapshot, source: str) -> Plan:
    """Return a plan that also writes the status file if its content changes; `source` is the name of the source."""
    before = snapshot.read(files.STATUS)
    # Without rows of others nothing needs to be parsed.
    if before == _status(built, plan, snapshot, None, source):
        return plan
    status = _status(built, plan, snapshot, _parsed(before), source)
    return plan if before == status else replace(plan, write={**plan.write, files.STATUS: status})


def _status(built: BuildResult, plan: Plan, snapshot: Snapshot, before: Any, source: str) -> bytes:
    name = {} if source == ownership.DIRECTORY else {"source": source}
    clusters = [{"name": str(key), "state": state, **name} for key, state in _states(built, plan).items()]
    problems: list[Obj] = [
        {
            "file": one.file,
            "line": one.line,
            "severity": "warning" if one.advice else "error",
            "message": one.message,
            **name,
        }
        for one in built.problems
    ]
    others = _clusters_of_others(built, plan, snapshot, _rows(before, "clusters", name), name)
    sources = {row.get("source") for row in others}
    # A source without a cluster may have problems, too; rows without a source end with their last cluster.
    there = [row for row in _rows(before, "problems", name) if row.get("source") or None in sources]
    taken = {row.get("source") for row in _rows(before, "clusters", name)} - sources
    problems += [row for row in there if row.get("source") not in taken]
    content = {
        "clusters": sorted([*clusters, *others], key=lambda row: (str(row.get("name")), str(row.get("source", "")))),
        "problems": sorted(problems, key=lambda row: str(row.get("source", ""))),
    }
    return yaml.dump(content).encode()


def _states(built: BuildResult, plan: Plan) -> Mapping[Key, str]:
    held = [one.what.split("/") for one in plan.held]
    states: Mapping[Key, str] = {
        **{Key(parts[1], parts[2]): "HeldBack" for parts in held if parts[0] == files.MANIFESTS},
        **dict.fromkeys(built.objects, "Written"),
        **dict.fromkeys(built.suspended, "Suspended"),
        **dict.fromkeys((key for key in built.invalid - built.foreign if key.name), "Faulty"),
    }
    return {key: states[key] for key in sorted(states)}


def _clusters_of_others(
    built: BuildResult, plan: Plan, snapshot: Snapshot, rows: list[Obj], own: Mapping[str, str]
) -> list[Obj]:
    """Return the rows of other sources, except for clusters that this source writes or removes.

    Release 0.11 and directories name no source. A source takes over such rows of the clusters that it knows, and of
    those that do not exist any more.
    """
    states = {str(key) for key in _states(built, plan)} if own else set()
    present = {*ownership.clusters(snapshot)}
    written = built.wanted[MANIFEST_ROOT].keys()
    removed = {removal.folder.removeprefix(f"{files.MANIFESTS}/") for removal in plan.removed if removal.definition}
    return [
        row
        for row in rows
        if (name := str(row.get("name"))) not in written | removed
        and (row.get("source") or (name in present and name not in states))
    ]


def _rows(status: Any, field: str, own: Mapping[str, str]) -> list[Obj]:
    """Return the rows of other sources."""
    found = at(status, field)
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    return [_plain(row) for row in rows if row.get("source") != own.get("source")]


def _plain(row: Obj) -> Obj:
    # A user may have edited the file: what is written here can be written again.
    return {str(key): value for key, value in row.items() if isinstance(value, str | int)}


def _parsed(content: bytes | None) -> Any:
    try:
        return load_yaml(content or b"", _LIMITS)
    except TextError:
        return None
