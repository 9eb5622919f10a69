"""Reading files: what cannot be read is reported, and the rest is read."""

import io
from pathlib import Path

import pytest

from caphv.validation.yaml.loader import read_all

pytestmark = pytest.mark.unit


def test_an_unreadable_file_does_not_hide_the_others_of_its_folder(tmp_path: Path) -> None:
    for name in ("a.yaml", "c.yaml"):
        (tmp_path / name).write_text("kind: ConfigMap")
    (tmp_path / "b.yaml").symlink_to(tmp_path / "gone")
    sources, unreadable = read_all([str(tmp_path)], io.BytesIO())
    assert [Path(source.name).name for source in sources] == ["a.yaml", "c.yaml"]
    assert unreadable == [f"{tmp_path / 'b.yaml'}: No such file or directory"]


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("kind: ConfigMap")
    sources, unreadable = read_all([str(tmp_path), str(tmp_path / "a.yaml"), str(tmp_path / "none")], io.BytesIO())
    assert len(sources) == 1
    assert unreadable == [f"{tmp_path / 'none'}: No such file or directory"]
