"""Recordings of commands: what a terminal shows, and the picture that is drawn of it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tests.support.paths import CHECKOUT
from tools.website.recording import LAST_FRAME_SECONDS, Terminal, draw

pytestmark = pytest.mark.unit

SVG = "{http://www.w3.org/2000/svg}"


def texts(terminal: Terminal) -> list[str]:
    return ["".join(text for text, _ in line) for line in terminal.screen()]


def test_progress_is_drawn_over() -> None:
    terminal = Terminal(columns=20, rows=4)
    terminal.write("first\r\n\x1b[1;32mgreen\x1b[0m plain\r\nold\r\n")
    terminal.write("\x1b[1A\r\x1b[2Knew\x1b[?25l")
    assert texts(terminal) == ["first", "green plain", "new", ""]
    assert terminal.screen()[1] == (("green", "b c32"), (" plain", ""))


def test_long_lines_are_broken_and_old_ones_scroll_away() -> None:
    terminal = Terminal(columns=4, rows=2)
    terminal.write("abcdef\r\nx\r\n")
    assert texts(terminal) == ["x", ""]
    # What has scrolled away cannot be reached.
    terminal.write("\x1b[9A\rz")
    assert texts(terminal) == ["z", ""]


def test_a_line_of_several_frames_is_drawn_once_and_the_last_frame_stays() -> None:
    terminal = Terminal(rows=3)
    frames = []
    for second, text in enumerate(("$ run\r\n", "<one>\r\n", "two\r\n")):
        terminal.write(text)
        frames.append((float(second), terminal.screen()))
    picture = draw(frames, speed=1)
    root = ElementTree.fromstring(picture)
    assert [text.findtext(f"{SVG}tspan") for text in root.iter(f"{SVG}text")] == ["$ run", "<one>", "two"]
    assert [len(list(frame)) for frame in root.iter(f"{SVG}g") if frame.get("id")] == [1, 2, 2]
    assert f"f2 {2 + LAST_FRAME_SECONDS:.2f}s" in picture


def test_the_recorded_demo_shows_all_of_it() -> None:
    picture = (CHECKOUT / "docs" / "images" / "demo.svg").read_text(encoding="utf-8")
    shown = "\n".join("".join(text.itertext()) for text in ElementTree.fromstring(picture).iter(f"{SVG}text"))
    assert "caphv sandbox demo" in shown
    assert re.search(r"OK: \d+ of \d+ steps", shown)
    assert "Traceback" not in shown
    # Nothing is loaded from elsewhere, and nothing is run.
    assert set(re.findall(r"https?://[^\"'<\s]+", picture.replace("http://www.w3.org/2000/svg", ""))) <= set(
        re.findall(r"https?://127[^\"'<\s]+", picture)
    )
    assert "<script" not in picture
