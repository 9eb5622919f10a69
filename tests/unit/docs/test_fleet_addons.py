"""The pages about add-ons name every variable."""

import re

import pytest

from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit


def test_every_variable_for_git_is_explained() -> None:
    page = (CHECKOUT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    sources = [*(CHECKOUT / "packager").rglob("*.py"), *(CHECKOUT / "commands").rglob("*.py")]
    used = {name for path in sources for name in re.findall(r"\"(CAPHV_GIT_\w+)\"", path.read_text(encoding="utf-8"))}
    assert used == set(re.findall(r"^\| `(CAPHV_GIT_\w+)` \|", page, re.MULTILINE))
