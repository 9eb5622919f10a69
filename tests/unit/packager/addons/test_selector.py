"""Label selectors mean what they mean to kubectl."""

import pytest

from packager.addons.selector import selector

pytestmark = pytest.mark.unit
LABELS = {"wave": "1", "team": "a", "example.com/canary": ""}


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("wave=1", True),
        ("wave==1,team=a", True),
        ("wave=1,team=b", False),
        ("wave!=1", False),
        ("absent!=1", True),
        ("wave in (1,2), team", True),
        ("wave notin (1, 2)", False),
        ("absent notin (1)", True),
        ("example.com/canary", True),
        ("example.com/canary=", True),
        ("!wave", False),
        ("!absent,team in (b,a)", True),
    ],
)
def test_selection(text: str, selected: bool) -> None:
    assert selector(text)(LABELS) == selected


@pytest.mark.parametrize("text", ["", "a b", "a=b c", "a in", "a in (b", "=b", "!a=b", "a,,b", "-a"])
def test_what_selects_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="selects no labels"):
        selector(text)
