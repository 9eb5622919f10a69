"""docs/troubleshooting.md has a place for every reason, every warning and every alert."""

import re

import pytest
import yaml

from caphv.api import names
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

PAGE = (CHECKOUT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
CONDITIONS, EVENTS_PAGE = (
    (CHECKOUT / "docs" / "reference" / name).read_text(encoding="utf-8") for name in ("conditions.md", "events.md")
)
HEADINGS = set(re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE))


def rows(page: str, heading: str) -> list[str]:
    """First cells of the rows between a heading, or a line of text, and the next heading."""
    section = re.split(r"^#+ ", page.split(heading, 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return [line.split("|")[1] for line in section.splitlines() if line.startswith("|") and "`" in line.split("|")[1]]


REASONS = [name for row in rows(CONDITIONS, "## Reasons") for name in re.findall(r"`(\w+)`", row)]
EVENTS = [name for row in rows(EVENTS_PAGE, "# Events") for name in re.findall(r"`(\w+)`", row)]


@pytest.mark.parametrize("name", sorted({*REASONS, *EVENTS} - {names.Reason.NOT_PAUSED, "InfrastructureDeleted"}))
def test_reasons_and_events_have_a_place(name: str) -> None:
    assert f"`{name}`" in PAGE


def test_the_lists_are_found() -> None:
    assert {"HarvesterConnectionFailed", "IdentityExpired", "VMDiffers"} <= set(REASONS)
    assert {"VMCreated", "ForcedDeletion", "NodeInitializationFailed"} <= set(EVENTS)


def test_every_alert_has_a_heading() -> None:
    found = [
        rule["alert"]
        for path in (CHECKOUT / "deploy").rglob("*.yaml")
        if "PrometheusRule" in (text := path.read_text(encoding="utf-8")) and "{{" not in text.split("spec:")[0]
        for obj in yaml.safe_load_all(text)
        if obj and obj["kind"] == "PrometheusRule"
        for group in obj["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert set(found) <= HEADINGS


def test_the_index_leads_to_every_section() -> None:
    sections = re.findall(r"^### (.+)$", PAGE.split("## The provider")[1].split("\n## Alerts")[0], re.MULTILINE)
    assert len(sections) > 20
    assert [section for section in sections if f"[{section}](#" not in PAGE] == []
