"""No field of a review, however long, large or deep, holds up the webhook's event loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.heartbeat import SECONDS, slowness
from tests.support.reviews import EXAMPLES, request, review
from webhooks import handler

pytestmark = pytest.mark.unit

LONG = ("a" * 1_000_000, "1" * 1_000_000, "a: [" * 200_000, "- a\n" * 15_000, "10.0.0.1/" * 100_000)
KINDS = sorted(kind for kind, version in EXAMPLES if version == "v1beta1")


def values(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield each value of an object with its path."""
    yield path, value
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in children:
        yield from values(child, (*path, name))


def replaced(value: Any, path: tuple[str | int, ...], new: Any) -> Any:
    """Return the object with another value at a path."""
    if not path:
        return new
    if isinstance(value, list):
        return [replaced(child, path[1:], new) if place == path[0] else child for place, child in enumerate(value)]
    return {**value, path[0]: replaced(value[path[0]], path[1:], new)}


def worst(value: Any) -> Iterator[Any]:
    """Yield what is of the same type, and as large as an API server takes."""
    if isinstance(value, str):
        yield from LONG
    elif isinstance(value, list):
        yield (value or ["a"]) * 2000
    elif isinstance(value, dict):
        yield {f"key{number}": next(iter(value.values()), 1) for number in range(3000)}
    elif isinstance(value, int):
        yield 10**18


@pytest.mark.parametrize("kind", KINDS)
def test_the_worst_value_of_each_field_is_answered_in_time(kind: str) -> None:
    example, target = EXAMPLES[kind, "v1beta1"], handler.TARGETS[handler.path_of("validate", "v1beta1", kind)]
    handler.answer(target, review(request(kind, object=example)))
    for path, value in values(example):
        for large in worst(value):
            body = review(request(kind, object=replaced(example, path, large)))
            if len(body) > handler.MAX_BODY:
                continue
            seconds = seconds_of(target, body)
            if seconds > SECONDS:
                # Again: another process may have had the processor's caches, or a part of its core.
                seconds = min(seconds_of(target, body) / slowness() for _ in range(3))
            assert seconds <= SECONDS, f"{seconds:.3f} s for {len(body)} bytes at {path}"


def seconds_of(target: handler.Target, body: bytes) -> float:
    """Return the CPU time of an answer."""
    started = time.thread_time()
    with contextlib.suppress(handler.BadReview):
        handler.answer(target, body)
    return time.thread_time() - started
