"""The live page by keyboard, without colours, and as a screen reader presents it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from operations.status.page.server import Feed
from tests.support.browser import PROGRAM, Browser
from tests.support.pagestates import STATES
from tests.support.paths import CHECKOUT
from tests.support.shownpage import draw, named, show

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PROGRAM, reason="no Chromium here")]

FINDINGS = (CHECKOUT / "tests/support/accessibility.js").read_text(encoding="utf-8")
# The third one is the first one at 200 %, and the last one is as narrow as WCAG asks pages to work.
WINDOWS = ((1400, 900), (390, 844), (700, 450), (320, 640))
NAMED = {"heading", "image", "region", "table"}
CONTROLS = """[...document.querySelectorAll("a[href], button, input, summary, [tabindex]")]
  .filter(node => node.checkVisibility())"""
# The number of the control that has the focus, and whether its outline is to be seen.
FOCUSED = f"""(() => {{
  const node = document.activeElement, style = getComputedStyle(node), box = node.getBoundingClientRect();
  const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return [{CONTROLS}.indexOf(node), outlined && node.contains(top)];
}})()"""
# The tabulator begins before the first control.
FOCUS_TITLE = """(() => {
  const title = document.querySelector("h1");
  title.tabIndex = -1;
  title.focus();
  title.removeAttribute("tabindex");
})()"""
KEY = "document.activeElement.dataset.key"


async def unnamed(shown: Browser) -> list[str]:
    """The roles of elements that a screen reader presents without a name."""
    nodes = (await shown.call("Accessibility.getFullAXTree"))["nodes"]
    return [role for node in nodes if (role := role_to_name(node)) and not node.get("name", {}).get("value")]


def role_to_name(node: dict[str, Any]) -> str:
    """The role of an element that needs a name; empty for others."""
    role = str(node.get("role", {}).get("value"))
    focusable = any(each["name"] == "focusable" and each["value"]["value"] for each in node.get("properties", ()))
    return role if not node["ignored"] and (focusable or role in NAMED) else ""


async def tabs(shown: Browser, number: int, *, back: bool = False) -> list[tuple[int, bool]]:
    """What has the focus after each of some presses of the tabulator."""
    found = []
    for _ in range(number):
        await shown.press("Tab", shift=back)
        index, visible = await shown.run(FOCUSED)
        found.append((index, visible))
    return found


def test_every_state_has_names_roles_and_structure(tmp_path: Path) -> None:
    async def look(shown: Browser, feed: Feed) -> None:
        for state in STATES:
            await draw(shown, feed, state)
            for opened in (False, True):
                if opened:
                    await shown.run("document.querySelectorAll('#hosts button').forEach(button => button.click())")
                for width, height in WINDOWS:
                    await shown.resize(width, height)
                    where = f"{state.name}, {width} wide, {'opened' if opened else 'closed'}"
                    assert await shown.run(FINDINGS) == [], where
                    assert await shown.run("document.documentElement.scrollWidth <= innerWidth"), where
                assert await unnamed(shown) == [], where
            await shown.run("openHosts.clear(); draw()")

    show(tmp_path, look)


def test_kinds_of_machines_differ_by_more_than_their_colour(tmp_path: Path) -> None:
    async def look(shown: Browser, feed: Feed) -> None:
        await draw(shown, feed, named("one"))
        marks = await shown.run("Object.values(MARKS)")
        assert len(set(marks)) == len(marks)
        states = await shown.run("[...document.querySelectorAll('#hosts .spoken')].map(each => each.textContent)")
        assert states[:2] == [" control plane, ready", " worker, ready"]

    show(tmp_path, look)


@pytest.mark.parametrize("state", ["degraded", "three-hundred"])
def test_every_control_is_reached_by_keyboard_and_seen(state: str, tmp_path: Path) -> None:
    async def look(shown: Browser, feed: Feed) -> None:
        await draw(shown, feed, named(state))
        for width, height in WINDOWS:
            await shown.resize(width, height)
            number = await shown.run(f"{CONTROLS}.length")
            assert number > 5
            order = [(index, True) for index in range(number)]
            await shown.run(FOCUS_TITLE)
            assert await tabs(shown, number) == order
            assert await tabs(shown, number - 1, back=True) == order[-2::-1]

    show(tmp_path, look)


def test_the_keyboard_opens_a_host_and_shows_all_of_its_machines(tmp_path: Path) -> None:
    async def look(shown: Browser, feed: Feed) -> None:
        await draw(shown, feed, named("three-hundred"))
        rows = "document.querySelectorAll('#hosts .machines li').length"
        assert await shown.run(rows) == 0
        await shown.run("document.querySelector('#hosts button').focus()")
        await shown.press("Enter")
        assert await shown.run("document.activeElement.ariaExpanded") == "true"
        assert await shown.run(rows) > 400
        text = await shown.run("document.querySelector('#hosts .machines').innerText")
        for part in ("region-8/edge-007", "control plane", "v1.36.2+rke2r1", "10.0.0.", "ready"):
            assert part in text
        await shown.press("Enter")
        assert await shown.run(rows) == 0

    show(tmp_path, look)


def test_an_update_keeps_focus_selection_and_scroll_position(tmp_path: Path) -> None:
    async def look(shown: Browser, feed: Feed) -> None:
        await draw(shown, feed, named("thirty"))
        await shown.run("document.querySelector('#counts [data-key=Progressing]').focus()")
        await shown.press("Enter")
        assert await shown.run(f"[{KEY}, document.activeElement.ariaPressed]") == ["Progressing", "true"]
        await shown.press("Enter")

        # Here a cluster has failed, so that another state comes first.
        await draw(shown, feed, named("three-hundred"))
        assert await shown.run(KEY) == "Progressing"

        await shown.run("getSelection().selectAllChildren(document.querySelector('#clusters h3'))")
        await shown.run("scrollTo(0, document.documentElement.scrollHeight)")
        before = await shown.run("[scrollY, getSelection().toString()]")
        assert before[0] > 0
        assert before[1].startswith("edge-")
        await shown.run("draw()")
        assert await shown.run("[scrollY, getSelection().toString()]") == before

    show(tmp_path, look)


def test_a_screen_reader_hears_of_changes_once(tmp_path: Path) -> None:
    async def look(shown: Browser, feed: Feed) -> None:
        await draw(shown, feed, named("thirty"))
        await shown.run(
            "globalThis.spoken = []; const ear = new MutationObserver(changes => changes.forEach("
            "({target}) => spoken.push(target.textContent)));"
            "document.querySelectorAll('[role=status]').forEach(node =>"
            " ear.observe(node, {childList: true, characterData: true, subtree: true}))"
        )
        await shown.run("draw(); live('')")
        assert await shown.run("spoken") == []

        await shown.run("document.getElementById('filter').value = 'shop-4'; draw()")
        assert await shown.run("spoken") == ["1 cluster shown, 1 degraded"]
        await shown.run("document.getElementById('filter').value = ''; spoken.length = 0")
        await draw(shown, feed, named("silent"))
        assert set(await shown.run("spoken")) == {"provider is silent", "1 cluster shown, 1 available"}

    show(tmp_path, look)


def test_nothing_moves_for_those_who_ask_for_that(tmp_path: Path) -> None:
    moving = """[...document.querySelectorAll("*")].map(node => getComputedStyle(node))
      .filter(style => parseFloat(style.transitionDuration) || style.animationName !== "none").length"""

    async def look(shown: Browser, feed: Feed) -> None:
        await draw(shown, feed, named("upgrading"))
        assert await shown.run(moving) > 0
        await shown.resize(1400, 900, still=True)
        assert await shown.run(moving) == 0

    show(tmp_path, look)
