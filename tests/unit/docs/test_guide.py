"""Commands of the Go provider's guide: all are listed, tests run them, and a page has those that differ."""

from __future__ import annotations

import re

import pytest

from tests.support import guide
from tests.support.paths import CHECKOUT, GUIDE_TEXTS

pytestmark = pytest.mark.unit

MODULES = ("tests/e2e/test_guide_install.py", "tests/e2e/clusters/test_guide_clusters.py")
LISTED = [command for commands in guide.lists().values() for command in commands]


def test_the_list_has_every_command_of_the_texts_and_no_other() -> None:
    if not GUIDE_TEXTS.is_dir():
        pytest.skip("the texts of the Go provider are not part of the project")
    texts = dict(guide.of_texts(GUIDE_TEXTS))
    assert {name: missing for name, text in texts.items() if (missing := guide.unlisted(text))} == {}
    assert guide.unused([*texts.values()]) == []


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("helm uninstall caphv -n caphv-systemImportant: keep", []),
        ("make \\\n  build # binary\nmake build", []),
        ("kubectl get machines -n my-ns -wFor large clusters", []),
        ("Make sure that it works: make changes for all", []),
        ("kubectl get machines -n my-ns -o yaml", ["kubectl get machines -n my-ns -o yaml"]),
        ("# Then\nhelm upgrade caphv", ["helm upgrade caphv"]),
        ("a sentencekubectl delete cluster", []),
        ("./test/e2e/run-e2e.sh upgrade", ["./test/e2e/run-e2e.sh upgrade"]),
        ("bin/caphv-generate --name other", ["bin/caphv-generate --name other"]),
        ("kubectl apply -f other.yaml", ["kubectl apply -f other.yaml"]),
    ],
)
def test_the_search_finds_commands_that_are_not_listed(text: str, missing: list[str]) -> None:
    assert guide.unlisted(text) == missing


def test_each_list_is_run_by_its_test() -> None:
    text = "".join((CHECKOUT / module).read_text(encoding="utf-8") for module in MODULES)
    tests = guide.lists().keys() - {guide.NEWER, guide.NOT_RUN, guide.MENTIONS}
    assert tests == set(re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE))
    # A test takes its list by its name.
    assert tests == set(re.findall(r"commands\(\s*\"(\w+)\"\s*\)", text))


def test_what_differs_has_a_row_and_rows_have_a_command() -> None:
    assert {command.row for command in LISTED if command.row} == guide.rows().keys()


def test_what_is_not_run_has_a_reason() -> None:
    assert [command.text for command in guide.commands(guide.NOT_RUN) if not command.reason] == []


def test_newer_commands_differ_and_name_the_test_of_what_replaces_them() -> None:
    newer = guide.commands(guide.NEWER)
    assert len(newer) >= 5
    assert [command.text for command in newer if not command.row or not (CHECKOUT / command.reason).exists()] == []


def test_the_page_says_of_which_versions_the_texts_are() -> None:
    if not GUIDE_TEXTS.is_dir():
        pytest.skip("the texts of the Go provider are not part of the project")
    page = (CHECKOUT / "docs" / "reference" / "go-provider.md").read_text(encoding="utf-8")
    for name, text in guide.of_texts(GUIDE_TEXTS):
        (version,) = set(re.findall(r"^version: (v\S+)", text, re.MULTILINE))
        assert f"both texts as of {version}." in page, name
