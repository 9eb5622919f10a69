"""Blank out Jinja in bootstrap data, so that YAML with the same lines and columns remains.

The time is linear in the length of the text. This matters because tenants write bootstrap data: a
regular expression for `{{ … }}` would search to the end of the text from each `{{` without an end.
"""

from __future__ import annotations

import re
from bisect import bisect_left

_OPENING = re.compile(r"\{[{%#]")
_CLOSING = {"{": "}}", "%": "%}", "#": "#}"}
_NOT_LINE_FEED = re.compile(r"[^\n]")
_BLANKS = re.compile(r"[ \t]*")


def mask(text: str) -> str:
    """Return the text without Jinja.

    Lines with only statements and comments become empty, and other expressions become words.
    """
    return _without_expressions(_StatementLines(text).blank_out())


def first_unclosed_mark(text: str) -> tuple[int, str] | None:
    """Return line and opening mark of the first expression, statement or comment without an end.

    Returns None if all have an end. cloud-init refuses data without one, and the guest does not
    report why. For example, `${#HOME}` in a command begins a comment.
    """
    ends = _Ends(text)
    place = 0
    while opening := _OPENING.search(text, place):
        place = ends.after(opening.start())
        if not place:
            return text.count("\n", 0, opening.start()) + 1, opening[0]
    return None


class _Ends:
    """Positions of all closing marks of a text, by kind."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._places = {
            kind: [match.start() for match in re.finditer(re.escape(mark), text)]
            for kind, mark in _CLOSING.items()
        }

    def after(self, start: int) -> int:
        """Return the end of the expression that opens at `start`, 0 if it has none."""
        places = self._places[self._text[start + 1]]
        index = bisect_left(places, start + 2)
        return places[index] + 2 if index < len(places) else 0


class _StatementLines:
    """Lines of a text that hold only statements and comments.

    A statement can span lines, so a run of such lines is found as a whole.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._ends = _Ends(text)
        # Positions between two statements from which no line of statements can be completed. None
        # of them is tried twice, which keeps the time linear.
        self._dead: set[int] = set()

    def blank_out(self) -> str:
        """Return the text with these lines empty."""
        text = self._text
        parts: list[str] = []
        copied = line = 0

        while line <= len(text):
            end = self._end(line)
            if end:
                parts += [text[copied:line], "\n" * text.count("\n", line, end)]
                copied = line = end
            line = text.find("\n", line) + 1
            if not line:
                break
        return "".join([*parts, text[copied:]])

    def _end(self, line: int) -> int:
        """Return the end of the lines with only statements that begin at `line`.

        Returns 0 if the line at `line` holds something else.
        """
        text = self._text
        tried = []
        place = _skip_blanks(text, line)
        while text.startswith(("{%", "{#"), place) and place not in self._dead:
            tried.append(place)
            end = self._ends.after(place)
            if not end:
                break
            place = _skip_blanks(text, end)
            if place == len(text) or text[place] == "\n":
                return place
        self._dead.update(tried)
        return 0


def _skip_blanks(text: str, start: int) -> int:
    blanks = _BLANKS.match(text, start)
    return blanks.end() if blanks else start


def _without_expressions(text: str) -> str:
    """Return the text with a word of the same length in place of each expression."""
    ends = _Ends(text)
    parts: list[str] = []
    copied = place = 0
    while opening := _OPENING.search(text, place):
        start = opening.start()
        end = ends.after(start)
        if not end:
            place = start + 1  # a brace without an end is text
            continue
        parts += [text[copied:start], _NOT_LINE_FEED.sub("J", text[start:end])]
        copied = place = end
    return "".join([*parts, text[copied:]])
