"""Writes lists of rules into pages of the docs, between marks, so that no rule is forgotten.

A page holds `<!-- rules: NAME -->` and `<!-- end of rules -->`, each on a line of its own; what is between them is
generated. A list may move to another page with its marks. `release.ruletables` says which lists there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from caphv.validation.rule import Rule

Part = Callable[[], Iterable[str]]
"""Yields the lines of one list."""

_MARKED = re.compile(
    r"^<!-- rules: (?P<name>[a-z-]+) -->\n(?P<old>.*?)^<!-- end of rules -->$", re.MULTILINE | re.DOTALL
)


def table(rules: Iterable[Rule]) -> Iterator[str]:
    """Yield a table of rules, with what each says."""
    yield from ("| Rule | Severity | What must hold |", "|---|---|---|")
    yield from (f"| `{rule.name}` | {rule.severity} | {rule.description} |" for rule in rules)


def section(rule: Rule, example: str) -> Iterator[str]:
    """Yield a section about one rule."""
    fields = ", ".join(f"`{field}`" for field in rule.fields)
    where = " · ".join(filter(None, (rule.severity.capitalize(), ", ".join(rule.kinds), fields)))
    yield from (f"### {rule.name}", "", f"*{where}*", "", rule.description, "", example, "")


def rendered(page: str, parts: Mapping[str, Part]) -> tuple[str, list[str]]:
    """Return a page with its lists as they must be, and the names of those lists.

    Raises:
        ValueError: the page has a mark of a list that does not exist.
    """
    found: list[str] = []

    def replacement(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in parts:
            msg = f"there is no list of rules {name!r}: correct the mark; known are {', '.join(sorted(parts))}"
            raise ValueError(msg)
        found.append(name)
        lines = "\n".join(parts[name]()).strip("\n")
        return f"<!-- rules: {name} -->\n\n{lines}\n\n<!-- end of rules -->"

    return _MARKED.sub(replacement, page), found


def stale(folder: Path, parts: Mapping[str, Part]) -> dict[Path, str]:
    """Return the pages below a folder whose lists are not as they must be, with the text that they must have.

    Raises:
        ValueError: a list is on no page or on several, or a mark names none.
    """
    wanted: dict[Path, str] = {}
    places: dict[str, list[str]] = {name: [] for name in parts}
    for path in sorted(folder.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        text, names = rendered(page, parts)
        for name in names:
            places[name].append(path.name)
        if text != page:
            wanted[path] = text
    for name, pages in places.items():
        if len(pages) != 1:
            msg = f"the list of rules {name!r} must be on exactly one page, not on {', '.join(pages) or 'none'}"
            raise ValueError(msg)
    return wanted
