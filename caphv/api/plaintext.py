"""Text of servers and tenants for conditions, Events, errors and logs: bounded, with nothing that a terminal obeys."""

import re

LONGEST_ERROR = 4096
LONGEST_EVENT = 1024
LONGEST_LOG = 16 * 1024

# An escape sequence of a terminal; the text of one that sets a title ends with BEL or ST.
_SEQUENCE = re.compile(r"\x1b\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|\x1b\[[0-?]{0,32}[ -/]{0,8}[@-~]?|\x1b[@-_]?")


def plain(text: str, longest: int) -> str:
    """Return a text of at most `longest` characters, without escape sequences and without other control characters.

    Line feeds and tabs stay: messages of several lines use them.
    """
    text = text if len(text) <= longest else f"{text[: longest - 1]}…"
    if text.isprintable():
        return text
    text = _SEQUENCE.sub("", text)
    return "".join(one if one.isprintable() or one in "\n\t" else " " for one in text)
