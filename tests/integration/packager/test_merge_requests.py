"""A push for review asks the host to open a merge request, and tells where it is: with real Git servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from packager.git.remote import Remote
from packager.git.repository import Repository
from tests.support.packager.git_servers import HttpBackend
from tests.support.packager.repositories import Origin, git, put, wanted

pytestmark = pytest.mark.integration
REVIEW = "caphv/review"
RECORDING = """\
#!/bin/sh
i=0
while [ "$i" -lt "${GIT_PUSH_OPTION_COUNT:-0}" ]; do
  eval "echo \\"\\$GIT_PUSH_OPTION_$i\\"" >> options
  i=$((i + 1))
done
echo -- >> options
"""
ANSWERING = """\
#!/bin/sh
echo
echo "View merge request for caphv/review:"
echo "  %s/fleet/-/merge_requests/7"
"""


class Host:
    """A Git host that records the options of each push."""

    def __init__(self, origin: Origin, url: str) -> None:
        self._origin, self.url = origin, url
        self._hook("pre-receive", RECORDING)

    def answer(self) -> None:
        """Advertise push options, and tell of the merge request after each push, as GitLab does."""
        git(self._origin.folder, "config", "receive.advertisePushOptions", "true")
        self._hook("post-receive", ANSWERING % self.url)

    @property
    def pushes(self) -> list[list[str]]:
        pushes = (self._origin.folder / "options").read_text().split("--\n")
        return [push.splitlines() for push in pushes[:-1]]

    def _hook(self, name: str, text: str) -> None:
        path = self._origin.folder / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


@pytest.fixture
def host(origin: Origin) -> Iterator[Host]:
    origin.push({"README.md": "of others\n"})
    with HttpBackend(origin.folder.parent).serve() as backend:
        yield Host(origin, backend.url)


def test_a_host_with_push_options_opens_the_merge_request(host: Host, origin: Origin, cache: Path) -> None:
    host.answer()
    with Repository(Remote(f"{host.url}/fleet.git", review=REVIEW), cache) as repository:
        first = put(repository, wanted("a/one"))
        second = put(repository, wanted("a/one", "b/two"))
        third = put(repository, wanted("a/one", "b/two"))
    target = ["merge_request.create", "merge_request.target=main"]
    assert host.pushes == [[*target, "merge_request.title=Add clusters/a/one"], target]
    for result in (first, second, third):
        assert result.merge_request
        assert result.merge_request.is_open
        assert str(result.merge_request) == f"merge {host.url}/fleet/-/merge_requests/7"
    assert third.commit == ""

    # A push to the branch itself needs no merge request.
    with Repository(Remote(f"{host.url}/fleet.git"), cache / "direct") as repository:
        merged = put(repository, wanted("a/one", "b/two"))
    assert merged.merge_request is None
    assert host.pushes[-1] == []

    # Nothing waits any more.
    with Repository(Remote(f"{host.url}/fleet.git", review=REVIEW), cache) as repository:
        assert put(repository, wanted("a/one", "b/two")).merge_request is None


def test_a_host_without_push_options_gets_the_branch(host: Host, origin: Origin, cache: Path) -> None:
    with Repository(Remote(f"{host.url}/fleet.git", review=REVIEW), cache) as repository:
        result = put(repository, wanted("a/one"))
    assert origin.head(REVIEW) == result.commit
    assert host.pushes == [[]]
    assert result.merge_request
    assert str(result.merge_request) == f"open a merge request for branch {REVIEW} at your Git host"
