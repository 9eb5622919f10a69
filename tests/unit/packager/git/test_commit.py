"""What a commit says, and the stream that makes it."""

import pytest

from packager.git.changeplan import Plan
from packager.git.commit import BASE_TRAILER, Identity, Reason, base_of, message, stream
from packager.git.pruning import Removal, Skipped

pytestmark = pytest.mark.unit


def test_message_of_one() -> None:
    planned = Plan(write={"clusters/a/one/x": b""}, changed=("clusters/a/one",))
    text = "Update clusters/a/one\n\nThe MTU changed.\n\nChanged:\n- clusters/a/one\n\nSource: abc\n"
    assert message(planned, Reason("The MTU changed.", {"Source": "abc"})) == text


def test_message_of_many_tells_everything() -> None:
    planned = Plan(
        write={"x": b""},
        added=("c/a/1", "c/a/2"),
        changed=("c/a/3",),
        removed=(Removal("c/a/4", "cni", ("cni/fleet.yaml",)),),
        held=(Skipped("c/a/5", "too many"),),
        refused=(Skipped("c/a/6", "of others"),),
    )
    lines = message(planned, Reason("why")).splitlines()
    assert lines[0] == "Add 2, update 1, remove 1 folders"
    assert {"- c/a/1", "- c/a/2", "- c/a/3", "- c/a/4/cni", "- c/a/5: too many", "- c/a/6: of others"} <= set(lines)


def test_long_lists_end() -> None:
    planned = Plan(added=tuple(f"c/a/{number}" for number in range(1500)))
    assert "- and 500 more" in message(planned, Reason("why"))


@pytest.mark.parametrize("line_break", ["\n", "\r", "\x85", "\u2028", "\u2029"])
def test_message_takes_no_lines_and_trailers_from_outside(line_break: str) -> None:
    why = f"why{line_break}{BASE_TRAILER}: abc"
    text = message(Plan(added=("c/a/1",)), Reason(why, {"Source": f"x{line_break}Signed-off-by: y"}))
    assert base_of(text) == ""
    assert "\nSigned-off-by" not in text


def test_base_of_a_review() -> None:
    assert base_of(message(Plan(added=("c/a/1",)), Reason("why", {BASE_TRAILER: "abc"}))) == "abc"


@pytest.mark.parametrize(("name", "email"), [("", "a@b"), ("a\nb", "a@b"), ("a", "<a@b>"), ("a", " ")])
def test_identities_that_git_could_not_store(name: str, email: str) -> None:
    with pytest.raises(ValueError, match="author"):
        Identity(name, email)


def test_stream() -> None:
    planned = Plan(write={"b": b"2\n", "a": b"1"}, delete=("c",))
    written = b"".join(stream(planned, "text\n", Identity("n", "e@x"), "f" * 40, "sub"))
    head, _, rest = written.partition(b"from ")
    assert b"committer n <e@x> " in head
    assert head.endswith(b"data 5\ntext\n\n")
    assert rest == (
        b"f" * 40
        + b"\nD sub/c\nM 100644 inline sub/a\ndata 1\n1\nM 100644 inline sub/b\ndata 2\n2\n\nget-mark :1\ndone\n"
    )


@pytest.mark.parametrize("path", ['a" b', "a\nM 100644 inline b", "../a"])
def test_stream_refuses_paths_that_would_be_commands(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        b"".join(stream(Plan(write={path: b""}), "", Identity(), "", ""))
