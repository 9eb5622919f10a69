"""Credentials for a remote: from a Secret or the environment, passed to Git without exposing them.

Git asks its own `credential-store` for name and password, which answers for the remote's origin only: a redirect to
another host gets nothing, and neither command line nor environment show them. Files exist in a private folder for the
duration of one call. ssh gets its key and the known hosts in the same way, and its user configuration is ignored.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import shlex
import shutil
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from caphv.validation.finding import Fault, Finding
from packager.git.errors import InvalidRemote
from packager.git.remote import Remote

PRIVATE = "private-"
_SECRET_KEYS = {
    "username": "username",
    "password": "password",
    "ssh-privatekey": "ssh_key",
    "known_hosts": "known_hosts",
    "ca.crt": "ca_bundle",
    "cacerts": "ca_bundle",
    "proxy": "proxy",
    "signing-key": "signing_key",
}
_VARIABLES = {"CAPHV_GIT_USERNAME": "username", "CAPHV_GIT_PASSWORD": "password", "CAPHV_GIT_PROXY": "proxy"}
_FILE_VARIABLES = {
    "CAPHV_GIT_SSH_KEY_FILE": "ssh_key",
    "CAPHV_GIT_KNOWN_HOSTS_FILE": "known_hosts",
    "CAPHV_GIT_CA_FILE": "ca_bundle",
    "CAPHV_GIT_SIGNING_KEY_FILE": "signing_key",
}
_OF_ANY_HOST = "git"


@dataclass(frozen=True, repr=False)
class Credentials:
    """Credentials that a remote may need; all are text (PEM, known_hosts lines) and everything is optional.

    `username` and `password` (or a token) are for http and https, `ssh_key` and `known_hosts` for ssh, `ca_bundle` for
    https instead of the system's authorities, `proxy` is the URL of an HTTP proxy for http and https, and `signing_key`
    is a private ssh key that signs commits.
    """

    username: str = ""
    password: str = ""
    ssh_key: str = ""
    known_hosts: str = ""
    ca_bundle: str = ""
    proxy: str = ""
    signing_key: str = ""

    def __repr__(self) -> str:
        return f"Credentials({', '.join(field.name for field in fields(self) if getattr(self, field.name))})"

    @classmethod
    def from_secret(cls, data: Mapping[str, str]) -> Credentials:
        """Take the `data` of a Secret (base64 values) of type basic-auth or ssh-auth, the same that Fleet takes.

        Raises InvalidRemote that names the keys, never their values.
        """
        values, found = {}, []
        for key, field in _SECRET_KEYS.items():
            if key in data:
                try:
                    values[field] = base64.b64decode(data[key], validate=True).decode()
                except (binascii.Error, ValueError):
                    found.append(Finding(("data", key), Fault.INVALID, "must be base64 of text", "git-secret"))
        if not found and not values:
            known = ", ".join(_SECRET_KEYS)
            found.append(Finding(("data",), Fault.REQUIRED, f"must hold some of {known}", "git-secret"))
        if found:
            raise InvalidRemote(found)
        return cls(**values)

    @classmethod
    def from_folder(cls, folder: Path) -> Credentials:
        """Take the files of a mounted Secret, each named by its key. Raises InvalidRemote that names the keys."""
        data: dict[str, str] = {}
        found = []
        for key in _SECRET_KEYS:
            try:
                # A Secret created from a file often ends with a line feed.
                data[key] = base64.b64encode((folder / key).read_bytes().rstrip(b"\r\n")).decode()
            except FileNotFoundError:
                continue
            except OSError as error:
                found.append(Finding((key,), Fault.INVALID, f"cannot be read: {error.strerror}", "git-file"))
        if found:
            raise InvalidRemote(found)
        return cls.from_secret(data)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Credentials:
        """Take variables `CAPHV_GIT_*`; known hosts of the user when none are named. Raises InvalidRemote."""
        values = {field: environ[name] for name, field in _VARIABLES.items() if environ.get(name)}
        found = []
        for name, field in _FILE_VARIABLES.items():
            if environ.get(name):
                try:
                    values[field] = Path(environ[name]).read_text(encoding="utf-8")
                except (OSError, ValueError) as error:
                    why = getattr(error, "strerror", None) or "it is not text"
                    found.append(Finding((name,), Fault.INVALID, f"must name a readable file: {why}", "git-file"))
        if found:
            raise InvalidRemote(found)
        usual = Path(environ.get("HOME") or "/nonexistent", ".ssh", "known_hosts")
        if "known_hosts" not in values and usual.is_file():
            values["known_hosts"] = usual.read_text(encoding="utf-8", errors="replace")
        return cls(**values)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be shown."""
        proxy = urllib.parse.urlsplit(self.proxy).password or "" if self.proxy else ""
        basic = f"{self.username or _OF_ANY_HOST}:{self.password}" if self.password else ""
        return tuple(filter(None, (self.password, basic, self.ssh_key, self.signing_key, proxy)))


