"""Credentials come from a Secret or the environment, and never show."""

import base64
import stat
from pathlib import Path

import pytest

from packager.git.credentials import Credentials, hand_over
from packager.git.errors import InvalidRemote
from packager.git.remote import Remote

pytestmark = pytest.mark.unit
CANARY = "c4nary/+ ü"


def encoded(**values: str) -> dict[str, str]:
    return {key.replace("_", "-"): base64.b64encode(value.encode()).decode() for key, value in values.items()}


def test_secrets_as_fleet_takes_them() -> None:
    assert Credentials.from_secret(encoded(username="u", password="p")) == Credentials(username="u", password="p")
    data = {**encoded(ssh_privatekey="KEY"), "known_hosts": base64.b64encode(b"host key").decode()}
    assert Credentials.from_secret(data) == Credentials(ssh_key="KEY", known_hosts="host key")
    assert Credentials.from_secret({"cacerts": base64.b64encode(b"PEM").decode()}) == Credentials(ca_bundle="PEM")


@pytest.mark.parametrize("data", [{}, {"token": "eA=="}, {"password": CANARY}, {"password": "/w=="}])
def test_bad_secrets_name_the_key_only(data: dict[str, str]) -> None:
    with pytest.raises(InvalidRemote) as error:
        Credentials.from_secret(data)
    assert error.value.findings[0].field.startswith("data")
    assert CANARY not in str(error.value)


def test_a_mounted_secret(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "password").write_text(CANARY)
    (tmp_path / "password").symlink_to("..data/password")
    (tmp_path / "username").write_text("u")
    assert Credentials.from_folder(tmp_path) == Credentials(username="u", password=CANARY)
    (tmp_path / "ca.crt").write_bytes(b"\xff")
    (tmp_path / "known_hosts").mkdir()
    with pytest.raises(InvalidRemote, match="known_hosts: Invalid value: cannot be read") as error:
        Credentials.from_folder(tmp_path)
    assert CANARY not in str(error.value)


def test_environment(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("KEY")
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text("host key")
    environ = {"CAPHV_GIT_PASSWORD": "p", "CAPHV_GIT_SSH_KEY_FILE": str(tmp_path / "key"), "HOME": str(tmp_path)}
    assert Credentials.from_environment(environ) == Credentials(password="p", ssh_key="KEY", known_hosts="host key")
    missing = {"CAPHV_GIT_CA_FILE": str(tmp_path / "none"), "CAPHV_GIT_SSH_KEY_FILE": str(tmp_path)}
    with pytest.raises(InvalidRemote) as error:
        Credentials.from_environment(missing)
    assert {finding.field for finding in error.value.findings} == set(missing)


def test_unreadable_known_hosts_of_the_user_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A container may run with any user, and with the home of another one. https needs no known hosts.
    def refuse(path: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").touch()
    monkeypatch.setattr(Path, "read_text", refuse)
    environ = {"CAPHV_GIT_PASSWORD": "p", "HOME": str(tmp_path)}
    assert Credentials.from_environment(environ) == Credentials(password="p")


def test_line_feed_at_the_end_of_a_variable_is_no_part_of_it() -> None:
    # A Secret of `echo token | base64`, from which a Pod gets the variable, has one.
    environ = {"CAPHV_GIT_USERNAME": "u\n", "CAPHV_GIT_PASSWORD": f"{CANARY}\r\n", "HOME": "/nonexistent"}
    assert Credentials.from_environment(environ) == Credentials(username="u", password=CANARY)


def test_representation_shows_names_only() -> None:
    credentials = Credentials(username=CANARY, password=CANARY, ssh_key=CANARY, proxy=f"http://u:{CANARY}@host")
    assert repr(credentials) == "Credentials(username, password, ssh_key, proxy)"


def test_files_are_private_and_go(tmp_path: Path) -> None:
    credentials = Credentials(username="u", password=CANARY, ca_bundle="PEM")
    with hand_over(Remote("https://host:8443/a.git"), credentials, tmp_path) as (variables, settings):
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert {path.name for path in files} == {"credentials", "ca.crt"}
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
        assert stat.S_IMODE(files[0].parent.stat().st_mode) == 0o700
        store = next(path for path in files if path.name == "credentials")
        assert store.read_text() == "https://u:c4nary%2F%2B%20%C3%BC@host:8443\n"
        assert CANARY not in str((variables, settings))
    assert list(tmp_path.iterdir()) == []


def test_passwords_are_for_http_and_keys_for_ssh(tmp_path: Path) -> None:
    credentials = Credentials(password=CANARY, ssh_key="KEY", known_hosts="host key", proxy="http://proxy:3128")
    with hand_over(Remote("ssh://git@host/a.git"), credentials, tmp_path) as (variables, settings):
        assert settings == []
        assert "StrictHostKeyChecking=yes" in variables["GIT_SSH_COMMAND"]
        assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"known_hosts", "key"}
    with hand_over(Remote("git://host/a.git"), credentials, tmp_path) as (variables, settings):
        assert (variables, settings, len(list(tmp_path.rglob("*")))) == ({}, [], 1)
    with hand_over(Remote("https://host/a.git"), credentials, tmp_path) as (variables, _):
        assert variables == {"http_proxy": "http://proxy:3128", "https_proxy": "http://proxy:3128"}


def test_ssh_needs_known_hosts(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidRemote, match="known_hosts"),
        hand_over(Remote("git@host:a.git"), Credentials(ssh_key="KEY"), tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
