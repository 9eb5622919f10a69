"""Rendered trees become folders, once for each tree."""

import pytest

from packager.rendering.bundler import Folders

pytestmark = pytest.mark.unit


def test_paths_are_relative_to_the_folder() -> None:
    folders = Folders().of({"a/one": {"clusters/a/one/cni/fleet.yaml": b"x", "clusters/a/one/caphv.yaml": b"y"}})
    assert dict(folders["a/one"].files) == {"cni/fleet.yaml": b"x", "caphv.yaml": b"y"}


def test_the_same_tree_is_the_same_folder() -> None:
    known = Folders()
    tree = {"clusters/a/one/x": b"1"}
    first = known.of({"a/one": tree})["a/one"]
    assert known.of({"a/one": tree})["a/one"] is first
    assert known.of({"a/one": {"clusters/a/one/x": b"2"}})["a/one"].files == {"x": b"2"}
    assert known.of({}) == {}


@pytest.mark.parametrize("path", ["clusters/a/two/x", "clusters/a/one", "x", "clusters/a/one/../two/x"])
def test_files_outside_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        Folders().of({"a/one": {path: b""}})
