"""docs/security.md promises only what a test holds."""

import re

import pytest

from tests.support.paths import CHECKOUT
from tests.support.syntax import functions

pytestmark = pytest.mark.unit

PAGE = (CHECKOUT / "docs" / "security.md").read_text(encoding="utf-8")
PROMISES = PAGE.partition("## What is promised")[2].partition("\n## ")[0]
ATTACKS = PAGE.partition("## Attacks, before and after")[2].partition("\n## ")[0]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_named_test_exists(path: str, name: str) -> None:
    assert name in functions(path, nested=True)


@pytest.mark.parametrize(("table", "head"), [(PROMISES, "| Promise"), (ATTACKS, "| Attack")])
def test_every_promise_and_attack_names_a_test(table: str, head: str) -> None:
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith(head)]
    assert len(rows) > 10
    assert [row for row in rows if "::test_" not in row] == []


def test_alerts_that_the_page_names_exist() -> None:
    alerts = (CHECKOUT / "docs" / "reference" / "alerts.md").read_text(encoding="utf-8")
    (named,) = re.findall(r"Alert on \[(.*?)\]", PAGE)
    assert [name for name in named.split(" and ") if f"| `{name}` |" not in alerts] == []
