"""The generated pages are fresh, and say what they are made from."""

import re
from collections import Counter
from pathlib import Path

import pytest

from caphv.api import generated
from caphv.validation import documentation
from caphv.validation.yaml import yaml_rules
from packager.addons import validation as addons
from packager.definitions import validation as definitions
from tests import corpus
from tools.generate import reference, ruletables
from webhooks import crossobject
from webhooks.admission import RULES

pytestmark = pytest.mark.unit


def test_reference_is_fresh(checkout: Path) -> None:
    assert generated.stale(reference.files(checkout / "docs" / "reference")) == []
    assert reference.main(["--check"]) == 0


def test_reference_names_nested_fields_with_limits_versions_and_examples() -> None:
    pages = reference.render()
    machine, template = pages["harvestermachine.md"], pages["harvestermachinetemplate.md"]
    assert "| `spec.volumes[].volumeType` | string" in machine
    assert "In v1alpha1:" in machine
    assert "`spec.template.spec.volumes[].storageClass`" in template
    assert "`spec.loadBalancerConfig.ipPool.rangeStart`" in pages["harvestercluster.md"]
    assert all(f"({name})" in pages["README.md"] for name in pages if name != "README.md")


def test_stale_pages_are_noticed(tmp_path: Path) -> None:
    for name, text in reference.render().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "README.md").write_text("old")
    (tmp_path / "obsolete.md").write_text(f"old\n{reference.MARK}\n")
    (tmp_path / "metrics.md").write_text("written by hand")
    stale = generated.stale(reference.files(tmp_path))
    assert [path.name for path in stale] == ["README.md", "obsolete.md"]


def test_lists_of_rules_are_fresh() -> None:
    assert ruletables.main(["--check"]) == 0


def test_every_rule_is_listed_on_a_page(checkout: Path) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (checkout / "docs").glob("*.md"))
    pages += ruletables.site_page()
    every = [
        rule.name
        for rules_of_set in (yaml_rules.RULES, crossobject.rules(), definitions.rules(), addons.rules())
        for rule in rules_of_set
    ]
    listed = set(re.findall(r"^(?:### |\| `)([a-z0-9-]+)`?(?= \||$)", pages, re.MULTILINE))
    assert set(every) <= listed
    # Definitions and settings of add-ons share the one about credentials.
    assert [name for name, count in Counter(every).items() if count > 1] == ["no-secrets-in-git"]


def test_rules_say_what_must_hold() -> None:
    sets = (yaml_rules.RULES, crossobject.rules(), definitions.rules(), addons.rules())
    assert [rule.name for rules_of_set in sets for rule in rules_of_set if " must " not in rule.description] == []


def test_every_example_breaks_its_rule_and_the_page_shows_the_message() -> None:
    page = ruletables.site_page()
    for rule in RULES.values():
        findings = ruletables.findings_of_example(rule)
        assert findings, rule.name
        assert all(f"\n{finding}\n" in page for finding in findings), rule.name


def test_the_page_has_an_example_of_each_keyword_of_the_schemas() -> None:
    page = ruletables.site_page()
    keywords = {rule for case in corpus.invalid() for _, rule in case.errors if rule.startswith("schema-")}
    assert [keyword for keyword in sorted(keywords) if f"[{keyword}]" not in page] == []


def test_the_site_has_a_heading_for_each_rule_and_no_text_of_the_repository(checkout: Path, tmp_path: Path) -> None:
    assert ruletables.main(["--site", str(tmp_path)]) == 0
    page = (tmp_path / "docs" / "validation.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert {*RULES, *(rule.name for rule in yaml_rules.RULES)} <= set(headings)
    assert "make docs" not in page
    committed = (checkout / "docs" / "validation.md").read_text(encoding="utf-8")
    assert committed.count("`make docs` writes the list") == len(ruletables.SITE_PARTS)
    assert not set(headings) & set(re.findall(r"^### (.+)$", committed, re.MULTILINE))


PARTS = {"some": lambda: ["| a |"]}
MARKED = "# Page\n\n<!-- rules: some -->\nold\n<!-- end of rules -->\n"


def test_a_list_is_written_between_its_marks(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(MARKED)
    ((path, text),) = documentation.stale(tmp_path, PARTS).items()
    assert text == "# Page\n\n<!-- rules: some -->\n\n| a |\n\n<!-- end of rules -->\n"
    path.write_text(text)
    assert documentation.stale(tmp_path, PARTS) == {}


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ({}, "not on none"),
        ({"one.md": MARKED, "two.md": MARKED}, "not on one.md, two.md"),
        ({"one.md": MARKED.replace("some", "other")}, "no list of rules 'other'"),
    ],
)
def test_a_list_that_is_nowhere_or_twice_is_an_error(tmp_path: Path, pages: dict[str, str], message: str) -> None:
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        documentation.stale(tmp_path, PARTS)
