"""Signers of a source's commits: SSH keys in Git's list of allowed signers, or OpenPGP keys."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from caphv.validation.finding import Fault, Finding
from packager.git.errors import InvalidRemote
from packager.git.process import CallConfig

_PGP = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
SIGNATURE_HEADER = "\ngpgsig"
_KEY_TYPE = re.compile(r"(?:sk-)?(?:ssh|ecdsa)-[A-Za-z0-9@.-]{1,64}")
_MAX_BYTES = 1024 * 1024
_GPG_SECONDS = 60.0
# The list decides who is trusted, not a web of trust. Only secret keys would need an agent.
_GPG_SETTINGS = "trust-model always\nno-autostart\nbatch\nno-tty\n"

_REASONS = {
    "N": "it is not signed",
    "B": "its signature does not fit its content",
    "U": "it is signed with {key}, which the list does not have",
    "E": "it is signed with {key}, which the list does not have",
    "X": "its signature with {key} has expired",
    "Y": "it is signed with {key}, which has expired",
    "R": "it is signed with {key}, which was revoked",
}
_OTHER_FORMAT = "a key of another format"


@dataclass(frozen=True)
class Signers:
    """At least one key: lines of an SSH list of allowed signers, or armoured OpenPGP keys."""

    ssh: str = ""
    openpgp: str = ""

    @classmethod
    def read(cls, path: Path) -> Signers:
        """Read a file, or all files of a mounted Secret or ConfigMap. Raises `InvalidRemote`."""
        # Text of each file by its name.
        texts: dict[str, str] = {}
        findings = []
        try:
            for file in _files(path):
                if file.stat().st_size > _MAX_BYTES:
                    findings.append(_finding(file.name, f"has more than {_MAX_BYTES:,} bytes"))
                else:
                    texts[file.name] = file.read_text(encoding="utf-8")
        except OSError as error:
            findings.append(
                _finding(Path(error.filename or path).name, f"cannot be read: {error.strerror}")
            )
        except UnicodeError:
            detail = "must be text: export OpenPGP keys with gpg --armor --export"
            findings.append(_finding(path.name, detail))

        # The content of a file shows whether it holds OpenPGP or SSH keys. Its name does not.
        openpgp = [text for text in texts.values() if _PGP in text]
        ssh = {name: text for name, text in texts.items() if _PGP not in text}
        findings += [finding for name, text in ssh.items() for finding in _ssh_findings(name, text)]
        signers = cls("\n".join(ssh.values()), "\n".join(openpgp))
        if not findings and not (openpgp or any(_ssh_lines(signers.ssh))):
            findings.append(_finding(path.name, "must hold the key of at least one signer"))
        if findings:
            raise InvalidRemote(findings)
        return signers

    def write_config(self, private: Path) -> CallConfig:
        """Write the keys to a private folder, and return a configuration that trusts only them.

        Raises `InvalidRemote` if a program that verifies is missing, or gpg refuses the keys.
        """
        # Without the program, Git would report a signature by an unknown key.
        if self.ssh and shutil.which("ssh-keygen") is None:
            detail = (
                "SSH keys need ssh-keygen, which is not in the PATH: use the packager's image, "
                "or install OpenSSH's client"
            )
            raise InvalidRemote([_finding("ssh", detail)])
        allowed = private / "allowed_signers"
        allowed.write_text(f"{self.ssh}\n", encoding="utf-8")
        home = private / "gnupg"
        home.mkdir(mode=0o700)
        (home / "gpg.conf").write_text(_GPG_SETTINGS)
        if self.openpgp:
            _import(self.openpgp, home)
        # The program `false` verifies nothing, so it refuses all signatures of its format.
        settings = [
            f"gpg.ssh.allowedSignersFile={allowed}",
            f"gpg.openpgp.program={'gpg' if self.openpgp else 'false'}",
            "gpg.x509.program=false",
        ]
        return CallConfig({"GNUPGHOME": str(home)}, settings)


def refusal(verdict: str, key: str) -> str:
    """Return why a commit is refused, from Git's verdict (`%G?`) and the key of its signature."""
    return _REASONS.get(verdict, "Git cannot verify its signature").format(
        key=f"key {key}" if key else _OTHER_FORMAT
    )


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    # Kubernetes mounts keys as links to a hidden folder, which is skipped.
    yield from (
        file for file in sorted(path.iterdir()) if not file.name.startswith(".") and file.is_file()
    )


def _ssh_lines(text: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            yield number, words


def _ssh_findings(name: str, text: str) -> Iterator[Finding]:
    for number, words in _ssh_lines(text):
        types = [index for index, word in enumerate(words) if _KEY_TYPE.fullmatch(word)]
        if not types or types[0] == 0 or types[0] == len(words) - 1:
            yield _finding(
                name, f"line {number} must be of the form: alice@example.com ssh-ed25519 AAAA…"
            )


def _finding(name: str, detail: str) -> Finding:
    return Finding(("source-signers", name), Fault.INVALID, detail, "git-signers")


def _import(keys: str, home: Path) -> None:
    """Import OpenPGP keys to a home of gpg. Raises `InvalidRemote`."""
    command = ["gpg", "--homedir", str(home), "--quiet", "--import"]
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}

    detail = ""
    try:
        process = subprocess.run(
            command,
            input=keys.encode(),
            capture_output=True,
            check=False,
            timeout=_GPG_SECONDS,
            env=environment,
        )
        if process.returncode != 0:
            detail = "gpg does not take the keys: export them with gpg --armor --export"
    except FileNotFoundError:
        detail = (
            "OpenPGP keys need gpg, which is not in the PATH: use the packager's image, or SSH keys"
        )
    except subprocess.TimeoutExpired:
        detail = f"gpg took more than {_GPG_SECONDS:g} s"

    if detail:
        raise InvalidRemote([_finding("openpgp", detail)])
