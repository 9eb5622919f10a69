"""Numbers with their nouns, as sentences need them."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in the form that fits: `1 machine`, `2 machines`, `1 address`, `2 addresses`.

    :param number: how many
    :param noun: singular, perhaps with words that follow it
    :param plural: its plural where that is irregular or words follow
    """
    if number == 1:
        return f"1 {noun}"
    ending = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number} {plural or noun + ending}"
