"""Format the results of `caphv bundles` for people, scripts and reviews."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from caphv.api import names
from caphv.api.counting import counted
from caphv.api.object import Key, Obj
from caphv.api.plaintext import printable
from commands.access.clusters import SelectedClusters
from commands.output.data import data_text, fields_of
from commands.output.validate import colour
from packager.addons.versions import Versions
from packager.contents.diff import FOREIGN_FILE, ClusterDiff, FileChange, State
from packager.contents.inventory import RepositoryCluster, UpgradeWave
from packager.git.result import Result
from packager.rendering.bundler import Batch
from packager.rendering.rendered import TEMPLATE_RULE, Rendered
from packager.upgrade import rollout, rolloutfile
from packager.upgrade.rollout import Rollout
from packager.upgrade.waves import Wave

__all__ = [
    "DIFFERENCES",
    "LISTED",
    "PUSHED",
    "RENDERED",
    "UPGRADED",
    "VERIFIED",
    "WAVES",
    "colour",
    "commit_fields",
    "formats",
    "problems",
    "summary",
    "table",
    "wave",
]

_COLOURS = {State.MATCHES: "green", State.SUSPENDED: "cyan"}


def problems(selected: SelectedClusters, batch: Batch) -> Iterator[str]:
    """Yield files that could not be read, and each finding with its place in a file.

    An error in a template is reported once, not for each of a thousand clusters.
    """
    yield from map(printable, selected.input.unreadable)
    for cluster in sorted(batch.suspended):
        yield printable(
            f"cluster {cluster}: suspended by annotation {names.SUSPEND_ADDONS_ANNOTATION}, keeps "
            "what it has"
        )
    if not selected.clusters and not selected.input.unreadable:
        yield "no such cluster (for ClusterDefinitions, use caphv packager sync)"

    template_errors: Counter[str] = Counter()
    seen: Counter[Key] = Counter()
    for result in batch.rendered:
        for finding in result.findings:
            if finding.rule == TEMPLATE_RULE:
                template_errors[str(finding)] += 1
                continue
            place = selected.input.place(result.cluster, finding, seen[result.cluster])
            kind = "advice" if finding.advice else "error"
            parts = (place, f"cluster {result.cluster}", kind, str(finding))
            yield printable(": ".join(filter(None, parts)))
        # Several files may name a cluster. Its second result has places in its second file.
        seen[result.cluster] += 1

    for text, times in template_errors.items():
        yield printable(f"error: {text} ({counted(times, 'cluster')})")


def summary(batch: Batch, folder: Path) -> str:
    """Return a line about the files that were written into a folder."""
    written = [result for result in batch.rendered if result.ok]
    files = sum(len(result.tree) for result in written)
    return f"wrote {counted(files, 'file')} of {counted(len(written), 'cluster')} into {folder}\n"


def wave(wave: UpgradeWave, target: Versions) -> str:
    """Return a line about the clusters that are upgraded now and later."""
    more = f", {wave.waiting} more wait" if wave.waiting else ""
    new = ""
    if wave.unknown:
        new = f"; {wave.unknown} are not in the repository yet and will start with the newest"
    return f"{counted(len(wave.chosen), 'cluster')} for release {target.release}{more}{new}"


# Waves of an upgrade


def _waves(waves: Sequence[Wave], target: Versions) -> str:
    """Return the waves of an upgrade as a table."""
    rows = [
        (
            str(number),
            wave.name,
            str(len(wave.clusters)),
            ", ".join(str(facts.key) for facts in wave.clusters),
        )
        for number, wave in enumerate(waves, 1)
    ]
    shown = table(("WAVE", "NAME", "COUNT", "CLUSTERS"), rows) if rows else ""
    total = sum(len(wave.clusters) for wave in waves)
    return f"{shown}{counted(total, 'cluster')} for release {target.release}\n"


def _waves_content(waves: Sequence[Wave], target: Versions) -> Obj:
    return {
        "release": target.release,
        "items": [
            {"name": wave.name, "clusters": [str(facts.key) for facts in wave.clusters]}
            for wave in waves
        ],
    }


def _rollout_text(upgrade: Rollout) -> str:
    """Return the outcome of an upgrade in waves, with why clusters are not part of it."""
    colour = "green" if upgrade.state is rollout.State.COMPLETE else "red"
    state = click.style(upgrade.state.value, fg=colour)
    lines = [f"{state}: release {printable(upgrade.release)}, {printable(upgrade.title)}"]
    for title, reasons in (("not ready", upgrade.problems), ("left out", upgrade.left_out)):
        lines += [
            printable(f"  {title}  {key}: {'; '.join(why)}") for key, why in sorted(reasons.items())
        ]
    if upgrade.state is rollout.State.REVERTED:
        lines.append(
            "  the wave has its former versions again; correct the cause and run the command again"
        )
    return "".join(f"{line}\n" for line in lines)


def _rollout_fields(upgrade: Rollout) -> Obj:
    return fields_of(rolloutfile.as_data(upgrade), items="waves")


# Rendered bundles


def _stream(batch: Batch) -> str:
    files = (item for result in batch.rendered for item in sorted(result.tree.items()))
    return "---\n".join(f"# {path}\n{content.decode()}" for path, content in files)


def _files(batch: Batch) -> Obj:
    return {
        "suspended": sorted(map(str, batch.suspended)),
        "items": [
            _cluster(result)
            | {"files": {path: content.decode() for path, content in sorted(result.tree.items())}}
            for result in batch.rendered
        ],
    }


def _cluster(result: Rendered) -> Obj:
    """Return a rendered cluster as data, without its files."""
    return {
        "namespace": result.cluster.namespace,
        "name": result.cluster.name,
        "hash": result.hash,
        "release": result.versions.release if result.versions else "",
        "findings": [
            {
                "field": finding.field,
                "rule": finding.rule,
                "advice": finding.advice,
                "message": str(finding),
            }
            for finding in result.findings
        ],
    }


def _tree(batch: Batch) -> str:
    """Return the paths of all files as a tree."""
    lines: list[str] = []
    above: list[str] = []
    for path in sorted(path for result in batch.rendered for path in result.tree):
        parts = path.split("/")
        # Folders that the path shares with the path above are not repeated.
        shared = 0
        while shared < len(above) and above[shared] == parts[shared]:
            shared += 1
        for depth in range(shared, len(parts)):
            ending = "/" if depth < len(parts) - 1 else ""
            lines.append(f"{'  ' * depth}{printable(parts[depth])}{ending}\n")
        above = parts[:-1]
    return "".join(lines)


# Differences


def _unified_diff(clusters: Sequence[ClusterDiff]) -> str:
    return "".join(
        f"{_colour_line(line)}\n"
        for cluster in clusters
        for change in cluster.changes
        for line in change.lines
    )


def _colour_line(line: str) -> str:
    text = printable(line)
    if line.startswith(("--- ", "+++ ")):
        return click.style(text, bold=True)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    return click.style(text, fg=colours[line[0]]) if line[:1] in colours else text


def _changes_table(clusters: Sequence[ClusterDiff]) -> str:
    """Return the changed files of all clusters as a table, and a summary."""
    rows = [
        (
            cluster.name,
            _state(cluster),
            change.path.split("/", 3)[3],
            "+{} -{}".format(*change.counts),
        )
        for cluster in clusters
        for change in cluster.changes
    ]
    return (table(("CLUSTER", "STATE", "FILE", "LINES"), rows) if rows else "") + _states(clusters)


def _changes(clusters: Sequence[ClusterDiff]) -> Obj:
    return {
        "items": [
            _comparison(cluster) | {"changes": [_change(change) for change in cluster.changes]}
            for cluster in clusters
        ]
    }


def _change(change: FileChange) -> Obj:
    added, removed = change.counts
    return {
        "path": change.path,
        "added": added,
        "removed": removed,
        "diff": "".join(f"{x}\n" for x in change.lines),
    }


# Verdicts


def _verdicts(clusters: Sequence[ClusterDiff]) -> str:
    """Return the clusters that differ as a table, and a summary."""
    rows = [
        (
            cluster.name,
            _state(cluster),
            "; ".join(
                [*(change.path.split("/", 3)[3] for change in cluster.changes), *cluster.why]
            ),
        )
        for cluster in clusters
        if not cluster.is_current
    ]
    return (table(("CLUSTER", "STATE", "WHERE"), rows) if rows else "") + _states(clusters)


def _proof(clusters: Sequence[ClusterDiff]) -> Obj:
    return {
        "items": [
            _comparison(cluster) | {"files": [change.path for change in cluster.changes]}
            for cluster in clusters
        ]
    }


def _comparison(cluster: ClusterDiff) -> Obj:
    return {
        "name": cluster.name,
        "state": cluster.state.value,
        "wrong": not cluster.is_current,
        "why": list(cluster.why),
    }


def _state(cluster: ClusterDiff) -> str:
    return click.style(cluster.state.value, fg=_COLOURS.get(cluster.state, "red"))


def _states(clusters: Sequence[ClusterDiff]) -> str:
    counts = Counter(cluster.state.value for cluster in clusters)
    return (
        ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no clusters"
    ) + "\n"


# Commits


def _commit_text(result: Result) -> str:
    """Return a commit as lines: what it changes, and what it leaves."""
    plan = result.plan
    lines = [
        f"  {verb:<8}{printable(name)}" for verb, names in _changes_of(result) for name in names
    ]
    kept = (f"{item.what}: {item.why}" for item in (*plan.held, *plan.refused))
    lines += [f"  {click.style('left', fg='yellow')}    {printable(text)}" for text in kept]
    lines += [
        f"  {click.style('foreign', fg='red')} {printable(path)} {FOREIGN_FILE}"
        for path in plan.foreign
    ]
    if result.merge_request:
        lines.append(f"  review  {printable(str(result.merge_request))}")

    head = "nothing changed"
    if not plan.is_empty:
        place = "wrote files"
        if result.commit:
            place = f"commit {result.commit[:12]} on {result.branch}"
        head = f"{place}: {len(plan.write)} written, {len(plan.delete)} removed"
    return "".join(f"{line}\n" for line in [head, *lines])


def _changes_of(result: Result) -> Iterable[tuple[str, Iterable[str]]]:
    plan = result.plan
    return ("added", plan.added), ("changed", plan.changed), ("removed", map(str, plan.removed))


def _merge_request(result: Result) -> Obj:
    request = result.merge_request
    if request is None:
        return {}
    return {"mergeRequest": {"address": request.address, "open": request.is_open}}


def commit_fields(result: Result) -> Obj:
    """Return a commit as fields of a document, with an item for each bundle or definition."""
    plan = result.plan
    items: list[Obj] = [
        {"name": name, "change": verb, "wrong": False}
        for verb, names in _changes_of(result)
        for name in names
    ]
    items += [
        {"name": item.what, "change": "left", "wrong": True, "why": item.why}
        for item in (*plan.held, *plan.refused)
    ]
    items += [
        {"name": path, "change": "foreign", "wrong": True, "why": FOREIGN_FILE}
        for path in plan.foreign
    ]
    return {
        "commit": result.commit,
        "branch": result.branch,
        **_merge_request(result),
        "files": {"written": sorted(plan.write), "removed": sorted(plan.delete)},
        "items": items,
    }


# Inventory


def _inventory_table(clusters: Sequence[RepositoryCluster], newest: Versions) -> str:
    """Return the clusters of a repository as a table."""
    rows = [
        (
            cluster.name,
            cluster.lockfile.versions.release if cluster.lockfile else "-",
            _newer(cluster, newest),
            str(cluster.lockfile.network.get("cni", "-")) if cluster.lockfile else "-",
            ",".join(cluster.bundles),
            cluster.lockfile.content_hash[:12] if cluster.lockfile else cluster.fault,
        )
        for cluster in clusters
    ]
    return table(("CLUSTER", "RELEASE", "NEWER", "CNI", "BUNDLES", "HASH"), rows)


def _inventory(clusters: Sequence[RepositoryCluster], newest: Versions) -> Obj:
    return {"newest": newest.as_data(), "items": list(map(_cluster_row, clusters))}


def _cluster_row(cluster: RepositoryCluster) -> Obj:
    """Return a cluster of a repository as data."""
    row: Obj = {
        "name": cluster.name,
        "bundles": list(cluster.bundles),
        "fault": cluster.fault,
        "wrong": bool(cluster.fault),
    }
    if cluster.lockfile:
        row["versions"] = cluster.lockfile.versions.as_data()
        row["network"] = dict(cluster.lockfile.network)
        row["hash"] = cluster.lockfile.content_hash
    return row


def _newer(cluster: RepositoryCluster, newest: Versions) -> str:
    return newest.release if cluster.lockfile and cluster.lockfile.versions != newest else "-"


# Forms


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return aligned columns below their heads."""
    every = [tuple(head), *(tuple(map(_cell, row)) for row in rows)]
    widths = [
        max(len(click.unstyle(cell)) for cell in column) for column in zip(*every, strict=True)
    ]
    return "".join(
        "  ".join(
            cell + " " * (width - len(click.unstyle(cell)))
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        + "\n"
        for row in every
    )


def _cell(text: str) -> str:
    # Only our own colours may pass to the terminal.
    return text if text.startswith("\x1b[") and click.unstyle(text).isalpha() else printable(text)


def formats(
    text: Callable[..., str], content: Callable[..., Any], name: str = "text"
) -> dict[str, Callable[..., str]]:
    """Return the formats of `-o`: the text for people, and the same content as JSON and YAML."""
    return {
        name: text,
        "json": lambda *results: data_text("json", **content(*results)),
        "yaml": lambda *results: data_text("yaml", **content(*results)),
    }


RENDERED = {**formats(_tree, _files, "tree"), "yaml": _stream}
DIFFERENCES = {**formats(_changes_table, _changes), "diff": _unified_diff}
VERIFIED = formats(_verdicts, _proof)
PUSHED = formats(_commit_text, commit_fields)
WAVES = formats(_waves, _waves_content)
UPGRADED = formats(_rollout_text, _rollout_fields)
LISTED = formats(_inventory_table, _inventory)
