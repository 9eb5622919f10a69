"""The generated pages are fresh, and say what they are made from."""

from pathlib import Path

import pytest

from caphv.api import reference
from caphv.validation.yaml.yaml_rules import TRAPS
from tests import corpus
from webhooks import documentation
from webhooks.admission import RULES
from webhooks.crossobject import CHECKS

pytestmark = pytest.mark.unit


def test_reference_is_fresh(checkout: Path) -> None:
    assert reference.stale(checkout / "docs" / "reference") == []
    assert reference.main(["--check"]) == 0


def test_reference_names_nested_fields_with_limits_versions_and_examples() -> None:
    pages = reference.rendered()
    machine, template = pages["harvestermachine.md"], pages["harvestermachinetemplate.md"]
    assert "| `spec.volumes[].volumeType` | string" in machine
    assert "In v1alpha1:" in machine
    assert "`spec.template.spec.volumes[].storageClass`" in template
    assert "`spec.loadBalancerConfig.ipPool.rangeStart`" in pages["harvestercluster.md"]
    assert all(f"({name})" in pages["README.md"] for name in pages if name != "README.md")


def test_stale_pages_are_noticed(tmp_path: Path) -> None:
    for name, text in reference.rendered().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "README.md").write_text("old")
    (tmp_path / "obsolete.md").write_text(f"old\n{reference.MARK}\n")
    (tmp_path / "metrics.md").write_text("written by hand")
    assert reference.stale(tmp_path) == ["README.md", "obsolete.md"]


def test_list_of_rules_is_fresh_and_whole(checkout: Path) -> None:
    page = (checkout / "docs" / "validation.md").read_text(encoding="utf-8")
    assert documentation.rendered(page) == page
    assert documentation.main(["--check"]) == 0
    names = [*RULES, *(check.name for check in CHECKS), *(trap.name for trap in TRAPS)]
    assert len(set(names)) == len(names)
    assert [name for name in names if f"### {name}\n" not in page] == []


def test_every_example_is_told_by_its_rule_and_the_page_has_the_words(checkout: Path) -> None:
    page = (checkout / "docs" / "validation.md").read_text(encoding="utf-8")
    for rule in RULES.values():
        said = documentation.findings_of_example(rule)
        assert said, rule.name
        assert all(f"\n{finding}\n" in page for finding in said), rule.name


def test_the_page_shows_what_each_keyword_of_the_schemas_says(checkout: Path) -> None:
    page = (checkout / "docs" / "validation.md").read_text(encoding="utf-8")
    keywords = {rule for case in corpus.wrong() for _, rule in case.errors if rule.startswith("schema-")}
    assert [keyword for keyword in sorted(keywords) if f"[{keyword}]" not in page] == []


def test_a_page_without_the_mark_is_refused() -> None:
    with pytest.raises(ValueError, match="has no line"):
        documentation.rendered("# Validation\n")
