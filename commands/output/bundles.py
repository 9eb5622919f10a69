"""How `caphv bundles` writes what it found: for people, scripts and reviews."""

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
from commands.options.clusters import SelectedClusters
from commands.output.data import data_text
from commands.output.validate import colour
from packager.addons.versions import Versions
from packager.bundler import Batch
from packager.diff import FOREIGN_FILE, ClusterDiff, FileChange, State
from packager.git.result import Result
from packager.inventory import RepositoryCluster, UpgradeWave
from packager.rendering import yaml
from packager.rendering.renderer import TEMPLATE_RULE, Rendered
from packager.waves import Wave

__all__ = [
    "DIFFERENCES",
    "LISTED",
    "PUSHED",
    "RENDERED",
    "VERIFIED",
    "WAVES",
    "WAVES_DONE",
    "colour",
    "formats",
    "problems",
    "summary",
    "table",
    "wave",
    "wave_line",
]

_COLOURS = {State.MATCHES: "green", State.SUSPENDED: "cyan"}


def problems(given: SelectedClusters, batch: Batch) -> Iterator[str]:
    """Yield what could not be read, and each finding with the place of the file that it is about.

    An error in a template is reported once, not for each of a thousand clusters.
    """
    yield from map(printable, given.input.unreadable)
    for cluster in sorted(batch.suspended):
        yield printable(
            f"cluster {cluster}: suspended by annotation {names.SUSPEND_ADDONS_ANNOTATION}, keeps what it has"
        )
    if not given.clusters and not given.input.unreadable:
        yield "there is no such cluster (definitions of clusters are for: caphv packager sync)"
    of_templates: Counter[str] = Counter()
    seen: Counter[Key] = Counter()
    for result in batch.rendered:
        for finding in result.findings:
            if finding.rule == TEMPLATE_RULE:
                of_templates[str(finding)] += 1
                continue
            place = given.input.place(result.cluster, finding, seen[result.cluster])
            kind = "advice" if finding.advice else "error"
            yield printable(": ".join(filter(None, (place, f"cluster {result.cluster}", kind, str(finding)))))
        seen[result.cluster] += 1
    for text, times in of_templates.items():
        yield printable(f"error: {text} ({counted(times, 'cluster')})")


def summary(batch: Batch, folder: Path) -> str:
    """Say what was written into a folder."""
    written = [result for result in batch.rendered if result.ok]
    files = sum(len(result.tree) for result in written)
    return f"wrote {counted(files, 'file')} of {counted(len(written), 'cluster')} into {folder}\n"


def wave(wave: UpgradeWave, target: Versions) -> str:
    """Say what is left to be upgraded."""
    more = f", {wave.waiting} more wait" if wave.waiting else ""
    new = f"; {wave.unknown} are not in the repository yet and will begin with the newest" if wave.unknown else ""
    return f"{counted(len(wave.chosen), 'cluster')} for release {target.release}{more}{new}"


def wave_line(outcome: Obj) -> str:
    """Say what became of a wave."""
    colour = "green" if outcome["state"] == "ready" else "red"
    commit = f", commit {outcome['commit'][:12]}" if outcome["commit"] else ""
    head = f"{click.style(outcome['state'], fg=colour)} {printable(outcome['wave'])}: "
    lines = [f"{head}{counted(len(outcome['clusters']), 'cluster')}{commit}"]
    lines += [printable(f"  {name}: {'; '.join(why)}") for name, why in sorted(outcome["problems"].items())]
    if revert := outcome.get("revert"):
        lines.append(f"  commit {revert[:12]} gives them their former versions; correct the cause, and run this again")
    return "\n".join(lines)


# Waves of an upgrade


def _waves(waves: Sequence[Wave], target: Versions) -> str:
    rows = [
        (str(number), one.name, str(len(one.clusters)), ", ".join(str(facts.key) for facts in one.clusters))
        for number, one in enumerate(waves, 1)
    ]
    shown = table(("WAVE", "NAME", "COUNT", "CLUSTERS"), rows) if rows else ""
    total = sum(len(one.clusters) for one in waves)
    return f"{shown}{counted(total, 'cluster')} for release {target.release}\n"


