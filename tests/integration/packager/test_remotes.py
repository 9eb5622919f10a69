"""Everything that Git speaks: the same scenario over each transport, and what each refuses."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncssh
import psutil
import pytest

from packager.git.credentials import Credentials
from packager.git.errors import AccessDenied, GitError, InvalidRemote, Rejected, UnknownHost, Unreachable
from packager.git.remote import Remote
from packager.git.repository import Repository
from tests.support.packager.git_servers import HttpBackend, SshServer, Tunnel, git_daemon, silence, tls_context
from tests.support.packager.repositories import Origin, paths, put, wanted

pytestmark = pytest.mark.integration
CANARY = "c4nary-p@ss/w0rd"


@dataclass
class Served:
    url: str
    credentials: Credentials


@pytest.fixture(params=["file", "git", "http", "https", "ssh"])
def served(request: pytest.FixtureRequest, origin: Origin, tmp_path: Path) -> Iterator[Served]:
    top = origin.folder.parent
    if request.param == "file":
        yield Served(origin.url, Credentials())
    elif request.param == "git":
        with git_daemon(top) as url:
            yield Served(f"{url}/fleet.git", Credentials())
    elif request.param == "ssh":
        with SshServer(top).serve() as ssh:
            yield Served(f"{ssh.url}/fleet.git", Credentials(ssh_key=ssh.key, known_hosts=ssh.known_hosts))
    else:
        tls, authority = tls_context(tmp_path) if request.param == "https" else (None, "")
        with HttpBackend(top, password=CANARY).serve(tls) as backend:
            credentials = Credentials(username="packager", password=CANARY, ca_bundle=authority)
            yield Served(f"{backend.url}/fleet.git", credentials)


def secrets_in(folder: Path, secrets: tuple[str, ...]) -> list[str]:
    words = [line.encode() for secret in secrets for line in secret.splitlines() if not line.startswith("-----")]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(word in path.read_bytes() for word in words)]


def test_scenario(served: Served, origin: Origin, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Repository(Remote(served.url), cache, served.credentials) as repository:
        first = put(repository, wanted("a/one", "b/two"))
        assert (origin.head(), set(origin.files())) == (first.commit, paths("a/one", "b/two"))
        assert put(repository, wanted("a/one", "b/two")).commit == ""
        origin.push({"README.md": "of others\n", "clusters/a/one/notes.txt": "of others\n"})
        second = put(repository, {**wanted("a/one"), **wanted("b/two", mtu=9000)})
        assert second.plan.changed == ("clusters/b/two",)
        assert origin.files()["clusters/b/two/cni/fleet.yaml"] == "name: b/two-cni\nmtu: 9000"
        third = put(repository, wanted("a/one"))
        assert [str(removal) for removal in third.plan.removed] == ["clusters/b/two"]
        expected = paths("a/one") | {"README.md", "clusters/a/one/notes.txt"}
        assert (set(origin.files()), origin.count()) == (expected, 4)
        assert secrets_in(cache, served.credentials.secrets) == []
    with Repository(Remote(served.url), cache, served.credentials) as repository:
        assert put(repository, wanted("a/one")).commit == ""
    assert not any(line in caplog.text for secret in served.credentials.secrets for line in secret.splitlines()[:2])


def refused(remote: Remote, cache: Path, credentials: Credentials) -> GitError:
    with Repository(remote, cache, credentials) as repository, pytest.raises(GitError) as error:
        put(repository, wanted("a/one"))
    assert secrets_in(cache, credentials.secrets) == []
    assert CANARY not in str(error.value)
    assert list(cache.glob("private-*")) == []
    return error.value


def test_wrong_password(origin: Origin, cache: Path) -> None:
    with HttpBackend(origin.folder.parent, password="right").serve() as backend:
        error = refused(Remote(f"{backend.url}/fleet.git"), cache, Credentials(password=CANARY))
    assert isinstance(error, AccessDenied)
    assert "credentials" in str(error)


def test_no_such_repository(origin: Origin, cache: Path) -> None:
    assert isinstance(refused(Remote(f"{origin.url}x"), cache, Credentials()), AccessDenied)


def test_password_does_not_follow_a_redirect_to_another_origin(origin: Origin, cache: Path) -> None:
    top = origin.folder.parent
    with HttpBackend(top, password="other").serve() as thief:
        with HttpBackend(top, password=CANARY, redirect=thief.url).serve() as backend:
            refused(Remote(f"{backend.url}/fleet.git"), cache, Credentials(password=CANARY))
        assert thief.paths
        assert thief.seen == []


def test_through_a_proxy(origin: Origin, cache: Path) -> None:
    with (
        HttpBackend(origin.folder.parent).serve() as proxy,
        Repository(Remote("http://git.invalid/fleet.git"), cache, Credentials(proxy=proxy.url)) as repository,
    ):
        assert put(repository, wanted("a/one")).commit == origin.head()
    assert all(path.startswith("http://git.invalid/fleet.git/") for path in proxy.paths)


def test_https_through_a_proxy_with_a_password_of_its_own(origin: Origin, cache: Path, tmp_path: Path) -> None:
    tls, authority = tls_context(tmp_path)
    with (
        HttpBackend(origin.folder.parent, password=CANARY).serve(tls) as backend,
        Tunnel("pr0xy-word").serve() as proxy,
    ):
        credentials = Credentials(username="packager", password=CANARY, ca_bundle=authority, proxy=proxy.url)
        remote = Remote(f"{backend.url}/fleet.git")
        with Repository(remote, cache, credentials) as repository:
            assert put(repository, wanted("a/one")).commit == origin.head()
        assert set(proxy.asked) == {backend.url.removeprefix("https://")}
        # What passes is the TLS of Git's own server: the proxy learns no path and no password.
        assert proxy.passed
        assert not any(word in proxy.passed for word in (b"fleet.git", b"Authorization", CANARY.encode()))
        wrong = proxy.url.replace("pr0xy-word", "wr0ng-word")
        error = refused(remote, cache, replace(credentials, proxy=wrong))
    assert isinstance(error, Unreachable)
    assert "proxy" in str(error)
    assert "wr0ng-word" not in str(error)


def test_unknown_authority(origin: Origin, cache: Path, tmp_path: Path) -> None:
    with HttpBackend(origin.folder.parent).serve(tls_context(tmp_path)[0]) as backend:
        error = refused(Remote(f"{backend.url}/fleet.git"), cache, Credentials())
    assert isinstance(error, Unreachable)
    assert "CA bundle" in str(error)


def test_ssh_refuses_unknown_hosts_and_keys(origin: Origin, cache: Path) -> None:
    with SshServer(origin.folder.parent).serve() as ssh:
        remote, good = Remote(f"{ssh.url}/fleet.git"), Credentials(ssh_key=ssh.key, known_hosts=ssh.known_hosts)
        other = asyncssh.generate_private_key("ssh-ed25519")
        public = other.export_public_key().decode().strip()
        names = ssh.known_hosts.split()[0]
        assert isinstance(refused(remote, cache, replace(good, known_hosts=f"{names} {public}")), UnknownHost)
        assert isinstance(refused(remote, cache, replace(good, known_hosts="")), InvalidRemote)
        strange = replace(good, ssh_key=other.export_private_key().decode())
        assert isinstance(refused(remote, cache, strange), AccessDenied)
        with Repository(remote, cache, good) as repository:
            assert put(repository, wanted("a/one")).commit == origin.head()


def test_hook_says_why_but_no_secret(origin: Origin, cache: Path) -> None:
    hook = origin.folder / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho 'main is protected: open a pull request ({CANARY})' >&2\nexit 1\n")
    hook.chmod(0o755)
    with HttpBackend(origin.folder.parent, password=CANARY).serve() as backend:
        credentials = Credentials(username="packager", password=CANARY)
        error = refused(Remote(f"{backend.url}/fleet.git"), cache, credentials)
    assert isinstance(error, Rejected)
    assert "main is protected: open a pull request (***)" in str(error)


@pytest.mark.parametrize("scheme", ["git", "http", "ssh"])
def test_hung_remote_is_left(scheme: str, cache: Path) -> None:
    with silence() as port:
        remote = Remote(f"{scheme}://127.0.0.1:{port}/fleet.git", timeout=1)
        before = time.monotonic()
        error = refused(remote, cache, Credentials(known_hosts="127.0.0.1 ssh-ed25519 x"))
        assert time.monotonic() - before < 10
    assert isinstance(error, Unreachable)
    # Killed children of killed processes are others' to collect, and take a moment.
    until = time.monotonic() + 10
    while children(port) and time.monotonic() < until:
        time.sleep(0.05)
    assert children(port) == []


def children(port: int) -> list[str]:
    found = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return [" ".join(words) for words in found if any(str(port) in word for word in words)]


def test_command_lines_and_environment_show_no_secret(origin: Origin, cache: Path, tmp_path: Path) -> None:
    """A wrapper notes all that any program of Git is started with."""
    seen = tmp_path / "seen"
    programs = tmp_path / "bin"
    programs.mkdir()
    real = os.environ["PATH"]
    wrapper = programs / "git"
    wrapper.write_text(f'#!/bin/sh\n{{ echo "$@"; env; }} >>{seen}\nPATH={real} exec git "$@"\n')
    wrapper.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, HttpBackend(origin.folder.parent, password=CANARY).serve() as backend:
        patch.setenv("PATH", f"{programs}:{real}")
        patch.setenv("CAPHV_GIT_PASSWORD", CANARY)
        credentials = Credentials.from_environment({**os.environ, "CAPHV_GIT_USERNAME": "packager"})
        with Repository(Remote(f"{backend.url}/fleet.git"), cache, credentials) as repository:
            assert put(repository, wanted("a/one")).commit == origin.head()
    assert "ls-remote" in seen.read_text()
    assert CANARY not in seen.read_text()
