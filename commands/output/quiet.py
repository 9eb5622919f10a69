"""Log lines that a command hides, because its output says the same."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import click


@contextlib.contextmanager
def quiet(logger: str, least: int) -> Iterator[None]:
    """Hide the lines of a logger below a level until the block ends: who calls a command may want them later."""
    target = logging.getLogger(logger)
    before = target.level
    target.setLevel(least)
    try:
        yield
    finally:
        target.setLevel(before)


def quiet_publishing() -> None:
    """Hide warnings about commits while a command runs, whose output lists what was changed and what was skipped."""
    click.get_current_context().with_resource(quiet("packager.git.publish", logging.ERROR))
