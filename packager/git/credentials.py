"""Reads credentials for a remote, and passes them to Git without exposing them.

Git asks its own `credential-store` for name and password. The store answers for the remote's origin
only, so that a redirect to another host gets nothing, and neither the command line nor the
environment shows them. The files exist in a private folder for the duration of one call. ssh gets
its key and the known hosts in the same way, and ignores the user's configuration.
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
from packager.git.process import CallConfig
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
_VARIABLES = {
    "CAPHV_GIT_USERNAME": "username",
    "CAPHV_GIT_PASSWORD": "password",
    "CAPHV_GIT_PROXY": "proxy",
}
_FILE_VARIABLES = {
    "CAPHV_GIT_SSH_KEY_FILE": "ssh_key",
    "CAPHV_GIT_KNOWN_HOSTS_FILE": "known_hosts",
    "CAPHV_GIT_CA_FILE": "ca_bundle",
    "CAPHV_GIT_SIGNING_KEY_FILE": "signing_key",
}
_DEFAULT_USER = "git"


@dataclass(frozen=True, repr=False)
class Credentials:
    """Credentials that a remote may need. All are text, such as PEM, and optional.

    `username` and `password` (or a token) are for http and https, `ssh_key` and `known_hosts` for
    ssh, `ca_bundle` for https instead of the system's authorities, `proxy` is the URL of an HTTP
    proxy for http and https, and `signing_key` is a private ssh key that signs commits.
    """

    username: str = ""
    password: str = ""
    ssh_key: str = ""
    known_hosts: str = ""
    ca_bundle: str = ""
    proxy: str = ""
    signing_key: str = ""

    def __repr__(self) -> str:
        names = [field.name for field in fields(self) if getattr(self, field.name)]
        return f"Credentials({', '.join(names)})"

    @classmethod
    def from_secret(cls, data: Mapping[str, str]) -> Credentials:
        """Read the `data` of a Secret (base64) of type basic-auth or ssh-auth, as Fleet does.

        Raises `InvalidRemote` that names the keys, never their values.
        """
        values: dict[str, str] = {}
        findings: list[Finding] = []
        for key, field in _SECRET_KEYS.items():
            if key not in data:
                continue
            try:
                values[field] = base64.b64decode(data[key], validate=True).decode()
            except (binascii.Error, ValueError):
                detail = "must be base64 of text"
                findings.append(Finding(("data", key), Fault.INVALID, detail, "git-secret"))

        if not findings and not values:
            detail = f"must hold some of {', '.join(_SECRET_KEYS)}"
            findings.append(Finding(("data",), Fault.REQUIRED, detail, "git-secret"))
        if findings:
            raise InvalidRemote(findings)
        return cls(**values)

    @classmethod
    def from_folder(cls, folder: Path) -> Credentials:
        """Read the files of a mounted Secret, named by its keys. Raises `InvalidRemote`."""
        data: dict[str, str] = {}
        findings: list[Finding] = []
        for key in _SECRET_KEYS:
            try:
                # A Secret created from a file often ends with a line feed.
                content = (folder / key).read_bytes().rstrip(b"\r\n")
            except FileNotFoundError:
                continue
            except OSError as error:
                detail = f"cannot be read: {error.strerror}"
                findings.append(Finding((key,), Fault.INVALID, detail, "git-file"))
            else:
                data[key] = base64.b64encode(content).decode()

        if findings:
            raise InvalidRemote(findings)
        return cls.from_secret(data)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Credentials:
        """Read variables `CAPHV_GIT_*`; the user's known hosts by default.

        Raises `InvalidRemote`.
        """
        # A variable that comes from a Secret often ends with a line feed.
        values = {
            field: environ[name].rstrip("\r\n")
            for name, field in _VARIABLES.items()
            if environ.get(name)
        }
        findings: list[Finding] = []
        for name, field in _FILE_VARIABLES.items():
            if not environ.get(name):
                continue
            try:
                values[field] = Path(environ[name]).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or "it is not text"
                detail = f"must name a readable file: {reason}"
                findings.append(Finding((name,), Fault.INVALID, detail, "git-file"))
        if findings:
            raise InvalidRemote(findings)

        known_hosts = Path(environ.get("HOME") or "/nonexistent", ".ssh", "known_hosts")
        if "known_hosts" not in values:
            # Only ssh needs them, and reports that they are missing.
            with contextlib.suppress(OSError):
                values["known_hosts"] = known_hosts.read_text(encoding="utf-8", errors="replace")
        return cls(**values)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must never be shown."""
        proxy_password = urllib.parse.urlsplit(self.proxy).password
        secrets = [self.password, self.ssh_key, self.signing_key, proxy_password]
        if self.password:
            # Remotes may repeat the credentials that a client sent, with user and password in one
            # text.
            secrets.append(f"{self.username or _DEFAULT_USER}:{self.password}")
        return tuple(secret for secret in secrets if secret)


