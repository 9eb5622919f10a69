"""Numbers with their nouns, as sentences need them."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as `1 machine`, `2 machines` or `2 addresses`.

    :param number: how many
    :param noun: singular, perhaps with words that follow it
    :param plural: its plural where that is irregular or words follow
    """
    if number == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number} {plural or noun + ending}"


def and_more(number: int) -> str:
    """Return ` and 3 more` for three omitted objects, an empty text for none.

    :param number: how many are omitted; may be negative
    """
    return f" and {number} more" if number > 0 else ""


def name_some(names: Sequence[str], most: int = 5, separator: str = ", ") -> str:
    """Name the first objects and count the others: `a, b and 3 more`."""
    return separator.join(names[:most]) + and_more(len(names) - most)
