"""Waves of an upgrade: which clusters each has, and whether Fleet has applied one before the next is committed."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from caphv.api import names
from caphv.api.object import Key, Obj, Resource
from caphv.api.resources import FLEET_BUNDLES, FLEET_GIT_REPOS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, TooManyRequests, Unreachable
from packager.addons.gather import ClusterFacts, labels_of_cluster
from packager.controller.fleet import ExpectedBundles, Report, evaluate, reads, slim_bundle, slim_git_repo
from packager.git.errors import GitError
from packager.rendering.bundles import BUNDLE_LABEL

REST = "rest"
_INTERVAL = 3.0
_PAGE = 500
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Wave:
    """The clusters that are upgraded in one commit; `name` is as the user wrote it."""

    name: str
    clusters: tuple[ClusterFacts, ...]


def parse(text: str) -> tuple[str, ...]:
    """Return the waves of a list such as `canary,10%,rest`. Raises ValueError with all that is wrong."""
    found = tuple(part.strip() for part in text.split(","))
    wrong = [
        f"{part!r} is no wave: use a value of label {names.WAVE_LABEL}, a number, a percentage such as 10%, or {REST}"
        for part in found
        if not (_LABEL_VALUE.fullmatch(part) or re.fullmatch(r"\d{1,3}%", part))
        or (part.endswith("%") and not 1 <= int(part[:-1]) <= 100)
        or (part.isdigit() and int(part) < 1)
    ]
    wrong += [f"{part!r} is listed twice" for part in dict.fromkeys(found) if part and _is_twice(part, found)]
    if wrong:
        raise ValueError("; ".join(wrong))
    if found[-1] != REST:
        raise ValueError(f"the last wave must be {REST!r}, so that no cluster is left behind: {text},{REST}")
    return found


def _is_twice(part: str, found: Sequence[str]) -> bool:
    is_share = part.isdigit() or part.endswith("%")
    return not is_share and found.count(part) > 1


def split(waves: Sequence[str], clusters: Sequence[ClusterFacts]) -> list[Wave]:
    """Return the waves with their clusters, each cluster in the first that wants it; empty waves are left out.

    A label's value takes its clusters wherever it stands in the list; a percentage is of all clusters, rounded up.
    """
    labelled = {wave for wave in waves if wave != REST and not wave.isdigit() and not wave.endswith("%")}
    groups = {
        wave: [facts for facts in clusters if labels_of_cluster(facts).get(names.WAVE_LABEL) == wave]
        for wave in labelled
    }
    free = [facts for facts in clusters if labels_of_cluster(facts).get(names.WAVE_LABEL) not in labelled]
    found = []
    for wave in waves:
        if wave in groups:
            taken = groups[wave]
        else:
            count = len(free)
            if wave != REST:
                count = math.ceil(len(clusters) * int(wave[:-1]) / 100) if wave.endswith("%") else int(wave)
            taken, free = free[:count], free[count:]
        if taken:
            found.append(Wave(wave, tuple(taken)))
    return found


class CommitOrder:
    """Distinguishes commits before an awaited one from that commit and later ones, which are all that it knows.

    `heads` returns the newest commits of the remote; it is asked in each round, since Fleet may reach a head only after
    others have followed it.
    """

    def __init__(
        self,
        awaited: Collection[str],
        heads: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._known = set(awaited)
        self._heads, self._clock = heads, clock
        self._again = 0.0

    def may_be_before(self, commit: str, _awaited: str) -> bool:
        """Whether a commit is not known to be the awaited one or later."""
        if self._clock() >= self._again:
            self._again = self._clock() + _INTERVAL
            with contextlib.suppress(GitError):
                self._known.update(self._heads())
        return commit not in self._known


async def until_ready(
    client: ApiClient,
    wanted: Mapping[Key, ExpectedBundles],
    is_before: Callable[[str, str], bool],
    seconds: float,
    report: Callable[[int], None] = lambda _ready: None,
) -> dict[Key, Report]:
    """Wait until Fleet has applied the bundles of all clusters; return those that it has not after `seconds`.

    `report` is called with the number of ready clusters whenever it changes. Raises ApiError if Bundles cannot be
    listed.
    """
    deadline = time.monotonic() + seconds
    reported = -1
    while True:
        try:
            reports = await reports_of(client, wanted, is_before)
        except (Unreachable, TooManyRequests):
            reports = dict.fromkeys(wanted, Report(("the management cluster does not answer",)))
        waiting = {key: found for key, found in reports.items() if not found.ready}
        if (ready := len(wanted) - len(waiting)) != reported:
            reported = ready
            report(ready)
        if not waiting or time.monotonic() >= deadline:
            return waiting
        await asyncio.sleep(min(_INTERVAL, max(0.05, deadline - time.monotonic())))


async def reports_of(
    client: ApiClient, wanted: Mapping[Key, ExpectedBundles], is_before: Callable[[str, str], bool]
) -> dict[Key, Report]:
    """Return what Fleet says of the bundles of clusters. Raises ApiError, Unreachable."""
    bundles = {}
    git_repos: dict[str, list[Obj]] = {}
    for workspace in sorted({one.workspace for one in wanted.values()}):
        async for obj in _pages(client, FLEET_BUNDLES, workspace, BUNDLE_LABEL):
            bundles[workspace, obj["metadata"]["name"]] = slim_bundle(obj)
        # They only explain; an account need not read them.
        with contextlib.suppress(ApiError):
            git_repos[workspace] = [slim_git_repo(obj) async for obj in _pages(client, FLEET_GIT_REPOS, workspace)]
    found = {}
    for key, one in wanted.items():
        own = {bundle: bundles.get((one.workspace, name)) for bundle, name in one.bundles}
        repos = git_repos.get(one.workspace)
        readers = None if repos is None else [repo for repo in repos if reads(repo, one.folder)]
        found[key] = evaluate(own, readers, one, is_before)
    return found


async def _pages(client: ApiClient, kind: Resource, namespace: str, selector: str = "") -> AsyncIterator[Obj]:
    token = ""
    while True:
        page = await client.list(kind, namespace, label_selector=selector, limit=_PAGE, continue_token=token)
        for obj in page["items"]:
            yield obj
        if not (token := page["metadata"].get("continue", "")):
            return