@contextlib.contextmanager
def hand_over(remote: Remote, credentials: Credentials, folder: Path) -> Iterator[CallConfig]:
    """Yield the configuration of calls to a remote, with the credentials in files below `folder`.

    It is valid inside the block only, because its files are deleted at the end. Raises
    `InvalidRemote` if ssh has no known hosts.
    """
    private = Path(tempfile.mkdtemp(prefix=PRIVATE, dir=folder))  # with mode 0700
    variables: dict[str, str] = {}
    settings: list[str] = []
    try:
        if remote.scheme == "ssh":
            variables["GIT_SSH_COMMAND"] = _ssh_command(remote, credentials, private)
            variables["GIT_SSH_VARIANT"] = "ssh"
        elif remote.scheme in ("http", "https"):
            if credentials.proxy:
                variables = dict.fromkeys(("http_proxy", "https_proxy"), credentials.proxy)
            settings = list(_http_settings(remote, credentials, private))
        yield CallConfig(variables, settings)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def write_private_file(folder: Path, name: str, content: str) -> Path:
    """Write a file that only its owner can read, and return its path."""
    path = folder / name
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content if content.endswith("\n") else f"{content}\n")
    return path


def _http_settings(remote: Remote, credentials: Credentials, private: Path) -> Iterator[str]:
    # Git gives up a transfer that stays below one kilobyte a second for this long.
    yield "http.lowSpeedLimit=1000"
    yield f"http.lowSpeedTime={max(1, int(remote.timeout))}"
    if credentials.password:
        scheme, _, host = remote.origin.partition("://")
        user = urllib.parse.urlsplit(remote.url).username or credentials.username or _DEFAULT_USER
        # A token may hold characters that have a meaning in a URL.
        name = urllib.parse.quote(user, safe="")
        password = urllib.parse.quote(credentials.password, safe="")
        store = write_private_file(private, "credentials", f"{scheme}://{name}:{password}@{host}")
        yield f"credential.helper=store --file={shlex.quote(str(store))}"
    if credentials.ca_bundle:
        ca_file = write_private_file(private, "ca.crt", credentials.ca_bundle)
        yield f"http.sslCAInfo={ca_file}"


def _ssh_command(remote: Remote, credentials: Credentials, private: Path) -> str:
    """Write the files for ssh to a folder, and return a command that reads no other configuration.

    Raises `InvalidRemote` without known hosts.
    """
    if not credentials.known_hosts:
        detail = (
            "must hold the keys of the host: ssh never trusts a host at first sight (ssh-keyscan "
            "prints them)"
        )
        raise InvalidRemote([Finding(("known_hosts",), Fault.REQUIRED, detail, "git-known-hosts")])

    hosts = write_private_file(private, "known_hosts", credentials.known_hosts)
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
        key = write_private_file(private, "key", credentials.ssh_key)
        options += [
            f"IdentityFile={_as_ssh_value(key)}",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
        ]

    command = ["ssh", "-F", "/dev/null"]
    for option in options:
        command += ["-o", option]
    return shlex.join(command)


def _as_ssh_value(path: Path) -> str:
    return '"' + str(path).replace("%", "%%") + '"'
