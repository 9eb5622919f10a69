"""Write what the Headlamp plugin knows of conditions: `python -m tools.generate.headlamp`.

The plugin repeats the provider's own words. The order of conditions is that of `caphv status`, and
the meaning and remedy of each reason is the text of docs/reference/conditions.md. With `--check`,
only compare.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from caphv.api import generated
from caphv.api.names import EVACUATED_FROM_ANNOTATION, ConditionType
from operations.status.conditionproblems import NOTES, PASSING
from operations.status.diagnosis import CHOSEN, GATES, ORDER

_CHECKOUT = Path(__file__).resolve().parents[2]
_PAGE = _CHECKOUT / "docs" / "reference" / "conditions.md"
_FILE = _CHECKOUT / "headlamp" / "src" / "conditions.json"
_REASONS_HEADING = "\n## Reasons\n"
_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (.+) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def conditions() -> dict[str, object]:
    """Return the content of the file.

    `harvesterCluster` and `harvesterMachine` have the types of conditions that may name a cause,
    the most important first. `chosen` has the reasons of a user's decisions, `passing` those of
    normal steps, `notes` those that impair nothing, and `reasons` the meaning and remedy of each.
    """
    others = [kind for kind in ORDER if kind not in GATES]
    return {
        "harvesterCluster": [ConditionType.READY, *GATES, *others],
        "harvesterMachine": [ConditionType.READY, ConditionType.VM_UP_TO_DATE],
        "chosen": sorted(CHOSEN),
        "passing": sorted(PASSING),
        "notes": sorted(NOTES),
        "evacuatedFrom": EVACUATED_FROM_ANNOTATION,
        "reasons": remedies(_PAGE.read_text(encoding="utf-8")),
    }


def remedies(page: str) -> dict[str, str]:
    """Return the meaning and remedy of each reason as plain text.

    :param page: docs/reference/conditions.md
    """
    _, _, section = page.partition(_REASONS_HEADING)
    return {
        name: _LINK.sub(r"\1", text).replace("`", "")
        for names, text in _ROW.findall(section)
        for name in names.replace("`", "").split(", ")
    }


def files() -> dict[Path, str]:
    """Return the generated file with its path."""
    return {_FILE: json.dumps(conditions(), indent=2, ensure_ascii=False) + "\n"}


def main(arguments: list[str] | None = None) -> int:
    """Write the file, or check it. Return the exit status."""
    return generated.main(arguments, "tools.generate.headlamp", files())


if __name__ == "__main__":
    sys.exit(main())