def _waves_content(waves: Sequence[Wave], target: Versions) -> Obj:
    return {
        "release": target.release,
        "waves": [{"wave": one.name, "clusters": [str(facts.key) for facts in one.clusters]} for one in waves],
    }


# Rendered bundles


def _streamed(batch: Batch) -> str:
    files = (item for result in batch.rendered for item in sorted(result.tree.items()))
    return "---\n".join(f"# {path}\n{content.decode()}" for path, content in files)


def _files(batch: Batch) -> Obj:
    return {
        "clusters": [
            _cluster(result) | {"files": {path: content.decode() for path, content in sorted(result.tree.items())}}
            for result in batch.rendered
        ],
        "suspended": sorted(map(str, batch.suspended)),
    }


def _cluster(result: Rendered) -> Obj:
    return {
        "namespace": result.cluster.namespace,
        "name": result.cluster.name,
        "hash": result.hash,
        "release": result.versions.release if result.versions else "",
        "findings": [
            {"field": finding.field, "rule": finding.rule, "advice": finding.advice, "message": str(finding)}
            for finding in result.findings
        ],
    }


def _tree(batch: Batch) -> str:
    lines: list[str] = []
    above: list[str] = []
    for path in sorted(path for result in batch.rendered for path in result.tree):
        parts = path.split("/")
        same = next((i for i, (old, new) in enumerate(zip(above, parts, strict=False)) if old != new), len(above))
        lines += (
            f"{'  ' * depth}{printable(parts[depth])}{'/' if depth < len(parts) - 1 else ''}\n"
            for depth in range(same, len(parts))
        )
        above = parts[:-1]
    return "".join(lines)


# Differences


def _unified(found: Sequence[ClusterDiff]) -> str:
    return "".join(f"{_coloured(line)}\n" for one in found for change in one.changes for line in change.lines)


def _coloured(line: str) -> str:
    text = printable(line)
    if line.startswith(("--- ", "+++ ")):
        return click.style(text, bold=True)
    colours = {"+": "green", "-": "red", "@": "cyan"}
    return click.style(text, fg=colours[line[0]]) if line[:1] in colours else text


def _changed(found: Sequence[ClusterDiff]) -> str:
    rows = [
        (one.name, _state(one), change.path.split("/", 3)[3], "+{} -{}".format(*change.counts))
        for one in found
        for change in one.changes
    ]
    return (table(("CLUSTER", "STATE", "FILE", "LINES"), rows) if rows else "") + _states(found)


def _changes(found: Sequence[ClusterDiff]) -> Obj:
    return {"clusters": [_compared(one) | {"changes": [_change(change) for change in one.changes]} for one in found]}


def _change(change: FileChange) -> Obj:
    added, removed = change.counts
    return {"path": change.path, "added": added, "removed": removed, "diff": "".join(f"{x}\n" for x in change.lines)}


# Verdicts


def _verdicts(found: Sequence[ClusterDiff]) -> str:
    rows = [
        (one.name, _state(one), "; ".join([*(change.path.split("/", 3)[3] for change in one.changes), *one.why]))
        for one in found
        if not one.is_current
    ]
    return (table(("CLUSTER", "STATE", "WHERE"), rows) if rows else "") + _states(found)


def _proof(found: Sequence[ClusterDiff]) -> Obj:
    return {
        "verified": all(one.is_current for one in found),
        "clusters": [_compared(one) | {"files": [change.path for change in one.changes]} for one in found],
    }


def _compared(one: ClusterDiff) -> Obj:
    return {"name": one.name, "state": one.state.value, "why": list(one.why)}


def _state(one: ClusterDiff) -> str:
    return click.style(one.state.value, fg=_COLOURS.get(one.state, "red"))


