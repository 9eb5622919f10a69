"""An upgrade in waves as data, and what its next commit is, for the command line and the controller alike.

The controller keeps it in the repository: the commit of each wave also writes `caphv-upgrade.yaml` with the clusters of
all waves and the versions before. So a restarted packager, or another replica, continues where the last one stopped.
Packagers that divide the clusters among them have a file each, so that none continues the upgrade of another.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

from caphv.api import names
from caphv.api.object import Key
from caphv.runtime.text import Limits, TextError, load_yaml
from packager import inventory
from packager.addons.gather import ClusterFacts
from packager.addons.versions import Table, Versions, pinned
from packager.cluster_objects import is_suspended
from packager.controller.fleet import Report
from packager.git.snapshot import Snapshot
from packager.rendering import yaml
from packager.waves import Wave, parse, split

log = logging.getLogger(__name__)

FILE = "caphv-upgrade.yaml"
STOP = "stop"
"""The request that ends an upgrade where it is."""
_LIMITS = Limits(size=4 * 1024 * 1024, nodes=200_000, seconds=10, aliases=False)
_SECONDS = {"s": 1, "m": 60, "h": 3600}

_MOST_NAMED = 5
S = TypeVar("S")

LeftOut = Mapping[Key, tuple[str, ...]]
"""Clusters whose bundles cannot be upgraded, each with field, value and remedy of what is wrong."""

Outdated = Callable[[Key], Versions | None]
"""Returns the versions of a cluster that can be upgraded now; None for any other."""


class State(StrEnum):
    """What became of an upgrade."""

    PROGRESSING = "Progressing"
    COMPLETE = "Complete"
    REVERTED = "Reverted"
    STOPPED = "Stopped"


@dataclass(frozen=True)
class Request:
    """What a user asks for; without a release it is the newest."""

    waves: tuple[str, ...]
    gate: float
    release: str = ""


@dataclass(frozen=True)
class Rollout:
    """An upgrade in waves. `wave` is the number of the one that was committed last, from 1; `since` is its time.

    `before` are the versions that the clusters of this wave had. `gate` is in seconds. `request` is the user's text.
    `left_out` are the clusters of all waves so far whose bundles cannot be upgraded, each with the reasons, and `kept`
    are their releases. `blocked` is why the upgrade cannot continue here; the file does not hold it.
    """

    release: str
    gate: float
    waves: tuple[tuple[str, tuple[Key, ...]], ...]
    request: str = ""
    state: State = State.PROGRESSING
    wave: int = 0
    since: float = 0.0
    before: Mapping[Key, Versions] = field(default_factory=dict)
    problems: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)
    left_out: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)
    kept: Mapping[Key, str] = field(default_factory=dict)
    blocked: str = ""

    @property
    def is_active(self) -> bool:
        """Whether more commits may follow."""
        return self.state is State.PROGRESSING

    @property
    def name(self) -> str:
        """The wave that was committed last, as the user wrote it."""
        return self.waves[self.wave - 1][0] if self.wave else ""

    @property
    def title(self) -> str:
        """The same wave, for people."""
        return f"wave {self.wave} of {len(self.waves)} ({self.name})" if self.wave else "no wave"

    def leaves_out(self, cluster: Key, release: str = "") -> bool:
        """Whether a cluster was left out and, as far as its release is known, still has the one that it had then."""
        return cluster in self.left_out and release in ("", self.kept.get(cluster))

    def notes(self, cluster: Key, release: str = "") -> list[str]:
        """Return what users should know of a cluster with this release: that it is awaited, left out, or reverted."""
        if self.leaves_out(cluster, release):
            return [f"left out of the upgrade to release {self.release}: {'; '.join(self.left_out[cluster])}"]
        if self.is_active and cluster in self.before:
            blocked = f", which cannot continue: {self.blocked}" if self.blocked else ""
            return [f"{self.title} of the upgrade to release {self.release}{blocked}"]
        if self.state is State.REVERTED and cluster in self.problems:
            return [f"release {self.release} was reverted: {', '.join(self.problems[cluster])}"]
        return []


@dataclass(frozen=True)
class Step:
    """The next commit of an upgrade: versions that clusters get, and why; `rollout` is what it is afterwards.

    `left_out` are the clusters that it would upgrade as well if that were possible.
    """

    rollout: Rollout
    pins: Mapping[Key, Versions]
    why: str
    left_out: LeftOut = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """The upgrade that the repository holds, its next commit if there is one, and why a new one cannot start."""

    current: Rollout | None = None
    step: Step | None = None
    problem: str = ""


@dataclass(frozen=True)
class Observed:
    """What the controller knows: the text of a new request, and what Fleet reports of the last wave's clusters.

    `present` are the clusters that exist and need to become ready: neither suspended nor being deleted. A cluster that
    Fleet has not reported on is missing in `reports`. `can_start`: Fleet is visible, so that a wave can be awaited.
    `file` holds the upgrade.
    """

    present: frozenset[Key] = frozenset()
    request: str = ""
    reports: Mapping[Key, Report] = field(default_factory=dict)
    can_start: bool = False
    now: float = 0.0
    file: str = FILE


def file_of(share: str) -> str:
    """Return the name of the file of a packager, by its share of the clusters; empty for all clusters."""
    return f"caphv-upgrade-{share}.yaml" if share else FILE


def parse_request(text: str) -> Request:
    """Read a text such as `canary,10%,rest ready=10m release=2026.12`. Raises ValueError with what is wrong."""
    waves, *others = text.split() or [""]
    found = dict(part.partition("=")[::2] for part in others)
    if unknown := sorted(found.keys() - {"ready", "release"}):
        raise ValueError(f"{', '.join(unknown)}: unknown; use <waves> ready=<time> release=<release>")
    time = re.fullmatch(r"([1-9]\d{0,5})([smh])", found.get("ready", ""))
    if time is None:
        raise ValueError("ready must be a time such as 90s, 45m or 2h, for example: canary,10%,rest ready=10m")
    return Request(parse(waves), float(int(time[1]) * _SECONDS[time[2]]), found.get("release", ""))


def begin(waves: Sequence[Wave], release: str, gate: float, request: str = "") -> Rollout:
    """Return an upgrade whose first wave is not committed yet."""
    return Rollout(
        release, gate, tuple((one.name, tuple(facts.key for facts in one.clusters)) for one in waves), request
    )


def next_wave(
    rollout: Rollout, outdated: Outdated, target: Versions, now: float, unknown: Collection[Key] = ()
) -> Step | None:
    """Return the commit of the next wave that has something to upgrade; after the last one, the end.

    None while a wave has `unknown` clusters: those exist, but cannot be read now.
    """
    for number, (_, clusters) in enumerate(rollout.waves[rollout.wave :], rollout.wave + 1):
        if missing := [str(key) for key in clusters if key in unknown]:
            log.info("wave %d of the upgrade waits for clusters that cannot be read: %s", number, ", ".join(missing))
            return None
        if before := {key: versions for key in clusters if (versions := outdated(key))}:
            following = replace(rollout, wave=number, since=float(int(now)), before=before)
            why = f"Upgrade to release {rollout.release}: {following.title}."
            return Step(following, dict.fromkeys(before, target), why)
    ended = replace(rollout, state=State.COMPLETE, wave=len(rollout.waves), before={})
    return Step(ended, {}, f"The upgrade to release {rollout.release} is complete.")


def advance(
    rollout: Rollout,
    outdated: Outdated,
    reports: Mapping[Key, Report],
    target: Versions,
    *,
    now: float,
    failed: Mapping[Key, Sequence[str]] | None = None,
    unknown: Collection[Key] = (),
) -> Step | None:
    """Return what follows the last wave: the next one, its revert, or None while it must be awaited.

    `failed` are clusters of the wave that could not be committed. A cluster without a report is awaited for as long as
    it has none: a wave is not reverted only because Fleet is not visible. `unknown` is as for `next_wave`.
    """
    is_over = now - rollout.since >= rollout.gate
    if not rollout.before:
        return _stop(rollout, "none of its clusters is left to become ready") if is_over else None
    found: dict[Key, tuple[str, ...]] = {}
    found |= {key: ("its bundles were not upgraded",) for key in rollout.before if outdated(key)}
    found |= {key: tuple(problems) for key, problems in (failed or {}).items()}
    known = [reports[key] for key in rollout.before if key in reports]
    if not found and all(report.ready for report in known):
        is_ready = len(known) == len(rollout.before)
        return next_wave(rollout, outdated, target, now, unknown) if is_ready else None
    if is_over:
        found |= {key: report.problems for key, report in reports.items() if key in rollout.before and not report.ready}
    elif not found:
        return None
    reverted = replace(rollout, state=State.REVERTED, problems=found)
    pins = {key: versions for key, versions in rollout.before.items() if not outdated(key)}
    why = f"Revert {rollout.title} of release {rollout.release}: it did not become ready."
    return Step(reverted, pins, why)


def decide(
    snapshot: Snapshot,
    observed: Observed,
    clusters: Iterable[ClusterFacts],
    table: Table,
    left_out: LeftOut = MappingProxyType({}),
) -> Decision:
    """Return what follows for the upgrade that the repository holds, or for a new one.

    `left_out` are clusters of the next commit that were found to be impossible to upgrade.
    """
    current = read(snapshot.read(observed.file), observed.file)
    active = current if current and current.is_active else None
    facts = {one.key: one for one in clusters if not is_suspended(one.cluster)}
    if observed.request == STOP:
        return Decision(current, _stop(replace(active, request=STOP)) if active else None)
    problem = ""
    if observed.request and not (active and active.request == observed.request):
        if not observed.can_start:
            return Decision(current)
        try:
            return Decision(current, _start(snapshot, observed, facts, table, left_out))
        except ValueError as error:
            # An upgrade that is in progress continues.
            problem = f"{observed.request!r} cannot start: {error}"
    if active is None:
        return Decision(current, None, problem)
    try:
        target = table.release(active.release)
    except ValueError as error:
        remedy = f"run a packager that has it, or annotate the packager's Lease with {names.UPGRADE_ANNOTATION}={STOP}"
        return Decision(replace(active, blocked=f"{error}; {remedy}"), None, problem)
    outdated = outdated_in(snapshot, facts, target)
    following = _continue(active, observed, facts, target, without(outdated, left_out))
    return Decision(current, noting(following, left_out, outdated), problem)


def _stop(active: Rollout, why: str = "") -> Step:
    stopped = replace(active, state=State.STOPPED, before={})
    reason = f": {why}" if why else ""
    return Step(stopped, {}, f"The upgrade to release {active.release} is stopped after {active.title}{reason}.")


def _start(
    snapshot: Snapshot, observed: Observed, facts: Mapping[Key, ClusterFacts], table: Table, left_out: LeftOut
) -> Step | None:
    """Return the first wave. Raises ValueError if it is not possible."""
    request = parse_request(observed.request)
    target = table.release(request.release) if request.release else table.newest
    waves = split(request.waves, inventory.wave(facts.values(), snapshot.tree, target, None).chosen)
    started = begin(waves, target.release, request.gate, observed.request)
    outdated = outdated_in(snapshot, facts, target)
    found = next_wave(started, without(outdated, left_out), target, observed.now)
    if found and left_out and not found.pins:
        raise ValueError(f"no cluster can be upgraded to release {target.release}; left out: {described(left_out)}")
    return noting(found, left_out, outdated)


def _continue(
    active: Rollout, observed: Observed, facts: Mapping[Key, ClusterFacts], target: Versions, outdated: Outdated
) -> Step | None:
    # A cluster that was deleted, or is suspended, need not become ready. One that cannot be read now is awaited.
    left = replace(active, before={key: known for key, known in active.before.items() if key in observed.present})
    reports = {key: report for key, report in observed.reports.items() if key in facts}
    unknown = observed.present - facts.keys()
    return advance(left, outdated, reports, target, now=observed.now, unknown=unknown)


def fitting(find: Callable[[LeftOut], S], unfit: Callable[[S], LeftOut]) -> S:
    """Return what `find` finds once it leaves out all clusters that `unfit` finds in it.

    So a wave has only clusters whose bundles can be upgraded, and one without any such cluster is skipped.
    """
    left_out: dict[Key, tuple[str, ...]] = {}
    while more := unfit(found := find(left_out)):
        left_out |= more
    return found


def keeping(reverted: Step, kept: LeftOut) -> Step:
    """Note which clusters of a revert keep the new versions, because their bundles cannot be changed."""
    problems = dict(reverted.rollout.problems)
    for key, why in kept.items():
        message = f"it keeps release {reverted.rollout.release}, which cannot be reverted: {'; '.join(why)}"
        problems[key] = (*problems.get(key, ()), message)
    return replace(reverted, rollout=replace(reverted.rollout, problems=problems))


def without(outdated: Outdated, left_out: Collection[Key]) -> Outdated:
    """Return the same as `outdated`, without these clusters."""
    return lambda key: None if key in left_out else outdated(key)


def described(left_out: LeftOut) -> str:
    """Name clusters that are left out, and why, for people."""
    rows = [f"{key}: {'; '.join(why)}" for key, why in sorted(left_out.items())]
    return "; ".join(rows[:_MOST_NAMED]) + (f"; and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else "")


def noting(found: Step | None, left_out: LeftOut, outdated: Outdated) -> Step | None:
    """Note what a step left out, and the releases that those clusters have."""
    if found is None or not left_out:
        return found
    kept = {key: versions.release for key in left_out if (versions := outdated(key))}
    rollout = replace(
        found.rollout, left_out={**found.rollout.left_out, **left_out}, kept={**found.rollout.kept, **kept}
    )
    return replace(found, rollout=rollout, why=f"{found.why} Left out: {described(left_out)}.", left_out=left_out)


def outdated_in(snapshot: Snapshot, facts: Mapping[Key, ClusterFacts], target: Versions) -> Outdated:
    """Return a function that says which of these clusters a repository holds with other versions than the target's."""

    def outdated(key: Key) -> Versions | None:
        versions = inventory.pinned(facts[key], snapshot.tree) if key in facts else None
        return versions if versions != target else None

    return outdated


