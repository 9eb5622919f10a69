"""The URL, branch and folder of a repository, checked so that Git parses none as an option."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

from caphv.validation.finding import Fault, Finding
from packager.git.errors import InvalidRemote
from packager.git.paths import fault_of

_SCHEMES = ("https", "http", "ssh", "git", "file")
_SCP = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][\w.-]*)@)?(?P<host>[A-Za-z0-9][\w.-]*):(?!//)(?P<path>[^-\s].*)"
)
_USER = re.compile(r"[A-Za-z0-9_][\w.+%-]*")
# Git hosts also accept a token as the user. These are the prefixes of well-known tokens. Other
# tokens are long and have no separators.
_TOKEN = re.compile(
    r"(?:gh[a-z]_|github_pat_|gl[a-z]{2,6}-|AT[A-Z]{2}|bb[a-z]*_).{8}|.*[A-Za-z0-9]{24}"
)
_UNSAFE = re.compile(r"[\x00-\x20\x7f]")
_BAD_BRANCH = re.compile(
    r"^[-/.@]$|^[-/.]|[/.]$|\.lock(/|$)|\.\.|//|/\.|@\{|[\x00-\x20\x7f~^:?*\[\\]|^refs/|^HEAD$"
)
REVIEW_PREFIX = "caphv/"


@dataclass(frozen=True)
class Remote:
    """A branch and a folder of a repository. Raises `InvalidRemote` with all faults.

    `url`: https, http, ssh, git or file, or `user@host:path`, or an absolute path; without password
    and token. `path`: folder in the repository below which everything is read and written, empty
    for its root. `review`: push to this branch instead of `branch`, for a pull request. It begins
    with `caphv/`, because the packager recreates it whenever `branch` moves. `timeout`: seconds
    that one exchange with the remote may take. `max_size`: limit for one fetch in MiB, compressed.
    `create_branch`: create a missing `branch` even if the repository has other branches; an empty
    repository needs no permission.
    """

    url: str
    branch: str = "main"
    path: str = ""
    review: str = ""
    timeout: float = 60.0
    create_branch: bool = False
    max_size: int = 512

    def __post_init__(self) -> None:
        findings = [*_url_findings(self.url), *self._findings()]
        if findings:
            raise InvalidRemote(findings)

    @property
    def scheme(self) -> str:
        """One of https, http, ssh, git and file."""
        if self.url.startswith("/"):
            return "file"
        return urllib.parse.urlsplit(self.url).scheme if "://" in self.url else "ssh"

    @property
    def shown(self) -> str:
        """The address for messages and commits, without a user that could be a secret."""
        # A user of ssh, such as `git`, is part of the address and no secret.
        if self.scheme not in ("http", "https"):
            return self.url
        return re.sub(r"(?<=://)[^/@]*@", "", self.url)

    @property
    def origin(self) -> str:
        """Scheme, host and port that credentials may be sent to."""
        parts = urllib.parse.urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    def _findings(self) -> Iterator[Finding]:
        """Yield a finding for each invalid field except the URL."""

        def invalid(field: str, detail: str, value: object) -> Finding:
            return Finding((field,), Fault.INVALID, detail, f"git-{field.replace('_', '-')}", value)

        for field, branch in (("branch", self.branch), ("review", self.review)):
            if (branch or field == "branch") and _BAD_BRANCH.search(branch or "/"):
                yield invalid(field, "must be the name of a branch", branch)
        if self.review and not self.review.startswith(REVIEW_PREFIX):
            detail = f"must begin with {REVIEW_PREFIX}: the packager recreates a review branch"
            yield invalid("review", detail, self.review)

        if self.path and (fault := fault_of(self.path)):
            yield invalid("path", fault, self.path)
        if not 1 <= self.timeout <= 3600:
            yield invalid("timeout", "must be between 1 and 3600 s", self.timeout)
        if self.max_size < 1:
            yield invalid("max_size", "must be at least 1 MiB", self.max_size)


def _url_findings(url: str) -> Iterator[Finding]:
    """Yield a finding for each fault of a URL.

    Findings never contain the URL, which may hold a password.
    """

    def finding(detail: str) -> Finding:
        return Finding(("url",), Fault.INVALID, detail, "git-url")

    if not url or _UNSAFE.search(url):
        yield finding("must be an address without blanks and control characters")
        return
    # With `::` after a name, Git would run the remote helper of this name (gitremote-helpers).
    is_scp_form = "://" not in url and "::" not in url and _SCP.fullmatch(url)
    if url.startswith("/") or is_scp_form:
        return
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        yield finding("must be an address with a valid host and port")
        return
    if parts.scheme not in _SCHEMES or not url.startswith(f"{parts.scheme}://"):
        prefixes = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        yield finding(f"must begin with {prefixes} or be user@host:path")
        return

    if parts.password is not None:
        yield finding("must not hold a password: give it in the Secret or the environment")
    if parts.username is not None and not _USER.fullmatch(parts.username):
        yield finding("must name a plain user")
    elif parts.scheme in ("http", "https") and _TOKEN.match(parts.username or ""):
        yield finding(
            "must not hold a token as its user: give it as password in the Secret or the "
            "environment"
        )
    if parts.scheme == "file" and (host or not parts.path.startswith("/")):
        yield finding("must name an absolute path: file:///path")
    if parts.scheme != "file" and not re.fullmatch(r"[A-Za-z0-9][\w.-]*|[0-9A-Fa-f:.]+", host):
        yield finding("must name a host")
    if parts.query or parts.fragment:
        yield finding("must have no query and no fragment")
