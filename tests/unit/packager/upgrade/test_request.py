"""The file that requests an upgrade in waves, as users and strangers may write it."""

from __future__ import annotations

import time

import pytest

from packager.upgrade.request import Request, parse_file, serialize

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    "request_",
    [
        Request(("canary", "10%", "rest"), 600.0, "2026.10"),
        Request(("1", "rest"), 90.0, selector="tier in (edge,core),!legacy"),
        Request(("rest",), 7 * 24 * 3600.0),
    ],
)
def test_what_is_written_is_read(request_: Request) -> None:
    assert parse_file(serialize(request_)) == request_


def test_a_request_is_written_as_a_user_would() -> None:
    text = serialize(Request(("canary", "2", "rest"), 7200.0, "2026.10")).decode()
    assert text.startswith("# An upgrade of add-ons in waves. Delete this file to stop it")
    assert parse_file(b"{waves: [canary, 2, rest], ready: 120m, release: '2026.10'}") == parse_file(text.encode())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must have fields waves, ready, release, selector, not be missing"),
        ("[1]", "must have fields waves, ready, release, selector, not be [1]"),
        ("waves: [", "is not valid YAML"),
        ("{waves: [rest], ready: 10m, wavse: 1}", "'wavse': unknown field; use waves, ready, release, selector"),
        ("ready: 10m", "waves: must be a list such as [canary, 10%, rest], not missing"),
        ("{waves: 'canary,rest', ready: 10m}", "waves: must be a list such as [canary, 10%, rest], not 'canary,rest'"),
        ("{waves: [true, rest], ready: 10m}", "waves: must have text and numbers, not True; put quotes around names"),
        ("{waves: [canary, 1], ready: 10m}", "waves: the last wave must be 'rest'"),
        ("{waves: [0, 101%, '²', a/b, rest], ready: 10m}", "'0' is no wave"),
        ("{waves: [9999999999, rest], ready: 10m}", "'9999999999' is no wave"),
        ("{waves: [rest], ready: soon}", "ready: must be a time such as 90s, 45m or 2h, not 'soon'"),
        ("{waves: [rest], ready: 10}", "ready: must be a time such as 90s, 45m or 2h, not 10"),
        ("{waves: [rest], ready: 169h}", "ready: must be at most 168h, not '169h'"),
        ("{waves: [rest], ready: 10m, release: 2026.10}", "release: must be the name of a release in quotes such as"),
        ("{waves: [rest], ready: 10m, release: '../x'}", "release: must be the name of a release in quotes"),
        ("{waves: [rest], ready: 10m, selector: 'a in'}", "selector: 'a in' selects no labels"),
        ("{waves: [rest], ready: 10m, selector: }", "selector: has no value; set one, or leave the field out"),
        ("{waves: [rest], ready: 10m, release: ~}", "release: has no value; set one, or leave the field out"),
        ("{waves: [rest], ready: 10m, selector: {a: b}}", "selector: must be a label selector of at most 1000"),
    ],
)
def test_a_wrong_request_is_explained(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as raised:
        parse_file(text.encode())
    assert problem in str(raised.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"\w") as raised:
        parse_file(b"{waves: [x y, x, x], ready: never, release: 1, selector: '=', more: 1}")
    problems = str(raised.value).split("; ")
    named = ("'more': unknown", "waves: 'x y' is no wave", "'x' is listed twice", "the last wave must", "ready: ")
    for start in (*named, "release: ", "selector: "):
        assert [start for problem in problems if problem.startswith(start)] == [start], problems


@pytest.mark.parametrize(
    "content",
    [
        b"waves: [" + b"rest, " * 101 + b"rest]\nready: 10m",
        b"{waves: ['" + b"x" * 60_000 + b"', rest], ready: 10m}",
        b"{waves: [rest], ready: 10m, selector: '" + b"a," * 30_000 + b"'}",
        b"a: &a [x]\nb: [*a, *a]",
        b"x" * 1_000_000,
        b"[" * 10_000,
        b"\xff\xfe",
        b"{waves: [rest], ready: '" + b"9" * 10_000 + b"s'}",
    ],
)
def test_a_hostile_file_is_refused_in_no_time_and_not_quoted(content: bytes) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=r"\w") as raised:
        parse_file(content)
    assert time.process_time() - started < 1
    assert len(str(raised.value)) < 500
