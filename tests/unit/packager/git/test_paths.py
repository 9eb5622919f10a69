"""Names in a commit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.git.paths import fault_of, may_be_checked_out

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".git", ".Git", ".GIT.", "git~1", ".git ", ".g\u200cit", ".git:x", "a/b", "a\0"]
)
def test_names_that_mean_something_else_in_a_work_tree(name: str) -> None:
    assert not may_be_checked_out(name)


@pytest.mark.parametrize("name", ["a", "...", ".gitignore", ".github", "git", "a.git", "ä b", "-x"])
def test_usual_names(name: str) -> None:
    assert may_be_checked_out(name)


@given(st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True))
def test_what_the_packager_writes_can_be_checked_out(name: str) -> None:
    assert fault_of(name) or may_be_checked_out(name)
