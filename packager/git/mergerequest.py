"""Merge requests for the review branch. GitLab opens them, and other hosts print where to open one.

The address comes from the output of a push, or else from the name of the host. `refs/for/…` of
Gerrit, Gitea and Forgejo is not used, because it has no branch that the next push could extend or
withdraw.
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from typing import NamedTuple

from packager.git.remote import Remote

NO_PUSH_OPTIONS = "does not support push options"
_MAX_TITLE_LENGTH = 200
_ADDRESS = re.compile(r"https?://[!-~]{1,500}")
_REQUEST_PATH = re.compile(
    r"/(?:merge_requests|pulls?|pull-requests)/(?P<number>\d{1,12})?|/compare/"
)


@dataclass(frozen=True)
class MergeRequest:
    """A merge request with its address, or the address at which to open one, empty if not known."""

    branch: str
    address: str = ""
    is_open: bool = False

    def __str__(self) -> str:
        if self.is_open:
            return f"merge {self.address}"
        host = self.address or "your Git host"
        return f"open a merge request for branch {self.branch} at {host}"


def push_options(remote: Remote, text: str, *, is_new: bool) -> list[str]:
    """Return the options of `git push` that make GitLab open a merge request for a commit.

    Only a new branch sets the title, from the commit's message, because people may change it later.
    """
    values = ["merge_request.create", f"merge_request.target={remote.branch}"]
    if is_new:
        subject = text.partition("\n")[0]
        values.append(f"merge_request.title={subject[:_MAX_TITLE_LENGTH]}")
    return [f"--push-option={value}" for value in values]


def find_merge_request(remote: Remote, output: str) -> MergeRequest | None:
    """Return the merge request that the host prints after a push, preferably one that is open.

    Addresses of other hosts are ignored.
    """
    host = _location(remote).host
    first = None

    for line in output.splitlines():
        if not line.startswith("remote:"):
            continue
        for address in _ADDRESS.findall(line):
            path = _REQUEST_PATH.search(address)
            # Hooks print any addresses. Only an address of the host itself is a merge request.
            if _host_of(address) != host or path is None:
                continue
            request = MergeRequest(remote.review, address, bool(path["number"]))
            if request.is_open:
                return request
            first = first or request
    return first


def merge_request_to_open(remote: Remote) -> MergeRequest:
    """Return a merge request that is not open, with the address at which to open it."""
    return MergeRequest(remote.review, _address_to_open(remote))


def _address_to_open(remote: Remote) -> str:
    """Return the address of the form of a well-known host, empty for other hosts."""
    location = _location(remote)
    host = location.host
    top = f"https://{host}/{location.path.strip('/').removesuffix('.git')}"
    target = urllib.parse.quote(remote.branch)
    review = urllib.parse.quote(remote.review)
    if "github" in host:
        return f"{top}/compare/{target}...{review}?expand=1"

    if "gitlab" in host:
        fields = {
            "merge_request[source_branch]": remote.review,
            "merge_request[target_branch]": remote.branch,
        }
        return f"{top}/-/merge_requests/new?{urllib.parse.urlencode(fields)}"

    if any(name in host for name in ("gitea", "forgejo", "codeberg")):
        return f"{top}/compare/{target}...{review}"
    if host == "bitbucket.org":
        return f"{top}/pull-requests/new?source={review}&dest={target}"
    return ""


class _Location(NamedTuple):
    """Host and path of a repository."""

    host: str
    path: str


def _location(remote: Remote) -> _Location:
    """Return host and path of a remote, whose address may have the form `user@host:path`."""
    if "://" in remote.url:
        return _Location(_host_of(remote.url), urllib.parse.urlsplit(remote.url).path)
    host, _, path = remote.url.rpartition("@")[2].partition(":")
    return _Location(host.lower(), path)


def _host_of(address: str) -> str:
    try:
        return urllib.parse.urlsplit(address).hostname or ""
    except ValueError:
        return ""