# The file


def write(rollout: Rollout) -> bytes:
    """Return the content of the file."""
    versions: list[tuple[Versions, list[str]]] = []
    for key, found in sorted(rollout.before.items()):
        group = next((names for known, names in versions if known == found), None)
        if group is None:
            versions.append((found, group := []))
        group.append(str(key))
    content = {
        "state": rollout.state.value,
        "release": rollout.release,
        "request": rollout.request,
        "gateSeconds": int(rollout.gate),
        "waves": [{"name": name, "clusters": [str(key) for key in clusters]} for name, clusters in rollout.waves],
        "wave": rollout.wave,
        "since": datetime.fromtimestamp(int(rollout.since), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "before": [{"versions": found.as_data(), "clusters": keys} for found, keys in versions],
        "problems": messages(rollout.problems),
        "leftOut": [
            {**row, "release": rollout.kept.get(_key(row["cluster"]), "")} for row in messages(rollout.left_out)
        ],
    }
    return yaml.dump(content).encode()


def messages(found: LeftOut) -> list[Any]:
    """Return messages of clusters as data."""
    return [{"cluster": str(key), "messages": [*messages]} for key, messages in sorted(found.items())]


def read(content: bytes | None, file: str = FILE) -> Rollout | None:
    """Return the upgrade of a file, None without one; a damaged file is reported and ends its upgrade."""
    if content is None:
        return None
    try:
        value = load_yaml(content, _LIMITS)
        return _rollout(value)
    except (TextError, KeyError, TypeError, ValueError, AttributeError) as error:
        log.error("%s is damaged, so no upgrade in waves continues: %s %s", file, type(error).__name__, error)
        return None


def _rollout(value: Any) -> Rollout:
    waves = tuple((str(one["name"]), tuple(map(_key, one["clusters"]))) for one in value["waves"])
    number = int(value["wave"])
    if not 0 <= number <= len(waves):
        raise ValueError(f"wave: there is no wave {number}")
    return Rollout(
        release=str(value["release"]),
        gate=float(value["gateSeconds"]),
        waves=waves,
        request=str(value["request"]),
        state=State(value["state"]),
        wave=number,
        since=datetime.fromisoformat(str(value["since"])).timestamp(),
        before={_key(name): pinned(one["versions"]) for one in value["before"] for name in one["clusters"]},
        problems={_key(one["cluster"]): tuple(map(str, one["messages"])) for one in value["problems"]},
        # An earlier packager wrote no such list.
        left_out={_key(one["cluster"]): tuple(map(str, one["messages"])) for one in value.get("leftOut", ())},
        kept={_key(one["cluster"]): str(one["release"]) for one in value.get("leftOut", ()) if one.get("release")},
    )


def _key(text: Any) -> Key:
    namespace, name = str(text).split("/")
    return Key(namespace, name)
