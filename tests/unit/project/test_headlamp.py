"""The Headlamp plugin says what the provider says. Its own tests run with npm: `make headlamp`."""

import json
import re
from typing import Any

import pytest

from caphv.api.names import Reason
from tests.support.paths import CHECKOUT
from tools.generate import headlamp
from tools.release.__main__ import project_version

pytestmark = pytest.mark.unit

FOLDER = CHECKOUT / "headlamp"
# Of a condition that is true, unlike the others.
GOOD = {Reason.CLOUD_PROVIDER_CONFIG_GENERATED, Reason.CUSTOM_IP_POOL_CREATED}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return content


def test_plugin_has_a_remedy_for_every_reason() -> None:
    reasons = read("src/conditions.json")["reasons"]
    assert [reason for reason in Reason if reason not in GOOD and not reasons.get(reason)] == []


def test_remedies_are_plain_text() -> None:
    page = "\n## Reasons\n\n| `A`, `B` | See [x](y.md#z) and `c`. |\n| Reason | no reason |\n"
    assert headlamp.remedies(page) == dict.fromkeys("AB", "See x and c.")
    texts = headlamp.remedies((CHECKOUT / "docs/reference/conditions.md").read_text(encoding="utf-8")).values()
    assert [text for text in texts if re.search(r"[`\[\]]", text)] == []


def test_plugin_has_the_version_of_the_project() -> None:
    lock = read("package-lock.json")
    assert {read("package.json")["version"], lock["version"], lock["packages"][""]["version"]} == {project_version()}


def test_packages_are_pinned_by_hash_and_name_no_registry() -> None:
    packages = [package for path, package in read("package-lock.json")["packages"].items() if path]
    assert len(packages) > 100
    assert [package for package in packages if not package.get("integrity") or "resolved" in package] == []
    pins = read("package.json")["devDependencies"].values()
    assert [pin for pin in pins if not re.fullmatch(r"\d+\.\d+\.\d+", pin)] == []


def test_plugin_asks_for_no_right_but_to_read() -> None:
    sources = [path for path in (FOLDER / "src").glob("*.ts*") if not path.name.endswith(".test.ts")]
    assert len(sources) > 5
    writes = re.compile(
        r"\b(ApiProxy|request|fetch|apiFactory)\b|\.(delete|update|patch|put|scale|create)\(|secrets?\b", re.IGNORECASE
    )
    lines = {line for path in sources for line in path.read_text(encoding="utf-8").splitlines() if writes.search(line)}
    # The name of the Secret with the credentials is shown, and never read.
    assert all("identitySecret" in line for line in lines)
