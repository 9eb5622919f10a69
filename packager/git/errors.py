"""What can go wrong with a remote, as exceptions that callers tell apart by type, and none of which tells a secret.

Git reports in prose, and hosts add prose of their own. The prose is shown, because a protected branch or a failed check
is explained nowhere else; it goes through `Redactor` first, since remotes repeat what they were sent.
"""

from __future__ import annotations

import base64
import re
import urllib.parse
from collections.abc import Iterable

from caphv.validation.finding import Finding

_LONGEST = 2000
_USERINFO = re.compile(r"(?<=://)[^/\s@]+@")
_AUTHORIZATION = re.compile(r"(?i)\b(basic|bearer|token)\s+[A-Za-z0-9+/=._~-]{8,}")
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[^\S\n]*\r|[^\n\t\x20-\x7e\xa0-\U0010ffff]")


class GitError(Exception):
    """A repository could not be read or written; the text says what happened and what to do about it."""


class InvalidRemote(GitError):
    """The settings of a remote are wrong: all `findings` at once. Trying again cannot help."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__("; ".join(str(finding) for finding in self.findings))


class AccessDenied(GitError):
    """The remote knows no such repository for these credentials, or does not let them write."""


class UnknownHost(GitError):
    """The host key of an ssh remote is not the one that known_hosts holds."""


class Unreachable(GitError):
    """Name resolution, connection, TLS or a time-out."""


class Rejected(GitError):
    """The remote took the commit and refused to move the branch: a hook, a protected branch, a quota."""


class DiskFull(GitError):
    """There is no room for the clone. Nothing was pushed."""


class Damaged(GitError):
    """The clone is not what Git left: half written, or lost in a crash. A new clone heals it."""


class LostRaces(GitError):
    """Somebody else pushed first at every attempt. Nothing was lost, and nothing of ours was pushed."""


class Busy(GitError):
    """Another process uses the same cache folder."""


class Foreign(GitError):
    """Something of somebody else stands where the packager would write."""


class Redactor:
    """Takes secrets out of text, however a remote or Git may have written them."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._forms = sorted({form for secret in secrets for form in _forms(secret)}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        """Return the text without secrets, control characters and Git's hints, in at most 2,000 characters."""
        for form in self._forms:
            text = text.replace(form, "***")
        text = _AUTHORIZATION.sub(r"\1 ***", _USERINFO.sub("***@", text))
        lines = (_UNPRINTABLE.sub("", line).rstrip() for line in text.splitlines())
        text = "\n".join(line for line in lines if line and not line.startswith("hint:"))
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _forms(secret: str) -> Iterable[str]:
    yield from (line for line in secret.splitlines() if len(line) >= 4)
    if "\n" not in secret and len(secret) >= 4:
        yield urllib.parse.quote(secret, safe="")
        yield urllib.parse.quote_plus(secret)
        yield base64.b64encode(secret.encode()).decode()


_KINDS: tuple[tuple[type[GitError], re.Pattern[str], str], ...] = (
    (
        DiskFull,
        re.compile(r"No space left on device|File too large|Disk quota exceeded|signal 25\b", re.I),
        "make room for the packager's cache folder",
    ),
    (
        UnknownHost,
        re.compile(r"Host key verification failed|REMOTE HOST IDENTIFICATION|No \w+ host key is known", re.I),
        "compare the host's key and put it into known_hosts",
    ),
    (
        AccessDenied,
        re.compile(
            r"Authentication failed|could not read (Username|Password)|Permission denied|terminal prompts disabled"
            r"|returned error: 40[134]|not found|does not appear to be a git repository|access denied"
            r"|service not enabled|dubious ownership",
            re.I,
        ),
        "check the address of the repository and the credentials: they must read and write it",
    ),
    (
        Damaged,
        re.compile(
            r"object file .* is empty|loose object .* corrupt|unable to read tree|bad object|bad tree|corrupt"
            r"|not a git repository|missing (blob|tree|commit|object)|invalid sha1 pointer|invalid object"
            r"|index file .* (too small|bad)"
            r"|packfile .* (cannot be|is far too|does not match|invalid)|did not send all necessary objects"
            r"|shallow file has changed|could not parse commit|unable to find",
            re.I,
        ),
        "the clone is made anew",
    ),
    (
        Rejected,
        re.compile(r"\[(remote )?rejected\]|hook declined|protected branch|pre-receive", re.I),
        "let the packager's user push to the branch, or have it push to a branch for review",
    ),
    (
        Unreachable,
        re.compile(
            r"Could not resolve|unable to (connect|access|look up)|Connection (refused|reset|timed out|closed)"
            r"|early EOF|hung up unexpectedly|unexpected disconnect|Operation (timed out|too slow)|certificate|SSL|TLS"
            r"|RPC failed|returned error: 5\d\d|Could not read from remote|Network is unreachable",
            re.I,
        ),
        "check the address, proxy and CA bundle, and whether the host is up; it is tried again",
    ),
)


def classified(action: str, said: str, *, local: bool) -> GitError:
    """Exception for what Git said about a failed action: `said` is redacted text, possibly empty.

    What fails without the remote fails for want of room, or because the clone is not what Git left.
    """
    kinds = [row for row in _KINDS if row[0] is DiskFull] if local else _KINDS
    for kind, pattern, remedy in kinds:
        if pattern.search(said):
            return kind(f"{action} failed ({remedy}): {said}")
    return (Damaged if local else GitError)(f"{action} failed: {said or 'Git gave no reason'}")
