"""Addresses, branches and paths: what could be an option, another transport or another folder is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.git.errors import InvalidRemote
from packager.git.paths import check_path, fault_of
from packager.git.remote import Remote

pytestmark = pytest.mark.unit
GOOD = "https://git.example.com/fleet.git"


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        (GOOD, "https"),
        ("http://git.example.com:8080/a/b", "http"),
        ("ssh://git@git.example.com:2222/a.git", "ssh"),
        ("git@git.example.com:team/a.git", "ssh"),
        ("git://[::1]:9418/a.git", "git"),
        ("file:///srv/a.git", "file"),
        ("/srv/a.git", "file"),
    ],
)
def test_addresses(url: str, scheme: str) -> None:
    assert Remote(url).scheme == scheme


@pytest.mark.parametrize(
    "url",
    [
        "",
        "--upload-pack=touch x",
        "-oProxyCommand=x",
        "ext::sh -c x",
        "ext::sh",
        "fd::17",
        "ssh://-oProxyCommand=x/a.git",
        "ssh://-user@host/a",
        "git@-host:a",
        "git@host:-a",
        "https://user:secret@host/a.git",
        "https://ghp_secret0123456789abcdefghijklmnop@host/a.git",
        "https://glpat-secret0123456789ab@host/a.git",
        "https://github_pat_secret0123456@host/a.git",
        "http://secret0123456789abcdef0123456789abcdef@host/a.git",
        "https://host/a.git?x=1",
        "https://host/a.git#x",
        "https://host:port/a.git",
        "https:///a.git",
        "HTTPS://host/a.git",
        "ftp://host/a.git",
        "file://host/a.git",
        "relative/a.git",
        "https://host/a\n.git",
        "https://host/a b.git",
    ],
)
def test_dangerous_addresses(url: str) -> None:
    with pytest.raises(InvalidRemote) as error:
        Remote(url)
    assert error.value.findings[0].field == "url"
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("user", ["git", "oauth2", "x-access-token", "x-token-auth", "kubernetes-fleet-2024-robot"])
def test_users_of_web_addresses_are_not_shown(user: str) -> None:
    remote = Remote(f"https://{user}@git.example.com/fleet.git")
    assert remote.shown == "https://git.example.com/fleet.git"
    assert Remote("git@git.example.com:team/a.git").shown == "git@git.example.com:team/a.git"


@pytest.mark.parametrize(
    "branch",
    ["", "-f", "--all", "a..b", "a b", "a~1", "a^", "a:b", "a*", "a?", "a[", "a\\b", "/a", "a/", "a//b",
     "a.lock", "a.lock/b", ".a", "a/.b", "a.", "@", "a@{1}", "a\n", "refs/heads/a", "HEAD"],
)  # fmt: skip
def test_branches_that_mean_something_else(branch: str) -> None:
    with pytest.raises(InvalidRemote, match="branch"):
        Remote(GOOD, branch=branch)


@pytest.mark.parametrize("branch", ["main", "team/fleet", "release-1.2", "caphv/review", "a@b"])
def test_branches(branch: str) -> None:
    assert Remote(GOOD, branch=branch).branch == branch


def test_all_that_is_wrong_is_reported_at_once() -> None:
    with pytest.raises(InvalidRemote) as error:
        Remote("ext::x", branch="-f", path="../x", review="main", timeout=0)
    assert {finding.field for finding in error.value.findings} == {"url", "branch", "path", "review", "timeout"}


@pytest.mark.parametrize("timeout", [-1, 0, 0.5, 3600.1, float("inf"), float("nan")])
def test_a_timeout_outside_of_the_limits_that_the_message_names(timeout: float) -> None:
    with pytest.raises(InvalidRemote, match="must be between 1 and 3600 s"):
        Remote(GOOD, timeout=timeout)


@pytest.mark.parametrize("timeout", [1, 1.5, 3600])
def test_timeouts_within_the_limits(timeout: float) -> None:
    assert Remote(GOOD, timeout=timeout).timeout == timeout


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/", "a//b", "..", "a/../b", "./a", ".git/hooks/x", "a/.GIT/x", "git~1/x", ".git./x", "a/.gitmodules",
     "a\nb", 'a"b', "a b", "a\\b", "a:b", "é", "a" * 2000],
)  # fmt: skip
def test_paths_that_leave_their_folder_or_mean_something_to_git(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        check_path(path)


@given(st.text(max_size=40))
def test_paths_that_pass_stay_inside(path: str) -> None:
    if not fault_of(path):
        parts = path.split("/")
        assert not path.startswith("/")
        assert all(part and part.strip(".") and part.lower() != ".git" for part in parts)
        assert path.isascii()
        assert path.isprintable()
