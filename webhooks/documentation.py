"""Writes the list of rules in `docs/validation.md` from the rules themselves, so that none is forgotten.

`python -m webhooks.documentation` writes it; with `--check` it writes nothing and fails when it is stale. What stands
before the mark is written by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from caphv import data
from caphv.manifests.traps import TRAPS
from webhooks.together import CHECKS
from webhooks.verdict import RULES

MARK = "<!-- From here on: python -m webhooks.documentation -->\n"


def rendered(page: str) -> str:
    """Return the page with the list of rules as it has to be. Raises ValueError when the page lacks the mark."""
    by_hand, mark, _ = page.partition(MARK)
    if not mark:
        msg = f"docs/validation.md has no line {MARK.strip()!r}: write it where the rules are to stand"
        raise ValueError(msg)
    return by_hand + mark + "\n".join(["", *_rules(), *_checks(), *_traps()])


def _rules() -> Iterator[str]:
    yield from ("## One object", "", "Told by the webhook and by `caphv validate` alike.", "")
    for rule in RULES.values():
        fields = ", ".join(f"`{field}`" for field in rule.fields)
        yield from _section(
            rule.name, rule.severity, rule.kinds, rule.description, f"Example: {rule.example}", fields=fields
        )


def _checks() -> Iterator[str]:
    yield from ("## Several objects, and objects of Cluster API", "", "Told by `caphv validate` only.", "")
    for check in CHECKS:
        severity = "warning" if check.advice else "error"
        yield from _section(check.name, severity, check.kinds, check.description, f"Example: {check.example}")


def _traps() -> Iterator[str]:
    yield from ("## YAML", "", "Told by `caphv validate` only, of any file.", "")
    for trap in TRAPS:
        severity = "warning" if trap.advice else "error"
        yield from _section(trap.name, severity, (), trap.description, f"```text\n{trap.example}\n```")


def _section(
    name: str, severity: str, kinds: tuple[str, ...], description: str, example: str, *, fields: str = ""
) -> Iterator[str]:
    where = " · ".join(filter(None, (severity.capitalize(), ", ".join(kinds), fields)))
    yield from (f"### {name}", "", f"*{where}*", "", description, "", example, "")


def main(arguments: list[str] | None = None) -> int:
    """Write `docs/validation.md`, or with `--check` compare only; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m webhooks.documentation", description="Generate docs/validation.md."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is stale")
    check = parser.parse_args(arguments).check
    path: Path = data.folder("docs") / "validation.md"
    page = path.read_text(encoding="utf-8")
    wanted = rendered(page)
    if check and page != wanted:
        sys.stderr.write("docs/validation.md is stale: run python -m webhooks.documentation\n")
        return 1
    if page != wanted:
        path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
