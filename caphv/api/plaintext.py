"""Text of servers, tenants and files for conditions, Events, errors, logs and output, without control characters."""

import re

LONGEST_ERROR = 4096
LONGEST_EVENT = 1024
LONGEST_LOG = 16 * 1024

# An escape sequence of a terminal; the text of one that sets a title ends with BEL or ST.
_SEQUENCE = re.compile(r"\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|\x1b\[[0-?]{0,32}[ -/]{0,8}[@-~]?|\x1b[@-_]?")

_SPACES = str.maketrans("\n\r\t", "   ")


def plain(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters, without escape sequences and without other control characters.

    Line feeds and tabs stay: messages of several lines use them.
    """
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    if text.isprintable():
        return text
    text = _SEQUENCE.sub("", text)
    return "".join(one if one.isprintable() or one in "\n\t" else " " for one in text)


def printable(text: str) -> str:
    r"""Return a text with everything that a terminal could obey as `\u` escapes: it shows that something was there.

    This includes line feeds, and Unicode's controls of direction, which show a text in another order than it has.
    """
    return text if text.isprintable() else "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)


def one_line(text: str) -> str:
    """Return a text as `printable` does, in one line: with spaces for line feeds and tabs."""
    return printable(text.translate(_SPACES))
