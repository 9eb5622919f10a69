"""The site has every page, and links lead to headings that are there; `make docs` checks the rest."""

import posixpath
import re
from typing import Any

import pytest
import yaml

from tests.support.paths import CHECKOUT
from tools.generate import ruletables

pytestmark = pytest.mark.unit

SITE = yaml.safe_load((CHECKOUT / "tools" / "website" / "mkdocs.yml").read_text(encoding="utf-8"))
PAGES = {
    path.relative_to(CHECKOUT).as_posix(): path.read_text(encoding="utf-8")
    for pattern in ("*.md", "clusterclass/*.md", "examples/*.md", "docs/**/*.md")
    for path in CHECKOUT.glob(pattern)
}


def pages(entry: Any) -> list[str]:
    """All pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in pages(part)]


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain} | set(
        re.findall(r"<a id=\"([^\"]+)\"", text)
    )


def test_navigation_has_every_page_once() -> None:
    assert sorted(pages(SITE["nav"])) == sorted(PAGES)


def test_links_lead_to_headings() -> None:
    missing = []
    for page, text in PAGES.items():
        for target, anchor in re.findall(r"\]\(([^):#]*\.md)?#([^)]+)\)", text):
            there = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
            if anchor not in anchors(PAGES[there]):
                missing.append(f"{page}: {target}#{anchor}")
    assert missing == []


def linked_from(page: str) -> set[str]:
    """The pages that a page links to."""
    folder = posixpath.dirname(page)
    targets = re.findall(r"\]\(([^):#]+\.md)(?:#[^)]*)?\)", PAGES[page])
    return {posixpath.normpath(posixpath.join(folder, target)) for target in targets} & PAGES.keys()


def test_two_clicks_lead_from_the_readme_to_every_page() -> None:
    first = linked_from("README.md")
    second = {target for page in first for target in linked_from(page)}
    assert PAGES.keys() - {"README.md"} - first - second == set()


# Pages about the project, and those whose claims name the tests that hold them.
ABOUT_TESTS = re.compile(
    r"[A-Z]+\.md|docs/(adr/.*|architecture|development|live-tests|performance|security|simulators|reference/(contract|go-provider|support))\.md"
)


@pytest.mark.parametrize("page", sorted(page for page in PAGES if not ABOUT_TESTS.fullmatch(page)))
def test_pages_for_users_do_not_say_how_the_project_is_tested(page: str) -> None:
    assert re.findall(r"\btests/[\w/]+|make test-?\w*|pytest", PAGES[page]) == []


def test_nothing_is_loaded_from_elsewhere() -> None:
    """`make docs` checks the built pages; fonts come from the system, and the theme does not ask GitHub."""
    assert SITE["theme"]["font"] is False
    assert SITE["plugins"] == ["search"]
    folder = CHECKOUT / "tools" / "website"
    own = [folder / "style.css", *(folder / "overrides").rglob("*.html")]
    assert [path.name for path in own if "http" in path.read_text(encoding="utf-8")] == []
    assert "data-md-component" not in (folder / "overrides" / "partials" / "source.html").read_text(encoding="utf-8")


def test_landing_page_leads_to_pages_that_exist() -> None:
    text = (CHECKOUT / "tools" / "website" / "overrides" / "home.html").read_text(encoding="utf-8")
    links = re.findall(r"href=\"([^\"]+)\.html\"", text)
    assert len(links) == 3
    assert [link for link in links if f"{link}.md" not in PAGES] == []


def test_pages_show_the_same_on_the_site_and_in_the_repository() -> None:
    # The site draws no mermaid, and keeps the backslash of an escaped pipe in code.
    shown = {**PAGES, "docs/validation.md": ruletables.site_page()}
    found = [page for page, text in shown.items() if "```mermaid" in text or re.search(r"`[^`\n]*\\\|[^`\n]*`", text)]
    assert found == []
