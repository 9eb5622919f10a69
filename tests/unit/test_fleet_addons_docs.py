"""The pages about add-ons name every variable."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

CHECKOUT = Path(__file__).resolve().parents[2]


def test_every_variable_for_git_is_explained() -> None:
    page = (CHECKOUT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    sources = [*(CHECKOUT / "packager").rglob("*.py"), *(CHECKOUT / "commands").rglob("*.py")]
    used = {name for path in sources for name in re.findall(r"\"(CAPHV_GIT_\w+)\"", path.read_text(encoding="utf-8"))}
    assert used == set(re.findall(r"^\| `(CAPHV_GIT_\w+)` \|", page, re.MULTILINE))
