"""Fixtures for all tests, and what runs those that are coroutines."""

import asyncio
import functools
import gc
import inspect
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from tests.support import scheduling, virtualtime
from tests.support.paths import CHECKOUT, SHARED_CRDS

# API servers spend a third of their time on garbage. With a quarter of the collections each takes 450 MiB more; the
# limit keeps those of long tests below a gibibyte.
os.environ.setdefault("GOGC", "400")
os.environ.setdefault("GOMEMLIMIT", "1GiB")
# With more workers than cores a second thread of a server takes CPU time, for its coordination, and saves none.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("GOMAXPROCS", "1")

# On a busy machine any example may take long. `make test-long` tries many more.
_EXAMPLES = 500 if os.environ.get("CAPHV_TEST_LONG") else 30
settings.register_profile("caphv", max_examples=_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("caphv")

# Tests and stand-ins read thousands of files: libyaml's parser takes a tenth of the time.
setattr(yaml, "SafeLoader", yaml.CSafeLoader)  # noqa: B010 - mypy knows it as a class of its own


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The top folder of the checkout."""
    return CHECKOUT


@pytest.fixture(scope="session")
def shared_crds() -> Path:
    """The folder with the CRDs of others; skips the test if it does not exist."""
    if not SHARED_CRDS.is_dir():
        pytest.skip("the CRDs of others are not here")
    return SHARED_CRDS


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of one test, for fixtures that need it too."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Distribute tests as `support/scheduling.py` says, with --dist=loadgroup."""
    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False
    return scheduling.GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long variants, unless they are asked for; begin with the slowest tests, so that they end in time."""
    if not os.environ.get("CAPHV_TEST_LONG"):
        long = [item for item in items if item.get_closest_marker("long")]
        if long:
            config.hook.pytest_deselected(items=long)
            items[:] = [item for item in items if item not in long]
    if config.getoption("dist", "no") == "loadgroup":
        key = scheduling.slowest_first(item.nodeid for item in items)
        items.sort(key=lambda item: key(item.nodeid))


def pytest_collection_finish() -> None:
    """Let collections of garbage visit what tests make, not also all modules and tests, and less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine in an event loop of its own: that of its fixtures, or one in virtual time, where asked for."""
    test = pyfuncitem.obj
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
    if pyfuncitem.get_closest_marker("virtual_time"):
        run = virtualtime.run
    elif "runner" in pyfuncitem.funcargs:
        run = pyfuncitem.funcargs["runner"].run
    if hypothesis := getattr(test, "hypothesis", None):
        # Each example has a loop of its own.
        if inspect.iscoroutinefunction(inner := hypothesis.inner_test):
            hypothesis.inner_test = functools.wraps(inner)(lambda *args, **kwargs: run(inner(*args, **kwargs)))
        return None
    if not inspect.iscoroutinefunction(test):
        return None
    run(test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}))
    return True
