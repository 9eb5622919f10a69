"""The provider of a sandbox starts again when it has lost its Lease, and ends with any other status."""

import os
import runpy
import sys
from typing import NoReturn

import pytest

from sandbox import provider

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("status", "starts_again"), [(3, True), (1, False), (0, False)])
def test_a_lost_lease_starts_the_same_command_again(
    monkeypatch: pytest.MonkeyPatch, status: int, starts_again: bool
) -> None:
    def end(*_: object, **__: object) -> NoReturn:
        sys.exit(status)

    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(runpy, "run_module", end)
    monkeypatch.setattr(os, "execv", lambda program, words: started.append((program, words)))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "sandbox.provider", "run"])
    with pytest.raises(SystemExit) as ended:
        provider.main()
    assert ended.value.code == status
    assert started == ([(sys.executable, ["python", "-m", "sandbox.provider", "run"])] if starts_again else [])