def _states(found: Sequence[ClusterDiff]) -> str:
    counts = Counter(one.state.value for one in found)
    return (", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "no clusters") + "\n"


# Commits


def _pushed(result: Result) -> str:
    plan = result.plan
    lines = [f"  {verb:<8}{printable(name)}" for verb, names in _done(result) for name in names]
    kept = (f"{left.what}: {left.why}" for left in (*plan.held, *plan.refused))
    lines += [f"  {click.style('left', fg='yellow')}    {printable(text)}" for text in kept]
    lines += [f"  branch  {printable(group)}: commit {result.groups[group][:12]}" for group in result.moved]
    lines += [f"  {click.style('foreign', fg='red')} {printable(path)} {FOREIGN_FILE}" for path in plan.foreign]
    lines += [f"  review  {printable(str(result.merge_request))}"] if result.merge_request else []
    where = f"commit {result.commit[:12]} on {result.branch}" if result.commit else "wrote files"
    head = f"{where}: {len(plan.write)} written, {len(plan.delete)} removed" if not plan.is_empty else "nothing changed"
    return "".join(f"{line}\n" for line in [head, *lines])


def _done(result: Result) -> Iterable[tuple[str, Iterable[str]]]:
    plan = result.plan
    return ("added", plan.added), ("changed", plan.changed), ("removed", map(str, plan.removed))


def merge_request(result: Result) -> Obj:
    """Return the merge request of a push for review, nothing for another one."""
    request = result.merge_request
    return {"mergeRequest": {"address": request.address, "open": request.is_open}} if request else {}


def _result(result: Result) -> Obj:
    plan = result.plan
    return {
        "commit": result.commit,
        "branch": result.branch,
        **merge_request(result),
        **{verb: list(names) for verb, names in _done(result)},
        "left": [{"what": left.what, "why": left.why} for left in (*plan.held, *plan.refused)],
        "foreign": list(plan.foreign),
        "branches": {group: result.groups[group] for group in result.moved},
        "files": {"written": sorted(plan.write), "removed": sorted(plan.delete)},
    }


# Inventory


def _listed(found: Sequence[RepositoryCluster], newest: Versions) -> str:
    rows = [
        (
            one.name,
            one.record.versions.release if one.record else "-",
            _newer(one, newest),
            str(one.record.network.get("cni", "-")) if one.record else "-",
            ",".join(one.bundles),
            one.record.content_hash[:12] if one.record else one.fault,
        )
        for one in found
    ]
    return table(("CLUSTER", "RELEASE", "NEWER", "CNI", "BUNDLES", "HASH"), rows)


def _inventory(found: Sequence[RepositoryCluster], newest: Versions) -> Obj:
    return {
        "newest": newest.as_data(),
        "clusters": [
            {"name": one.name, "bundles": list(one.bundles), "fault": one.fault}
            | (
                {
                    "versions": one.record.versions.as_data(),
                    "network": dict(one.record.network),
                    "hash": one.record.content_hash,
                }
                if one.record
                else {}
            )
            for one in found
        ],
    }


def _newer(one: RepositoryCluster, newest: Versions) -> str:
    return newest.release if one.record and one.record.versions != newest else "-"


# Forms


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return aligned columns below their heads."""
    every = [tuple(head), *(tuple(map(_cell, row)) for row in rows)]
    widths = [max(len(click.unstyle(cell)) for cell in column) for column in zip(*every, strict=True)]
    return "".join(
        "  ".join(
            cell + " " * (width - len(click.unstyle(cell))) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        + "\n"
        for row in every
    )


def _cell(text: str) -> str:
    # Only our own colours may pass to the terminal.
    return text if text.startswith("\x1b[") and click.unstyle(text).isalpha() else printable(text)


def formats(
    text: Callable[..., str], content: Callable[..., Any], name: str = "table"
) -> dict[str, Callable[..., str]]:
    """Return what `-o` offers: the text for people under its name, and the same content as JSON and YAML."""
    return {
        name: text,
        "json": lambda *found: data_text(content(*found), "json"),
        "yaml": lambda *found: yaml.dump(content(*found)),
    }


RENDERED = {**formats(_tree, _files, "tree"), "yaml": _streamed}
DIFFERENCES = {**formats(_changed, _changes), "diff": _unified}
VERIFIED = formats(_verdicts, _proof)
PUSHED = formats(_pushed, _result)
WAVES = formats(_waves, _waves_content)
# For scripts; people read the line of each wave when it ends.
WAVES_DONE: dict[str, Callable[[Sequence[Obj], Sequence[Obj]], str]] = {
    "json": lambda done, left_out: data_text({"waves": done, "leftOut": left_out}, "json"),
    "yaml": lambda done, left_out: yaml.dump({"waves": list(done), "leftOut": list(left_out)}),
}
LISTED = formats(_listed, _inventory)
