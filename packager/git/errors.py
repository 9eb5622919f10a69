"""Errors of remotes and clones, distinguished by type; no message holds a secret.

Messages of Git and of Git hosts are shown, because nothing else explains a protected branch or a
failed check. They pass through `Redactor` first, since remotes repeat what they were sent.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Iterable

from caphv.validation.finding import Finding

_MAX_LENGTH = 2000
_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")
_AUTHORIZATION = re.compile(r"(?i)\b(basic|bearer|token)\s+[A-Za-z0-9+/=._~-]{8,}")
_UNPRINTABLE = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]|(?<![^\S\n])[^\S\n]*\r|[^\n\t\x20-\x7e\xa0-\U0010ffff]"
)


class GitError(Exception):
    """A repository could not be read or written. The message has cause and remedy."""


class InvalidRemote(GitError):
    """The settings of a remote are invalid, with all `findings`. Retrying does not help."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(str(finding) for finding in self.findings))


class AccessDenied(GitError):
    """The remote has no such repository for these credentials, or denies write access."""


class UnknownHost(GitError):
    """The host key of an ssh remote is not the one that known_hosts holds."""


class Unreachable(GitError):
    """Name resolution, connection, TLS or a timeout."""


class Rejected(GitError):
    """The remote refused to update the branch: a hook, a protected branch, a quota, a full disk."""


class DiskFull(GitError):
    """There is no space for the clone. Nothing was pushed."""


class CorruptClone(GitError):
    """The clone is incomplete or damaged, for example after a crash. A new clone repairs it."""


class PushConflict(GitError):
    """Another client pushed first at every attempt. Nothing was pushed, and nothing was lost."""


class CloneLocked(GitError):
    """Another process uses the same cache folder."""


class UnusableContent(GitError):
    """A commit holds names that no checkout allows, or too much data. A new clone does not help."""


class MissingBranch(GitError):
    """The repository has other branches, or had this one. A new branch would lack its files."""


class UnverifiedCommit(GitError):
    """No listed signer signed the newest commit of a source, so the commit is not read."""


class UnmanagedFiles(GitError):
    """Files or commits that the packager did not write are in its way."""


class Redactor:
    """Removes secrets from text, in any encoding that remotes and Git use."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms = sorted(
            {form for secret in secrets for form in _forms(secret)}, key=len, reverse=True
        )

    def __call__(self, text: str) -> str:
        """Return the text without secrets, control characters and hints, cut to a length."""
        # The forms are sorted by length. Replacing a short form first could break a longer one that
        # holds it, and leave the rest readable.
        redacted = text
        for form in self._forms:
            redacted = redacted.replace(form, "***")
        redacted = _AUTHORIZATION.sub(r"\1 ***", _USERINFO.sub("***@", redacted))

        lines = (_UNPRINTABLE.sub("", line).rstrip() for line in redacted.splitlines())
        shown = "\n".join(line for line in lines if line and not line.startswith("hint:"))
        return shown if len(shown) <= _MAX_LENGTH else f"{shown[:_MAX_LENGTH]}…"


def _forms(secret: str) -> Iterable[str]:
    # Remotes repeat single lines of a key. Redacting short lines would hide ordinary words.
    yield from (line for line in secret.splitlines() if len(line) >= 4)
    if "\n" not in secret and len(secret) >= 4:
        yield urllib.parse.quote(secret, safe="")
        yield urllib.parse.quote_plus(secret)
        yield base64.b64encode(secret.encode()).decode()


# The order matters, because output of Git often fits several kinds and the first match counts.
_KINDS: tuple[tuple[type[GitError], re.Pattern[str], str], ...] = (
    (
        UnusableContent,
        re.compile(r"mismatched algorithms|unsupported object format|unknown object format", re.I),
        "the repository names objects by SHA-256, which caphv cannot read: use one with SHA-1",
    ),
    (
        UnusableContent,
        re.compile(r"^fatal: Out of memory", re.I | re.M),
        "Git may use 1 GiB of memory for it: make the files of the branch smaller",
    ),
    (
        Rejected,
        re.compile(r"^remote: .{0,300}(No space left on device|Disk quota exceeded)", re.I | re.M),
        "free space on the Git server",
    ),
    (
        DiskFull,
        re.compile(r"No space left on device|File too large|Disk quota exceeded|signal 25\b", re.I),
        "free space for the packager's cache folder",
    ),
    (
        UnknownHost,
        re.compile(
            r"Host key verification failed|REMOTE HOST IDENTIFICATION|No \w+ host key is known",
            re.I,
        ),
        "verify the host's key and add it to known_hosts",
    ),
    (
        AccessDenied,
        re.compile(
            r"Authentication failed|could not read (Username|Password)|Permission denied|terminal"
            r" prompts disabled"
            r"|returned error: 40[134]|not found|does not appear to be a git repository|access"
            r" denied"
            r"|service not enabled|dubious ownership",
            re.I,
        ),
        "check the address of the repository and the credentials: they must read and write it",
    ),
    (
        CorruptClone,
        re.compile(
            r"object file .{0,300} is empty|loose object .{0,300} corrupt"
            r"|unable to read tree|bad object|bad tree|corrupt"
            r"|not a git repository|missing (blob|tree|commit|object)|invalid sha1 pointer|invalid"
            r" object"
            r"|index file .{0,300} (too small|bad)"
            r"|packfile .{0,300} (cannot be|is far too|does not match|invalid)|did not send all"
            r" necessary objects"
            r"|shallow file has changed|could not parse commit|unable to find",
            re.I,
        ),
        "the clone is recreated",
    ),
    (
        Rejected,
        re.compile(r"\[(remote )?rejected\]|hook declined|protected branch|pre-receive", re.I),
        "allow the packager's user to push to the branch, or use a review branch",
    ),
    (
        Unreachable,
        re.compile(
            r"Could not resolve|unable to (connect|access|look up)|Connection (refused|reset|timed"
            r" out|closed)"
            r"|early EOF|hung up unexpectedly|unexpected disconnect|Operation (timed out|too"
            r" slow)|certificate|SSL|TLS"
            r"|RPC failed|returned error: 5\d\d|Could not read from remote|Network is unreachable",
            re.I,
        ),
        "check the address, proxy and CA bundle, and whether the host is up; a running packager "
        "tries again",
    ),
)


def classify(action: str, output: str, *, local: bool) -> GitError:
    """Return the error for a failed action; `output` is Git's redacted output, possibly empty.

    Local actions fail only for lack of space, or because the clone is corrupt.
    """
    kinds = [row for row in _KINDS if row[0] is DiskFull] if local else _KINDS
    for type_, pattern, remedy in kinds:
        if pattern.search(output):
            return type_(f"{action} failed ({remedy}): {output}")
    kind = CorruptClone if local else GitError
    return kind(f"{action} failed: {output or 'Git gave no reason'}")
