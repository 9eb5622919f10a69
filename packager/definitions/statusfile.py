"""The file `caphv-status.yaml` of a repository, with all defined clusters and their problems.

The same source and repository give the same file, so it never causes a commit by itself. Sources
that share a repository share the file. Each source writes the rows with its name, and leaves all
other rows as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from caphv.api.object import Key, Obj, at
from caphv.runtime.text import Limits, TextError, load_yaml
from packager.definitions import files, ownership
from packager.definitions.buildresult import MANIFEST_ROOT, BuildResult
from packager.definitions.sourcefile import SourceProblem
from packager.git.changeplan import Plan
from packager.git.snapshot import Snapshot
from packager.rendering import yaml

# A file with all problems of hostile definitions would be larger than a packager reads.
_MAX_PROBLEMS = 1000
_LIMITS = Limits(size=16 * 1024 * 1024, nodes=1_000_000, seconds=30)


def add_status(plan: Plan, built: BuildResult, snapshot: Snapshot, source: str) -> Plan:
    """Add the status file of `source` to a plan if its content changes."""
    before = snapshot.read(files.STATUS)
    # This is a fast path, because a file without rows of other sources need not be parsed.
    if before == _status(built, plan, snapshot, None, source):
        return plan
    status = _status(built, plan, snapshot, _parse(before), source)
    if before == status:
        return plan
    return replace(plan, write={**plan.write, files.STATUS: status})


def _status(built: BuildResult, plan: Plan, snapshot: Snapshot, before: Any, source: str) -> bytes:
    """Return the content of the file.

    :param built: result of building the source
    :param plan: the changes of the repository
    :param snapshot: the repository
    :param before: current content of the file
    :param source: name of the source
    """
    # A directory has no name by which another source could find its rows.
    name = {} if source == ownership.DIRECTORY else {"source": source}
    clusters = [
        {"name": str(key), "state": state, **name} for key, state in _states(built, plan).items()
    ]
    problems: list[Obj] = [
        {
            "file": problem.file,
            "line": problem.line,
            "severity": "warning" if problem.advice else "error",
            "message": problem.message,
            **name,
        }
        for problem in _listed(built)
    ]

    # Keep problems of other sources, even of a source without clusters. A source whose clusters are
    # all taken over or removed has ended, and its problems are dropped. So are problems of
    # directories, whose rows name no source, when no cluster of a directory is left.
    cluster_rows = _rows(before, "clusters", name)
    others = _clusters_of_others(built, plan, snapshot, cluster_rows, name)
    sources = {row.get("source") for row in others}
    ended_sources = {row.get("source") for row in cluster_rows} - sources
    for row in _rows(before, "problems", name):
        source_of_row = row.get("source")
        is_current = source_of_row or None in sources
        if is_current and source_of_row not in ended_sources:
            problems.append(row)

    content = {
        "clusters": sorted(
            [*clusters, *others],
            key=lambda row: (str(row.get("name")), str(row.get("source", ""))),
        ),
        "problems": sorted(problems, key=lambda row: str(row.get("source", ""))),
    }
    return yaml.dump(content).encode()


def _listed(built: BuildResult) -> Sequence[SourceProblem]:
    """Return the problems to list: all, or as many as the file has room for, errors first."""
    problems = sorted(built.problems, key=lambda problem: problem.advice)
    if len(problems) <= _MAX_PROBLEMS:
        return built.problems
    count = len(problems) - _MAX_PROBLEMS
    message = f"{count} more problems are not listed: correct the listed ones first"
    return [*problems[:_MAX_PROBLEMS], replace(problems[_MAX_PROBLEMS], message=message)]


def _states(built: BuildResult, plan: Plan) -> Mapping[Key, str]:
    """Return the state of each cluster. The last state that applies wins."""
    states: dict[Key, str] = {}
    for skipped in plan.held:
        parts = skipped.what.split("/")
        if parts[0] == files.MANIFESTS:
            states[Key(parts[1], parts[2])] = "HeldBack"
    states |= dict.fromkeys(built.objects, "Written")
    states |= dict.fromkeys(built.suspended, "Suspended")
    states |= dict.fromkeys((key for key in built.invalid - built.foreign if key.name), "Faulty")
    return dict(sorted(states.items()))


def _clusters_of_others(
    built: BuildResult, plan: Plan, snapshot: Snapshot, rows: list[Obj], own: Mapping[str, str]
) -> list[Obj]:
    """Return the rows of other sources, except for clusters that this source writes or removes.

    Rows of directories name no source. Another source takes over such a row if it knows the
    cluster, or if the cluster no longer exists. A directory, for which `own` is empty, knows none.
    """
    states = {str(key) for key in _states(built, plan)} if own else set()
    present = {*ownership.clusters(snapshot)}
    written = built.wanted[MANIFEST_ROOT].keys()
    removed = {
        removal.folder.removeprefix(f"{files.MANIFESTS}/")
        for removal in plan.removed
        if removal.definition
    }
    return [
        row
        for row in rows
        if (name := str(row.get("name"))) not in written | removed
        and (row.get("source") or (name in present and name not in states))
    ]


def _rows(status: Any, field: str, own: Mapping[str, str]) -> list[Obj]:
    """Return the rows of other sources."""
    value = at(status, field)
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    return [_plain(row) for row in rows if row.get("source") != own.get("source")]


def _plain(row: Obj) -> Obj:
    # A user may have edited the file, so keep only values that can be written again.
    return {str(key): value for key, value in row.items() if isinstance(value, str | int)}


def _parse(content: bytes | None) -> Any:
    try:
        return load_yaml(content or b"", _LIMITS)
    except TextError:
        return None
