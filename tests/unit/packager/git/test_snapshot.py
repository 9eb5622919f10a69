"""A snapshot reads any path that another user wrote, of whatever depth."""

from __future__ import annotations

from typing import ClassVar

import pytest

from packager.git.folder import FOLDER, LINK, REGULAR_FILE
from packager.git.snapshot import Entry, Snapshot

pytestmark = pytest.mark.unit

DEEP = "a/" * 3000


class Objects:
    """A commit with a file in a folder, and a link next to it."""

    trees: ClassVar[dict[str, dict[str, Entry]]] = {
        "root": {"a": Entry(FOLDER, "folder"), "link": Entry(LINK, "link")},
        "folder": {"b": Entry(REGULAR_FILE, "file")},
    }

    def __init__(self, link: str = "") -> None:
        self.contents = {"commit": b"tree root\n", "file": b"x", "link": link.encode()}

    def tree(self, name: str) -> dict[str, Entry]:
        return self.trees[name]

    def content(self, name: str) -> bytes:
        return self.contents[name]


@pytest.mark.parametrize(
    ("target", "is_folder"),
    [("a", True), ("a/b", False), ("none", False), (DEEP, False), ("./" * 3000 + "a", False)],
)
def test_link_may_lead_to_a_folder(target: str, is_folder: bool) -> None:
    assert Snapshot(Objects(target), "commit").unread()["link"].is_folder == is_folder


def test_deep_path_does_not_exist() -> None:
    snapshot = Snapshot(Objects(), "commit")
    assert snapshot.read("a/b") == b"x"
    assert snapshot.read(f"{DEEP}b") is None
    assert snapshot.entries(DEEP) == {}
    assert snapshot.obstacle(f"a/b/{DEEP}c") == "a/b"
