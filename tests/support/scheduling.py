"""Which tests run on one worker, and in which order workers take them: the slowest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.support.paths import CHECKOUT

SLOW_TESTS = CHECKOUT / ".ci" / "slow-tests"
# Each test of these modules brings its own sandbox: one worker a test.
SPLIT = {"tests/e2e/test_clusterclasses.py", "tests/e2e/test_lifecycle.py"}
# Modules that share what takes long to start: one worker for all of them.
TOGETHER: dict[str, str] = {}
# Seconds of a test that is not listed as slow, on average: a module of many tests is slow, too.
ORDINARY = 2.0


def group_of(nodeid: str) -> str:
    """Name the tests that a test shares its worker with."""
    module = nodeid.partition("::")[0]
    return nodeid if module in SPLIT else TOGETHER.get(module, module)


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


class GroupScheduling(LoadScopeScheduling):
    """Gives groups of tests to workers, in the order in which the workers collected them."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
