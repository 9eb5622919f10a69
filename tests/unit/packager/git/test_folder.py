"""Folders know their Git ids; a record says what is the packager's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.git.folder import FILE_LIST, Folder, blob_id, file_list, parse_file_list, tree_id

pytestmark = pytest.mark.unit
SEGMENTS = st.text("abcAB.-_01", min_size=1, max_size=4).filter(lambda name: name.strip("."))
PATHS = st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join)


def test_ids_are_those_of_git() -> None:
    """`git hash-object` and `git write-tree` reported so; `a.b` sorts before folder `a`, and that before `a0`."""
    assert blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert tree_id({}) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    files = {"a.b": b"1", "a/x": b"2", "a/b/y": b"3", "a0": b"4", "Z": b""}
    assert tree_id(files) == "86e9689b7f3a0f05b81b5506a73ba2951a58951a"


@given(st.sets(PATHS))
def test_records_say_what_they_were_made_of(paths: set[str]) -> None:
    assert parse_file_list(file_list(paths)) == paths
    assert file_list(sorted(paths)) == file_list(sorted(paths, reverse=True))


def test_strange_records() -> None:
    assert parse_file_list(None) == frozenset()
    assert parse_file_list(b"# x\n../a\n/etc/passwd\n\n\xff\nok\n.git/config\n") == {"ok"}


@pytest.mark.parametrize("path", ["../a", "/a", "a/../../b", FILE_LIST, ".git/config", "", "a\nb"])
def test_paths_outside_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        Folder({path: b""})


def test_a_file_cannot_be_a_folder_too() -> None:
    with pytest.raises(ValueError, match="another file"):
        Folder({"a": b"", "a/b": b""})


def test_id_changes_with_content_and_names() -> None:
    ids = {Folder(files).id for files in ({"a": b""}, {"b": b""}, {"a": b"x"}, {"a/a": b""}, {})}
    assert len(ids) == 5
