"""What fixtures of several test modules need."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def entered(manager: AbstractAsyncContextManager[T], runner: asyncio.Runner) -> Iterator[T]:
    """Enter an asynchronous context manager for as long as the block lasts, in the loop of the test."""
    value = runner.run(manager.__aenter__())
    try:
        yield value
    except BaseException:
        runner.run(manager.__aexit__(*sys.exc_info()))
        raise
    runner.run(manager.__aexit__(None, None, None))
