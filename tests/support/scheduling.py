"""Which tests run on one worker, and in which order workers take them: the slowest first.

Integration tests of one folder share API servers, which end when their worker runs a test of another folder. A worker
therefore runs all groups of a folder before it takes another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.support.paths import CHECKOUT

SLOW_TESTS = CHECKOUT / ".ci" / "slow-tests"
# Modules that share what takes long to make: one worker for all of them.
TOGETHER = {"tests/e2e/test_image.py": "image", "tests/e2e/test_pod.py": "image"}
# Seconds of a test that is not listed as slow, on average: a module of many tests is slow, too.
ORDINARY = 2.0


def group_of(nodeid: str) -> str:
    """Name the tests that a test shares its worker with."""
    module = nodeid.partition("::")[0]
    return TOGETHER.get(module, module)


def folder_of(group: str) -> str:
    """Name the groups that share a folder's fixtures: a folder of integration tests, or the group alone."""
    folder = group.partition("::")[0].rpartition("/")[0]
    return folder if folder.startswith("tests/integration/") else group


def slow_tests(path: Path = SLOW_TESTS) -> dict[str, float]:
    """Seconds of the tests that are allowed to be slow, by name: `package.module.test`."""
    lines = (line.partition("#")[0].split() for line in path.read_text(encoding="utf-8").splitlines())
    return {words[0]: float(words[1]) for words in lines if words}


def seconds_of(nodeid: str, slow: dict[str, float]) -> float:
    """Tell how long a test takes, as far as it is listed."""
    path, _, name = nodeid.partition("::")
    return slow.get(
        f"{path.removesuffix('.py').replace('/', '.')}.{name.partition('[')[0].replace('::', '.')}", ORDINARY
    )


def slowest_first(nodeids: Iterable[str]) -> Callable[[str], float]:
    """Make the key that sorts tests by what their group takes, the slowest first."""
    slow, weights = slow_tests(), dict[str, float]()
    for nodeid in nodeids:
        weights[group_of(nodeid)] = weights.get(group_of(nodeid), 0.0) + seconds_of(nodeid, slow)
    return lambda nodeid: -weights[group_of(nodeid)]


def next_group(waiting: dict[str, float], last: str | None, taken: Counter[str]) -> str:
    """Choose a worker's next group: in the folder of its last one, else in the folder with the most work.

    `waiting` has the seconds of each group, in order; `taken` counts the workers in each folder. A second worker takes
    part in a folder once every folder has one.
    """
    work: dict[str, float] = {}
    for group, seconds in waiting.items():
        work[folder_of(group)] = work.get(folder_of(group), 0.0) + seconds
    folder = folder_of(last) if last else ""
    if folder not in work:
        folder = max(work, key=lambda name: (not taken[name], work[name] / (taken[name] + 1)))
    return next(group for group in waiting if folder_of(group) == folder)


class GroupScheduling(LoadScopeScheduling):
    """Gives groups of tests to workers; each worker stays in a folder as long as there is work in it."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        slow = slow_tests()
        waiting = {group: sum(seconds_of(nodeid, slow) for nodeid in tests) for group, tests in self.workqueue.items()}
        last = {worker: next(reversed(work), None) for worker, work in self.assigned_work.items()}
        taken = Counter(folder_of(group) for worker, group in last.items() if group and worker is not node)
        self.workqueue.move_to_end(next_group(waiting, last[node], taken), last=False)
        super()._assign_work_unit(node)
