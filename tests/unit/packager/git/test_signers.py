"""The list of signers: what it may hold, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.git.errors import InvalidRemote
from packager.git.signers import Signers

pytestmark = pytest.mark.unit
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIC9hLDl0eQ2yLFKsAtsAS0Tn7ib+QpABu7Vi0G9hcUWN"
PGP = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nmDMEaSx\n-----END PGP PUBLIC KEY BLOCK-----\n"


def test_a_mounted_secret_may_hold_several_lists_and_keys(tmp_path: Path) -> None:
    data = tmp_path / "..data"
    data.mkdir()
    contents = {"alice": f"# Alice\n\nalice {KEY}\n", "bob": f'bob,b namespaces="git" {KEY} laptop\n', "pgp.asc": PGP}
    for name, content in contents.items():
        (data / name).write_text(content)
        (tmp_path / name).symlink_to(f"..data/{name}")
    signers = Signers.read(tmp_path)
    assert [line.split()[0] for line in signers.ssh.splitlines() if KEY in line] == ["alice", "bob,b"]
    assert signers.openpgp == PGP


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must hold the key of at least one signer"),
        (b"# empty\n", "must hold the key of at least one signer"),
        (KEY.encode(), "line 1 must be of the form: alice@example.com ssh-ed25519"),
        (b"alice ssh-ed25519\n", "line 1 must be of the form"),
        (b"password\n", "line 1 must be of the form"),
        (b"\x99\x01\x0d\x04", "must be text: export OpenPGP keys with gpg --armor --export"),
        (b"#" * (1024 * 1024 + 1), "has more than 1,048,576 bytes"),
    ],
)
def test_a_list_without_a_key_or_with_other_lines_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "allowed_signers"
    path.write_bytes(content)
    for place in (path, tmp_path):
        with pytest.raises(InvalidRemote, match=message) as error:
            Signers.read(place)
        assert "password" not in str(error.value)


def test_a_list_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRemote, match="cannot be read: No such file"):
        Signers.read(tmp_path / "gone")


def write_config(signers: Signers, folder: Path) -> None:
    private = folder / "private"
    private.mkdir()
    signers.write_config(private)


@pytest.mark.parametrize(
    ("signers", "program"),
    [(Signers(openpgp=PGP), "OpenPGP keys need gpg"), (Signers(KEY), "SSH keys need ssh-keygen")],
)
def test_without_the_program_that_verifies_the_error_names_the_image_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signers: Signers, program: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(InvalidRemote, match=f"{program}, which is not in the PATH: use the packager's image"):
        write_config(signers, tmp_path)


def test_only_the_programs_of_the_formats_in_the_list_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh-keygen").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(programs))
    write_config(Signers(f"alice {KEY}"), tmp_path)


def test_keys_that_gpg_refuses_are_explained(tmp_path: Path) -> None:
    with pytest.raises(InvalidRemote, match="gpg does not take the keys: export them with gpg --armor --export"):
        write_config(Signers(openpgp=PGP), tmp_path)
