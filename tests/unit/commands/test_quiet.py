"""Commands that hide log lines leave the process as they found it: who calls them may run others, as tests do."""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import pytest

from caphv.runtime.errors import Unreachable
from commands.output.quiet import quiet
from tests.support.commandservers import Servers
from tests.support.packager.commands import manifest, write

pytestmark = pytest.mark.unit


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    return Servers(monkeypatch, tmp_path)


def levels() -> dict[str, int]:
    """The levels that were set for loggers."""
    found = {name: logging.getLogger(name).level for name in list(logging.root.manager.loggerDict)}
    return {name: level for name, level in found.items() if level}


def test_lines_are_hidden_until_the_block_ends(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("caphv.runtime.any")
    with quiet("caphv.runtime", logging.CRITICAL):
        log.error("hidden")
    log.error("shown")
    assert caplog.messages == ["shown"]


@pytest.mark.parametrize(
    "words",
    [
        ("status", "-A", "--watch"),
        ("status", "-A", "--serve", "--bind-address", "127.0.0.1:0"),
        ("bundles", "render", "CLUSTERS"),
        ("packager", "sync", "--source-folder", "nowhere", "--folder", "nowhere"),
    ],
)
def test_no_level_of_a_logger_outlives_a_command(servers: Servers, words: tuple[str, ...], tmp_path: Path) -> None:
    clusters = write(tmp_path / "clusters", manifest("a"))
    servers.management.errors["discover"] = Unreachable("https://management:6443: no answer")
    before = levels()
    servers.caphv(*(word.replace("CLUSTERS", str(clusters)) for word in words))
    assert levels() == before


def test_garbage_is_collected_after_a_command_that_cannot_read(servers: Servers) -> None:
    servers.management.errors["discover"] = Unreachable("https://management:6443: no answer")
    assert servers.caphv("status", "-A").exit_code == 2
    assert gc.isenabled()
