"""Remove control characters from texts of servers, tenants and files before they are shown."""

import re

LONGEST_ERROR = 4096
LONGEST_EVENT = 1024
LONGEST_LOG = 16 * 1024

# An escape sequence of a terminal. A sequence that sets a title ends with BEL or ST.
_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|\x1b\[[0-?]{0,32}[ -/]{0,8}[@-~]?|\x1b[@-_]?"
)

_SPACES = str.maketrans("\n\r\t", "   ")


def plain(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters, without escape sequences.

    Other control characters become blanks. Line feeds and tabs stay, because messages of several
    lines use them.
    """
    shortened = text if len(text) <= longest else f"{text[: longest - 1]}…"
    if shortened.isprintable():
        return shortened
    without_sequences = _SEQUENCE.sub("", shortened)
    return "".join(
        char if char.isprintable() or char in "\n\t" else " " for char in without_sequences
    )


def printable(text: str) -> str:
    r"""Return a text with `\u` escapes for everything that a terminal could interpret.

    The escapes keep removed characters visible. They also replace line feeds, and Unicode's
    controls of direction, which display a text in another order.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def one_line(text: str) -> str:
    """Return a printable text in one line, with spaces for line feeds and tabs."""
    return printable(text.translate(_SPACES))
