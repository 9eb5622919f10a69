"""Where a review branch becomes a merge request: what hosts print, and what follows from their names."""

from __future__ import annotations

import pytest

from packager.git.mergerequest import find_merge_request, merge_request_to_open, push_options
from packager.git.remote import Remote

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "address"),
    [
        (
            "https://github.com/org/fleet.git",
            "https://github.com/org/fleet/compare/main...caphv/bundles?expand=1",
        ),
        ("git@github.com:org/fleet.git", "https://github.com/org/fleet/compare/main...caphv/bundles?expand=1"),
        (
            "ssh://git@gitlab.example.com:2222/group/sub/fleet.git",
            "https://gitlab.example.com/group/sub/fleet/-/merge_requests/new?"
            "merge_request%5Bsource_branch%5D=caphv%2Fbundles&merge_request%5Btarget_branch%5D=main",
        ),
        ("https://codeberg.org/org/fleet", "https://codeberg.org/org/fleet/compare/main...caphv/bundles"),
        (
            "https://bitbucket.org/org/fleet.git",
            "https://bitbucket.org/org/fleet/pull-requests/new?source=caphv/bundles&dest=main",
        ),
        ("https://git.example.com/fleet.git", ""),
        ("file:///srv/fleet.git", ""),
    ],
)
def test_address_follows_from_the_name_of_the_host(url: str, address: str) -> None:
    request = merge_request_to_open(Remote(url, review="caphv/bundles"))
    assert (request.address, request.is_open) == (address, False)
    assert str(request).startswith("open a merge request for branch caphv/bundles at ")


GITLAB = """\
remote:
remote: View merge request for caphv/bundles:
remote:   https://git.example.com/org/fleet/-/merge_requests/7
"""
GITHUB = """\
remote: Create a pull request for 'caphv/bundles' on GitHub by visiting:
remote:      https://git.example.com/org/fleet/pull/new/caphv/bundles
"""
GITEA = """\
remote: Create a new pull request for 'caphv/bundles':
remote:   https://git.example.com/org/fleet/compare/main...caphv/bundles
"""
GITEA_OPEN = """\
remote: Visit the existing pull request:
remote:   https://git.example.com/org/fleet/pulls/12
"""


@pytest.mark.parametrize(
    ("output", "path", "is_open"),
    [
        (GITLAB, "/-/merge_requests/7", True),
        (GITHUB, "/pull/new/caphv/bundles", False),
        (GITEA, "/compare/main...caphv/bundles", False),
        (GITEA + GITEA_OPEN, "/pulls/12", True),
    ],
)
def test_what_the_host_prints_is_preferred(output: str, path: str, is_open: bool) -> None:
    remote = Remote("ssh://git@git.example.com/org/fleet.git", review="caphv/bundles")
    request = find_merge_request(remote, f"To {remote.url}\n{output}Done\n")
    assert request
    assert (request.address, request.is_open) == (f"https://git.example.com/org/fleet{path}", is_open)


@pytest.mark.parametrize(
    "output",
    [
        GITLAB.replace("git.example.com", "evil.example.com"),
        GITLAB.replace("remote: ", "local: "),
        GITLAB.replace("/-/merge_requests/7", ""),
        GITLAB.replace("https://git.example.com", "https://[git.example.com"),
        "",
    ],
)
def test_other_addresses_are_ignored(output: str) -> None:
    assert find_merge_request(Remote("https://git.example.com/org/fleet.git", review="caphv/bundles"), output) is None


def test_the_title_is_set_once() -> None:
    remote = Remote("https://git.example.com/fleet.git", "production", review="caphv/bundles")
    target = ["--push-option=merge_request.create", "--push-option=merge_request.target=production"]
    text = "Update clusters/team-a/one\n\nmtu 1450→1400\n"
    assert push_options(remote, text, is_new=False) == target
    assert push_options(remote, text, is_new=True) == [
        *target,
        "--push-option=merge_request.title=Update clusters/team-a/one",
    ]
