"""Merge requests for the review branch: GitLab opens them by push options, others print where to open one.

The address comes from what the host prints after a push, and otherwise from its name. `refs/for/…` of Gerrit, Gitea and
Forgejo is not used: it has no branch that the next push could extend or withdraw.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass

from packager.git.remote import Remote

NO_PUSH_OPTIONS = "does not support push options"
_LONGEST_TITLE = 200
_ADDRESS = re.compile(r"https?://[!-~]{1,500}")
_REQUEST_PATH = re.compile(r"/(?:merge_requests|pulls?|pull-requests)/(?P<number>\d{1,12})?|/compare/")


@dataclass(frozen=True)
class MergeRequest:
    """The address of a merge request for `branch` if it is open, else the one to open it at, empty if not known."""

    branch: str
    address: str = ""
    is_open: bool = False

    def __str__(self) -> str:
        if self.is_open:
            return f"merge {self.address}"
        where = f"at {self.address}" if self.address else "at your Git host"
        return f"open a merge request for branch {self.branch} {where}"


def push_options(remote: Remote, text: str, *, is_new: bool) -> list[str]:
    """Return the options of `git push` that have GitLab open a merge request for a commit with this message.

    The title is set for a new branch only: later it may be one that a person gave.
    """
    values = ["merge_request.create", f"merge_request.target={remote.branch}"]
    if is_new:
        values.append(f"merge_request.title={text.partition(chr(10))[0][:_LONGEST_TITLE]}")
    return [f"--push-option={value}" for value in values]


def announced(remote: Remote, output: str) -> MergeRequest | None:
    """Return the merge request of which the host tells after a push; addresses of other hosts are ignored."""
    requests = [
        MergeRequest(remote.review, address, bool(path["number"]))
        for line in output.splitlines()
        if line.startswith("remote:")
        for address in _ADDRESS.findall(line)
        if _host_of(address) == _host_and_path(remote)[0] and (path := _REQUEST_PATH.search(address))
    ]
    return next((request for request in requests if request.is_open), requests[0] if requests else None)


def to_open(remote: Remote) -> MergeRequest:
    """Return where to open a merge request, by the name of the host."""
    return MergeRequest(remote.review, next(_addresses(remote), ""))


def _addresses(remote: Remote) -> Iterator[str]:
    host, path = _host_and_path(remote)
    top = f"https://{host}/{path.strip('/').removesuffix('.git')}"
    target, review = (urllib.parse.quote(branch) for branch in (remote.branch, remote.review))
    if "github" in host:
        yield f"{top}/compare/{target}...{review}?expand=1"
    if "gitlab" in host:
        names = {"source_branch": remote.review, "target_branch": remote.branch}
        query = urllib.parse.urlencode({f"merge_request[{name}]": branch for name, branch in names.items()})
        yield f"{top}/-/merge_requests/new?{query}"
    if any(name in host for name in ("gitea", "forgejo", "codeberg")):
        yield f"{top}/compare/{target}...{review}"
    if host == "bitbucket.org":
        yield f"{top}/pull-requests/new?source={review}&dest={target}"


def _host_and_path(remote: Remote) -> tuple[str, str]:
    """Return host and path of a remote; that of ssh may have the form `user@host:path`."""
    if "://" in remote.url:
        return _host_of(remote.url), urllib.parse.urlsplit(remote.url).path
    host, _, path = remote.url.rpartition("@")[2].partition(":")
    return host.lower(), path


def _host_of(address: str) -> str:
    try:
        return urllib.parse.urlsplit(address).hostname or ""
    except ValueError:
        return ""
