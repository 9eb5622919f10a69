"""Write lists of rules into pages of the docs, between marks, so that no rule is forgotten.

A page holds `<!-- rules: NAME -->` and `<!-- end of rules -->` on separate lines. The text between
them is generated. With `<!-- rules on the site: NAME -->`, the list is only on the page of the
site, in place of a text that mentions this. A list may move to another page with its marks.
`tools.generate.ruletables` defines the lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from caphv.validation.rule import Rule

Part = Callable[[], Iterable[str]]
"""A function that yields the lines of one list."""

COMMITTED, ON_SITE = "rules", "rules on the site"
"""Marks of lists that are committed, and of lists that only the site has."""
_MARKED = re.compile(
    r"^<!-- (?P<mark>rules|rules on the site): (?P<name>[a-z-]+) -->\n"
    r"(?P<old>.*?)^<!-- end of rules -->$",
    re.MULTILINE | re.DOTALL,
)


def table(rules: Iterable[Rule]) -> Iterator[str]:
    """Yield the lines of a table of rules with their descriptions."""
    yield from ("| Rule | Severity | What must hold |", "|---|---|---|")
    yield from (f"| `{rule.name}` | {rule.severity} | {rule.description} |" for rule in rules)


def section(rule: Rule, example: str) -> Iterator[str]:
    """Yield the lines of a section about one rule."""
    fields = ", ".join(f"`{field}`" for field in rule.fields)
    subtitle = " · ".join(filter(None, (rule.severity.capitalize(), ", ".join(rule.kinds), fields)))
    yield from (f"### {rule.name}", "", f"*{subtitle}*", "", rule.description, "", example, "")


class RenderedPage(NamedTuple):
    """A page with its generated lists, and the names of these lists."""

    text: str
    names: list[str]


def render(page: str, parts: Mapping[str, Part], *, mark: str = COMMITTED) -> RenderedPage:
    """Return a page with its generated lists, and the names of these lists.

    Raises `ValueError` if the page has a mark of a list that does not exist.
    """
    names: list[str] = []

    def list_of(match: re.Match[str]) -> str:
        if match["mark"] != mark:
            return match[0]

        name = match["name"]
        if name not in parts:
            valid = ", ".join(sorted(parts))
            msg = f"there is no list of rules {name!r}: correct the mark; known are {valid}"
            raise ValueError(msg)

        names.append(name)
        lines = "\n".join(parts[name]()).strip("\n")
        return f"<!-- {mark}: {name} -->\n\n{lines}\n\n<!-- end of rules -->"

    return RenderedPage(_MARKED.sub(list_of, page), names)


def stale(folder: Path, parts: Mapping[str, Part]) -> dict[Path, str]:
    """Return the pages below a folder with outdated lists, with their new text.

    Raises `ValueError` if a list is on no page or on several, or if a mark names none.
    """
    texts: dict[Path, str] = {}
    pages_of: dict[str, list[str]] = {name: [] for name in parts}
    for path in sorted(folder.rglob("*.md")):
        page = path.read_text(encoding="utf-8")
        rendered = render(page, parts)
        for name in rendered.names:
            pages_of[name].append(path.name)
        if rendered.text != page:
            texts[path] = rendered.text

    for name, pages in pages_of.items():
        if len(pages) != 1:
            found = ", ".join(pages) or "none"
            msg = f"the list of rules {name!r} must be on exactly one page, not on {found}"
            raise ValueError(msg)
    return texts
