"""A backup on disk: what is written, who may read it, and what half of it says."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key
from overview.backup import files
from overview.backup.files import Backup, BackupError, Origin
from overview.backup.graph import belongings
from overview.backup.order import missing_of
from overview.backup.sealing import Opener, Sealer, SealError
from tests.support.backup import CORE, made, whole_cluster

pytestmark = pytest.mark.unit

PASSPHRASE = "correct horse battery"


def a_backup() -> Backup:
    objects = belongings([Key("team", "shop")], whole_cluster()).objects
    return Backup(Origin("abc", "2026-11-22T12:00:00Z", "https://old:6443", "uid-old"), ("team/shop",), objects)


def never() -> str:
    raise AssertionError("asked for a passphrase")


@pytest.fixture(scope="module")
def sealer() -> Sealer:
    return Sealer(PASSPHRASE)


@pytest.mark.parametrize("encrypted", [True, False])
def test_what_is_written_is_read_back(tmp_path: Path, sealer: Sealer, encrypted: bool) -> None:
    backup = a_backup()
    files.write(tmp_path / "b", backup, sealer if encrypted else None)
    found = files.read(tmp_path / "b", (lambda: PASSPHRASE) if encrypted else never)
    assert found == backup
    assert missing_of(found) == {}


def test_files_are_the_owners_alone_and_hold_no_plain_text(tmp_path: Path, sealer: Sealer) -> None:
    files.write(tmp_path / "b", a_backup(), sealer)
    for path in [tmp_path / "b", *(tmp_path / "b").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
        assert path.is_dir() or b"eA==" not in path.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize("name", [".", "link", "empty"])
def test_an_empty_directory_is_filled_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(empty)
    monkeypatch.chdir(empty if name == "." else tmp_path)
    before, backup = empty.stat().st_ino, a_backup()
    files.write(Path(name), backup, None)
    # A shell in this directory sees it.
    assert (empty.stat().st_ino, stat.S_IMODE(empty.stat().st_mode)) == (before, 0o700)
    assert not list(empty.glob(".*"))
    assert files.read(Path(name), never) == backup


@pytest.mark.parametrize("name", ["absent/b", "file/b", "dangling"])
def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "absent" / "b")
    with pytest.raises(BackupError, match="is not a directory"):
        files.check_target(tmp_path / name)


def test_a_wrong_passphrase_and_a_used_directory_are_refused(tmp_path: Path, sealer: Sealer) -> None:
    files.write(tmp_path / "b", a_backup(), sealer)
    with pytest.raises(BackupError, match="the passphrase is wrong"):
        files.read(tmp_path / "b", lambda: "something else")
    with pytest.raises(BackupError, match="not an empty directory"):
        files.write(tmp_path / "b", a_backup(), sealer)
    (tmp_path / "b" / "team" / "empty").mkdir()
    with pytest.raises(BackupError, match="holds no backup"):
        files.read(tmp_path / "b" / "team" / "empty", never)


@pytest.mark.parametrize("encrypted", [True, False])
def test_half_a_backup_says_what_is_missing(tmp_path: Path, sealer: Sealer, encrypted: bool) -> None:
    files.write(tmp_path / "b", a_backup(), sealer if encrypted else None)
    suffix = ".sealed" if encrypted else ""
    folder = tmp_path / "b" / "team"
    (folder / "secret" / f"identity.json{suffix}").unlink()
    damaged = folder / "machine.cluster.x-k8s.io" / f"shop-0.json{suffix}"
    damaged.write_bytes(damaged.read_bytes()[:-20] + b"x" * 20)
    found = files.read(tmp_path / "b", lambda: PASSPHRASE)
    missing = missing_of(found)
    assert missing["Secret team/identity"] == "the file does not exist"
    assert "damaged" in missing["Machine team/shop-0"]
    assert len(missing) == 2


def test_without_its_index_a_backup_is_read_and_checked_by_references(tmp_path: Path) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    (tmp_path / "b" / "index.json").unlink()
    (tmp_path / "b" / "team" / "secret" / "identity.json").unlink()
    found = files.read(tmp_path / "b", never)
    assert missing_of(found) == {
        "the index of the backup": "the file does not exist",
        "Secret team/identity": "HarvesterCluster team/shop-x7k2p refers to it",
    }


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kind": 1}', b"[" * 10_000, b"caphv-backup/1 nonsense"])
def test_hostile_files_are_named_and_do_no_harm(tmp_path: Path, content: bytes) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    (tmp_path / "b" / "team" / "evil.json").write_bytes(content)
    found = files.read(tmp_path / "b", lambda: PASSPHRASE)
    assert list(found.unreadable) == ["team/evil.json"]
    (tmp_path / "b" / "index.json").write_bytes(content)
    assert "the index of the backup" in missing_of(files.read(tmp_path / "b", lambda: PASSPHRASE))


def test_a_forged_index_reads_no_other_files(tmp_path: Path) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    index = tmp_path / "b" / "index.json"
    (tmp_path / "outside.json").write_text('{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}')
    index.write_text(index.read_text().replace("team/secret/identity.json", "../outside.json"))
    found = files.read(tmp_path / "b", never)
    assert found.missing == {"Secret team/identity": "the file does not exist"}


@given(st.text(min_size=1, max_size=300))
def test_no_name_leaves_the_directory(name: str) -> None:
    obj = made(CORE, "Machine", name, namespace=name)
    (identity,) = [files.id_of(obj)]
    path = Path(files._path(identity))
    assert len(path.parts) == 3
    assert all(len(part.encode()) < 256 and part not in ("..", ".") and "\0" not in part for part in path.parts)


def test_every_changed_byte_is_noticed(sealer: Sealer) -> None:
    sealed = sealer.seal(b"content")
    opener = Opener(PASSPHRASE)
    assert opener.open(sealed) == b"content"
    assert sealer.seal(b"content") != sealed
    for position in (0, 20, len(sealed) - 30, len(sealed) - 1):
        changed = bytearray(sealed)
        changed[position] ^= 1
        with pytest.raises(SealError):
            opener.open(bytes(changed))
    with pytest.raises(SealError):
        opener.open(sealed[:-1])


def test_a_forged_cost_is_refused(sealer: Sealer) -> None:
    with pytest.raises(SealError, match="too much work"):
        Opener(PASSPHRASE).open(sealer.seal(b"x").replace(b"n=16", b"n=40"))
