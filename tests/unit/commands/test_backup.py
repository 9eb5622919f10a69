"""`caphv backup`: what it says about the files that it wrote, and a backup each night."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from caphv.api.objectid import id_of
from commands import backup as command
from commands.main import cli
from overview.backup import reading
from overview.backup.files import Backup, Origin
from tests.support.backup import whole_cluster

pytestmark = pytest.mark.unit


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls the command for a management cluster with one cluster."""
    objects = {id_of(obj): obj for obj in whole_cluster()}

    @asynccontextmanager
    async def client(*_: object) -> AsyncIterator[None]:
        yield

    async def read_backup(*_: object) -> Backup:
        return Backup(Origin("b", "2026-11-22T02:00:07Z", "https://10.0.0.5:6443", "u"), ("team/shop",), objects)

    def call(*words: str) -> Result:
        return CliRunner().invoke(cli, ["backup", "-A", *words], prog_name="caphv")

    monkeypatch.setattr(command, "management_client", client)
    monkeypatch.setattr(reading, "read_backup", read_backup)
    monkeypatch.setenv("CAPHV_BACKUP_PASSPHRASE", "correct horse battery")
    monkeypatch.chdir(tmp_path)
    return call


def test_encrypted_files_need_a_passphrase_that_is_kept(saved: Callable[..., Result]) -> None:
    result = saved("today")
    assert result.exit_code == 0, result.output
    assert "encrypted. Keep the passphrase elsewhere" in result.output


def test_plain_files_have_no_passphrase(saved: Callable[..., Result]) -> None:
    result = saved("today", "--unencrypted")
    assert result.exit_code == 0, result.output
    assert "passphrase" not in result.output
    assert "in plain text. Everybody who can read the files gets all Secrets" in result.output
