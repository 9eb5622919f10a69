"""Fixtures of all unit tests."""

from __future__ import annotations

import functools

import pytest
from click.testing import CliRunner


@pytest.fixture(autouse=True)
def crashes_of_commands_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise what a command does not catch: its exit status would be 1, like that of a failure that it reports."""
    monkeypatch.setattr(CliRunner, "invoke", functools.partialmethod(CliRunner.invoke, catch_exceptions=False))