@contextlib.contextmanager
def handed_over(remote: Remote, credentials: Credentials, folder: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Give environment variables and Git settings (`key=value`) for calls to a remote, valid inside the block.

    Files are made below `folder` and are deleted afterwards. Raises InvalidRemote when ssh has no known hosts.
    """
    private = Path(tempfile.mkdtemp(prefix=PRIVATE, dir=folder))  # with mode 0700
    try:
        if remote.scheme == "ssh":
            yield {"GIT_SSH_COMMAND": _ssh_command(remote, credentials, private), "GIT_SSH_VARIANT": "ssh"}, []
        elif remote.scheme in ("http", "https"):
            proxy = dict.fromkeys(("http_proxy", "https_proxy"), credentials.proxy) if credentials.proxy else {}
            yield proxy, list(_http_settings(remote, credentials, private))
        else:
            yield {}, []
    finally:
        shutil.rmtree(private, ignore_errors=True)


def private_file(folder: Path, name: str, content: str) -> Path:
    """Write a file that only its owner can read."""
    path = folder / name
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(content if content.endswith("\n") else f"{content}\n")
    return path


def _http_settings(remote: Remote, credentials: Credentials, private: Path) -> Iterator[str]:
    # Below one kilobyte a second for this long, a transfer counts as hung; ours is shorter than the whole call's.
    yield "http.lowSpeedLimit=1000"
    yield f"http.lowSpeedTime={max(1, int(remote.timeout))}"
    if credentials.password:
        scheme, _, host = remote.origin.partition("://")
        user = urllib.parse.urlsplit(remote.url).username or credentials.username or _OF_ANY_HOST
        name, password = (urllib.parse.quote(part, safe="") for part in (user, credentials.password))
        store = private_file(private, "credentials", f"{scheme}://{name}:{password}@{host}")
        yield f"credential.helper=store --file={shlex.quote(str(store))}"
    if credentials.ca_bundle:
        yield f"http.sslCAInfo={private_file(private, 'ca.crt', credentials.ca_bundle)}"


def _ssh_command(remote: Remote, credentials: Credentials, private: Path) -> str:
    if not credentials.known_hosts:
        detail = "must hold the keys of the host: ssh never trusts a host at first sight (ssh-keyscan prints them)"
        raise InvalidRemote([Finding(("known_hosts",), Fault.REQUIRED, detail, "git-known-hosts")])
    hosts = private_file(private, "known_hosts", credentials.known_hosts)
    options = [
        "BatchMode=yes",
        "StrictHostKeyChecking=yes",
        f"UserKnownHostsFile={_as_ssh_value(hosts)}",
        "GlobalKnownHostsFile=/dev/null",
        f"ConnectTimeout={max(1, int(remote.timeout))}",
        "ServerAliveInterval=5",
        "ServerAliveCountMax=3",
        "ForwardAgent=no",
        "ForwardX11=no",
        "PermitLocalCommand=no",
        "LogLevel=ERROR",
    ]
    if credentials.ssh_key:
        key = private_file(private, "key", credentials.ssh_key)
        options += [f"IdentityFile={_as_ssh_value(key)}", "IdentitiesOnly=yes", "IdentityAgent=none"]
    return shlex.join(["ssh", "-F", "/dev/null", *(word for option in options for word in ("-o", option))])


def _as_ssh_value(path: Path) -> str:
    return '"' + str(path).replace("%", "%%") + '"'
