"""The pages about add-ons name every variable and every rule."""

import re
from pathlib import Path

import pytest

from packager.addons.validation import RULES

pytestmark = pytest.mark.unit

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "docs" / "fleet-addons.md").read_text(encoding="utf-8")


def test_every_variable_for_git_is_explained() -> None:
    page = (CHECKOUT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    sources = [*(CHECKOUT / "packager").rglob("*.py"), *(CHECKOUT / "commands").rglob("*.py")]
    used = {name for path in sources for name in re.findall(r"\"(CAPHV_GIT_\w+)\"", path.read_text(encoding="utf-8"))}
    assert used == set(re.findall(r"^\| `(CAPHV_GIT_\w+)` \|", page, re.MULTILINE))


def test_every_rule_of_settings_is_explained() -> None:
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", PAGE, re.MULTILINE))
    assert {name: rows.get(name) for name in RULES} == RULES
    modules = ("addons/rules", "addons/services", "addons/gather", "rendering/secretscan")
    text = "".join((CHECKOUT / "packager" / f"{name}.py").read_text(encoding="utf-8") for name in modules)
    used = set(
        re.findall(
            r"\"((?:addons|cidr|cloud-provider|cloud-config(?=-)|cni|fleet|load-balancer|no|service|storage)(?:-[a-z]+)+|cidr)\"",
            text,
        )
    )
    # The last is about a Service that is in a cluster already, which files are not.
    assert used - {"service-ipam-changed"} == set(RULES)
