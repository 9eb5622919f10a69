"""Blanks out Jinja in bootstrap data, so that what is left is YAML, every line and column at its place.

In time linear to the text, whatever it contains: a tenant writes bootstrap data, and a regular expression for
`{{ … }}` searches to the end of the text from each `{{` that has no end.
"""

from __future__ import annotations

import re
from bisect import bisect_left

_OPENING = re.compile(r"\{[{%#]")
_CLOSING = {"{": "}}", "%": "%}", "#": "#}"}
_NOT_LINE_FEED = re.compile(r"[^\n]")
_BLANKS = re.compile(r"[ \t]*")


def masked(text: str) -> str:
    """Return the text with lines that hold only statements and comments empty, and other expressions as words."""
    return _without_expressions(_without_statement_lines(text))


def unclosed(text: str) -> tuple[int, str] | None:
    """Return line and opening mark of an expression, statement or comment without an end; None if all have one.

    cloud-init refuses such data, and the guest does not report why: `${#HOME}` in a command begins a comment.
    """
    ends, place = _Ends(text), 0
    while opening := _OPENING.search(text, place):
        place = ends.after(text, opening.start())
        if not place:
            return text.count("\n", 0, opening.start()) + 1, opening[0]
    return None


class _Ends:
    """Where expressions end."""

    def __init__(self, text: str) -> None:
        self._places = {
            kind: [found.start() for found in re.finditer(re.escape(mark), text)] for kind, mark in _CLOSING.items()
        }

    def after(self, text: str, start: int) -> int:
        """Return where the expression that opens at `start` ends, 0 when it does not."""
        places = self._places[text[start + 1]]
        index = bisect_left(places, start + 2)
        return places[index] + 2 if index < len(places) else 0


def _without_statement_lines(text: str) -> str:
    ends = _Ends(text)
    # Places between two statements from which a line of statements cannot be completed: none is tried twice.
    dead: set[int] = set()
    parts: list[str] = []
    copied = line = 0
    while line <= len(text):
        end = _end_of_statements(text, line, ends, dead)
        if end:
            parts += [text[copied:line], "\n" * text.count("\n", line, end)]
            copied = line = end
        line = text.find("\n", line) + 1
        if not line:
            break
    return "".join([*parts, text[copied:]])


def _end_of_statements(text: str, line: int, ends: _Ends, dead: set[int]) -> int:
    """Return the end of the last of the lines that hold nothing but statements from `line` on, 0 for none."""
    tried: list[int] = []
    at = _blanks_end(text, line)
    while text.startswith(("{%", "{#"), at) and at not in dead:
        tried.append(at)
        end = ends.after(text, at)
        if not end:
            break
        at = _blanks_end(text, end)
        if at == len(text) or text[at] == "\n":
            return at
    dead.update(tried)
    return 0


def _blanks_end(text: str, start: int) -> int:
    found = _BLANKS.match(text, start)
    return found.end() if found else start


def _without_expressions(text: str) -> str:
    ends = _Ends(text)
    parts: list[str] = []
    copied = at = 0
    while found := _OPENING.search(text, at):
        end = ends.after(text, found.start())
        if end:
            parts += [text[copied : found.start()], _NOT_LINE_FEED.sub("J", text[found.start() : end])]
            copied = at = end
        else:
            at = found.start() + 1
    return "".join([*parts, text[copied:]])
