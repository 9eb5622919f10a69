"""Hide log lines of which a command's output says the same."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import click


@contextlib.contextmanager
def quiet(logger: str, least: int) -> Iterator[None]:
    """Hide lines of a logger below a level until the block ends."""
    target = logging.getLogger(logger)
    before = target.level
    target.setLevel(least)
    try:
        yield
    finally:
        target.setLevel(before)


def quiet_publishing() -> None:
    """Hide warnings about commits, because the command's output lists changed and skipped files."""
    click.get_current_context().with_resource(quiet("packager.planning.commitplan", logging.ERROR))
