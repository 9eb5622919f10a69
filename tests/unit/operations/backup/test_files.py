"""A backup on disk: what is written, who may read it, and what half of it says."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key
from operations.backup import files
from operations.backup.files import Backup, BackupError, Origin
from operations.backup.order import missing_of
from operations.backup.sealing import Opener, Sealer, SealError
from operations.read.graph import belongings
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
    found = files.read(tmp_path / "b", (lambda: PASSPHRASE) if encrypted else None)
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
    assert files.read(Path(name), None) == backup


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
    found = files.read(tmp_path / "b", (lambda: PASSPHRASE) if encrypted else None)
    missing = missing_of(found)
    assert missing["Secret team/identity"] == "the file does not exist"
    assert "damaged" in missing["Machine team/shop-0"]
    assert len(missing) == 2


@pytest.mark.parametrize("encrypted", [True, False])
def test_without_its_index_a_backup_is_refused(tmp_path: Path, sealer: Sealer, encrypted: bool) -> None:
    files.write(tmp_path / "b", a_backup(), sealer if encrypted else None)
    (tmp_path / "b" / ("index.json.sealed" if encrypted else "index.json")).unlink()
    with pytest.raises(BackupError, match="the file does not exist"):
        files.read(tmp_path / "b", (lambda: PASSPHRASE) if encrypted else None)


EVIL = '{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "identity", "namespace": "team"}}'


def add_file(folder: Path) -> None:
    (folder / "team" / "evil.json").write_text(EVIL)


def add_later_file(folder: Path) -> None:
    """One that sorts after the encrypted one of the same object, and so would replace it."""
    (folder / "team" / "secret" / "identity.jsonx.json").write_text(EVIL)


def add_plain_index(folder: Path) -> None:
    (folder / "index.json").write_text('{"format": 1, "origin": {"uid": "mine"}, "clusters": [], "objects": []}')


def add_encrypted_file_of_another(folder: Path) -> None:
    (folder / "team" / "evil.json.sealed").write_bytes(Sealer(PASSPHRASE).seal(EVIL.encode()))


def decrypt_object(folder: Path) -> None:
    (folder / "team" / "secret" / "identity.json.sealed").rename(folder / "team" / "secret" / "identity.json")


@pytest.mark.parametrize(
    "attack", [add_file, add_later_file, add_plain_index, add_encrypted_file_of_another, decrypt_object]
)
def test_an_encrypted_backup_with_any_other_file_is_refused(
    tmp_path: Path, sealer: Sealer, attack: Callable[[Path], None]
) -> None:
    files.write(tmp_path / "b", a_backup(), sealer)
    attack(tmp_path / "b")
    with pytest.raises(BackupError, match="added later"):
        files.read(tmp_path / "b", lambda: PASSPHRASE)


@pytest.mark.parametrize("replaced", ["index.json.sealed", "team/secret/identity.json.sealed"])
@pytest.mark.parametrize("forged", ["plain", "another passphrase", "another backup"])
def test_a_replaced_file_is_not_used(tmp_path: Path, sealer: Sealer, replaced: str, forged: str) -> None:
    files.write(tmp_path / "b", a_backup(), sealer)
    files.write(tmp_path / "other", a_backup(), Sealer(PASSPHRASE if forged == "another backup" else "a" * 12))
    content = (tmp_path / "other" / replaced).read_bytes()
    (tmp_path / "b" / replaced).write_bytes(EVIL.encode() if forged == "plain" else content)

    try:
        backup = files.read(tmp_path / "b", lambda: PASSPHRASE)
    except BackupError:
        assert "index" in replaced
    else:
        assert list(backup.missing) == ["Secret team/identity"]


def test_a_plain_backup_needs_an_explicit_option_and_nothing_asks_for_a_passphrase(tmp_path: Path) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    with pytest.raises(BackupError, match="--unencrypted"):
        files.read(tmp_path / "b", never)
    files.write(tmp_path / "sealed", a_backup(), Sealer(PASSPHRASE))
    with pytest.raises(BackupError, match="leave out --unencrypted"):
        files.read(tmp_path / "sealed", None)


def test_kinds_that_no_backup_has_are_not_read(tmp_path: Path) -> None:
    backup = a_backup()
    evil = made("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "evil", namespace="")
    backup.objects[files.id_of(evil)] = evil
    files.write(tmp_path / "b", backup, None)
    assert list(files.read(tmp_path / "b", None).missing) == ["ClusterRoleBinding evil"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kind": 1}', b"[" * 10_000, b"caphv-backup/1 nonsense"])
def test_hostile_files_are_named_and_do_no_harm(tmp_path: Path, content: bytes) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    (tmp_path / "b" / "team" / "secret" / "identity.json").write_bytes(content)
    assert list(files.read(tmp_path / "b", None).missing) == ["Secret team/identity"]
    (tmp_path / "b" / "index.json").write_bytes(content)
    with pytest.raises(BackupError) as caught:
        files.read(tmp_path / "b", None)
    assert str(caught.value).count("index.json") == 1


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    read = Path.read_bytes

    def fail(path: Path) -> bytes:
        if path.name == "identity.json":
            raise OSError(5, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fail)
    missing = files.read(tmp_path / "b", None).missing
    assert missing == {"Secret team/identity": "cannot be read: Input/output error"}
    (tmp_path / "b" / "team" / "secret" / "identity.json").unlink()
    assert files.read(tmp_path / "b", None).missing == {"Secret team/identity": "the file does not exist"}


@pytest.mark.parametrize("name", ["../outside.json", "/etc/outside.json", "team/../../outside.json"])
def test_a_forged_index_reads_no_other_files(tmp_path: Path, name: str) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    index = tmp_path / "b" / "index.json"
    index.write_text(index.read_text().replace("team/secret/identity.json", name))
    with pytest.raises(BackupError, match="not the index of a backup"):
        files.read(tmp_path / "b", None)


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    files.write(tmp_path / "b", a_backup(), None)
    file = tmp_path / "b" / "team" / "secret" / "identity.json"
    file.rename(tmp_path / "outside.json")
    file.symlink_to(tmp_path / "outside.json")
    assert files.read(tmp_path / "b", None).missing == {"Secret team/identity": "is not a file of a backup"}


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
