"""Decide which tests share a worker, and in which order workers take them: the slowest first.

Tests of one folder share API servers or a sandbox, which end when their worker runs a test of another folder. A worker
therefore runs all groups of a folder before it takes another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Modules that share what takes long to make: one worker for all of them.
TOGETHER = {"tests/e2e/test_image.py": "image", "tests/e2e/test_pod.py": "image"}
# Rough seconds of a test. With measured seconds of each module, the last worker of `make test` would
# end 14 s earlier, by simulation; with 2 s for every test, 27 s later.
END_TO_END, OTHER = 30.0, 2.0


def group_of(nodeid: str) -> str:
    """Name the tests that a test shares its worker with."""
    module = nodeid.partition("::")[0]
    return TOGETHER.get(module, module)


def folder_of(group: str) -> str:
    """Name the groups that share a folder's fixtures: a folder of integration or e2e tests, or the group alone."""
    folder = group.partition("::")[0].rpartition("/")[0]
    return folder if folder.startswith(("tests/integration/", "tests/e2e/")) else group


def seconds_of_groups(nodeids: Iterable[str]) -> dict[str, float]:
    """Estimate how long the groups of these tests take."""
    groups: dict[str, float] = {}
    for nodeid in nodeids:
        seconds = END_TO_END if nodeid.startswith("tests/e2e/") else OTHER
        groups[group_of(nodeid)] = groups.get(group_of(nodeid), 0.0) + seconds
    return groups


def slowest_first(nodeids: Iterable[str]) -> Callable[[str], float]:
    """Return a key that sorts tests by the seconds of their group, the slowest first."""
    groups = seconds_of_groups(nodeids)
    return lambda nodeid: -groups[group_of(nodeid)]


def next_group(waiting: dict[str, float], last: str | None, taken: Counter[str], workers: int) -> str:
    """Choose a worker's next group: in the folder of its last one, else in the folder with the most work.

    `waiting` has the seconds of each group, in order; `taken` counts the workers in each folder. Each further worker
    in a folder starts API servers of its own. So it only takes part in a folder that keeps each of its workers busy for
    longer than the share of all work that falls to one of the `workers`.
    """
    work: dict[str, float] = {}
    for group, seconds in waiting.items():
        work[folder_of(group)] = work.get(folder_of(group), 0.0) + seconds
    folder = folder_of(last) if last else ""
    if folder not in work:
        share = sum(work.values()) / workers
        open_ = [name for name, left in work.items() if not taken[name] or left / taken[name] > share]
        folder = max(open_ or work, key=lambda name: work[name] / (taken[name] + 1))
    return next(group for group in waiting if folder_of(group) == folder)


class GroupScheduling(LoadScopeScheduling):
    """Gives groups of tests to workers; each worker stays in a folder as long as there is work in it."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _reschedule(self, node: WorkerController) -> None:
        # A worker needs its next group when it begins its last test. Two tests before the end, as xdist would have it,
        # the longest of the groups may wait for a worker that is busy for another minute.
        if node.shutting_down or not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        waiting: dict[str, float] = {}
        for tests in self.workqueue.values():
            waiting |= seconds_of_groups(tests)
        last = {worker: next(reversed(work), None) for worker, work in self.assigned_work.items()}
        taken = Counter(folder_of(group) for worker, group in last.items() if group and worker is not node)
        chosen = next_group(waiting, last[node], taken, len(self.assigned_work))
        self.workqueue.move_to_end(chosen, last=False)
        super()._assign_work_unit(node)
