"""Signed commits, made with real git, ssh-keygen and gpg."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.packager.repositories import Origin, git

_IDENTITY = ("-c", "user.name=author", "-c", "user.email=author@example.com")


@dataclass(frozen=True)
class SshSigner:
    """A person with an SSH key."""

    name: str
    key: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> SshSigner:
        key = folder / f"key-{name}"
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key))
        return cls(name, key)

    @property
    def line(self) -> str:
        """The line of a list of allowed signers."""
        return f"{self.name}@example.com {self.key.with_name(f'{self.key.name}.pub').read_text().strip()}\n"

    def sign(self, origin: Origin) -> str:
        """Replace the head of the branch by the same commit, signed; return its id."""
        return _amend(origin, "-c", "gpg.format=ssh", "-c", f"user.signingKey={self.key}")


@dataclass(frozen=True)
class PgpSigner:
    """A person with an OpenPGP key."""

    name: str
    home: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> PgpSigner:
        # The socket of gpg's agent needs a short path, which that of a test is not.
        home = folder / name
        home.mkdir(mode=0o700, parents=True)
        user = f"{name} <{name}@example.com>"
        _gpg(home, "--passphrase", "", "--quick-generate-key", user, "ed25519", "sign", "never")
        return cls(name, home)

    @property
    def public_key(self) -> str:
        return _gpg(self.home, "--armor", "--export")

    def sign(self, origin: Origin) -> str:
        """Replace the head of the branch by the same commit, signed; return its id."""
        program = self.home / "gpg"
        program.write_text(f'#!/bin/sh\nexec gpg --homedir {self.home} "$@"\n')
        program.chmod(0o700)
        key = f"user.signingKey={self.name}@example.com"
        return _amend(origin, "-c", f"gpg.program={program}", "-c", key)

    def close(self) -> None:
        """End gpg's agent."""
        _run("gpgconf", "--homedir", str(self.home), "--kill", "gpg-agent")


def strip_signature(origin: Origin) -> str:
    """Replace the head of the branch by the same commit without its signature; return its id."""
    commit = git(origin.folder, "cat-file", "commit", origin.head())
    head, _, text = commit.partition("\n\n")
    lines = head.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("gpgsig"))
    end = next((index for index, line in enumerate(lines) if index > start and not line.startswith(" ")), len(lines))
    return _set_head(origin, "\n".join([*lines[:start], *lines[end:]]) + f"\n\n{text}\n")


def change_tree(origin: Origin, tree: str) -> str:
    """Give the signed head of the branch another tree, and keep its signature; return the id of the new head."""
    commit = git(origin.folder, "cat-file", "commit", origin.head())
    return _set_head(origin, f"tree {tree}\n{commit.partition(chr(10))[2]}\n")


def _amend(origin: Origin, *settings: str) -> str:
    text, tree = origin.message(), origin.tree()
    parents = git(origin.folder, "log", "-1", "--format=%P", "main").split()
    arguments = [argument for parent in parents for argument in ("-p", parent)]
    commit = git(origin.folder, *_IDENTITY, *settings, "commit-tree", "-S", *arguments, "-m", text, tree)
    git(origin.folder, "update-ref", "refs/heads/main", commit)
    return commit


def _set_head(origin: Origin, content: str) -> str:
    commit = git(origin.folder, "hash-object", "-t", "commit", "-w", "--stdin", stdin=content.encode())
    git(origin.folder, "update-ref", "refs/heads/main", commit)
    return commit


def _gpg(home: Path, *arguments: str) -> str:
    return _run("gpg", "--homedir", str(home), "--batch", "--quiet", *arguments)


def _run(*command: str) -> str:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout
