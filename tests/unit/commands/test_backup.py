"""`caphv backup`: what it says about the files that it wrote, and a backup each night."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from caphv.api import parking
from caphv.api.objectid import id_of
from commands import backup as command
from commands.main import cli
from operations.backup import reading
from operations.backup.files import Backup, Origin
from tests.support import doccommands
from tests.support.backup import whole_cluster
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Calls the command for a management cluster with one cluster."""
    objects = {id_of(obj): obj for obj in whole_cluster()}

    @asynccontextmanager
    async def client(*_: object) -> AsyncIterator[None]:
        yield

    async def read_backup(*_: object, with_pools: bool) -> Backup:
        backup = Backup(Origin("b", "2026-11-22T02:00:07Z", "https://10.0.0.5:6443", "u"), ("team/shop",), objects)
        head = {"apiVersion": "loadbalancer.harvesterhci.io/v1beta1", "kind": "IPPool"}
        pool = {**head, "metadata": {"name": "machines"}, "spec": {}}
        return replace(backup, pools={"https://harvester:6443": [pool]} if with_pools else {})

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
    assert "in plain text. Anyone who can read the files gets all Secrets" in result.output


PAGE = CHECKOUT / "docs" / "tasks" / "backup-and-restore.md"
NIGHTS = ("2026-11-22", "2026-11-23")


def documented() -> list[list[str]]:
    """Every `caphv backup` of the page that saves all clusters; `substituted` is the date."""
    every = (words for block in doccommands.blocks(PAGE) for words in doccommands.commands(block))
    return [words for words in every if words[:3] == ["caphv", "backup", "-A"]]


def test_the_documented_backup_succeeds_every_night(saved: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "backups").mkdir()
    (tmp_path / "passphrase").write_text("correct horse battery")
    words, *others = documented()
    assert others == [words]
    for night in NIGHTS:
        place, option, _ = (word.replace("substituted", night) for word in words[3:])
        result = saved(place, option, str(tmp_path / "passphrase"))
        assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "backups").iterdir()) == sorted(NIGHTS)


def test_the_nightly_script_keeps_the_newest_thirty_and_reports_success_only(tmp_path: Path) -> None:
    """With `caphv` and the heartbeat replaced: a directory that exists, or a wish of the test, makes it fail."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "date": 'echo "$NIGHT"',
        "caphv": '[ -z "$FAILS" ] && mkdir "$3"',
        "curl": 'echo "$NIGHT" >> called',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (script,) = (block for block in doccommands.blocks(PAGE) if block.startswith("set -e"))
    script = script.replace("/var/backups/caphv", str(tmp_path))

    def night(date: str, fails: str = "") -> int:
        env = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "NIGHT": date, "FAILS": fails}
        return subprocess.run(["sh"], input=script, env=env, text=True, check=False, capture_output=True).returncode

    days = [f"2026-10-{day:02}" for day in range(1, 32)]
    assert [night(day) for day in (days[0], days[1])] == [0, 0]
    for day in days[2:]:
        (tmp_path / "backups" / day).mkdir()
    (tmp_path / "backups" / "letters").mkdir()
    assert night("2026-11-01", "yes") == 1
    assert (tmp_path / "backups" / days[0]).exists()
    assert night("2026-11-02") == 0
    kept = sorted(path.name for path in (tmp_path / "backups").iterdir())
    assert kept == [*days[2:], "2026-11-02", "letters"]
    assert (tmp_path / "called").read_text().split() == [*days[:2], "2026-11-02"]


def test_a_backup_needs_clusters_and_a_directory() -> None:
    result = CliRunner().invoke(cli, ["backup", "shop"], prog_name="caphv")
    assert result.exit_code == 2
    assert "caphv backup shop DIR" in result.output


def test_a_backup_names_a_cluster_that_is_parked(saved: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "parked" not in saved("today", "--unencrypted").output
    monkeypatch.setattr(parking, "concerns", lambda _: True)
    output = saved("tomorrow", "--unencrypted").output
    assert "parked: team/shop: a restore keeps it parked; to have it run, then caphv resume team/shop" in output


def test_ip_pools_are_saved_on_request_and_counted(saved: Callable[..., Result], tmp_path: Path) -> None:
    assert "IPPool" not in saved("without", "--unencrypted").output
    result = saved("with", "--ip-pools", "--unencrypted")
    assert result.exit_code == 0, result.output
    assert "1  IPPool of Harvester https://harvester:6443" in result.output
    assert [file.name for file in tmp_path.glob("with/harvester-1/*/*.json")] == ["machines.json"]


@pytest.mark.parametrize("is_dry", [False, True])
def test_data_says_what_was_saved(saved: Callable[..., Result], tmp_path: Path, is_dry: bool) -> None:
    result = saved("today", "--unencrypted", "-o", "json", *(["--dry-run"] if is_dry else []))
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["items"] == [{"cluster": "team/shop", "applied": not is_dry}]
    assert (content["directory"], content["objects"]["Cluster"], content["unseen"]) == ("today", 1, [])
    assert (content["files"] > 0) is (tmp_path / "today").exists() is not is_dry
