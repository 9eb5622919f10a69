"""A plain folder is planned for like a remote, and what others have there is safe."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from packager.contents.folders import compare_folders
from packager.git.changeplan import Plan
from packager.git.commit import Reason
from packager.git.directory import Directory
from packager.git.errors import UnmanagedFiles
from packager.git.folder import Folder
from packager.git.pruning import Pruning
from packager.tree import CLUSTER_ROOT

pytestmark = pytest.mark.unit


def put(directory: Directory, folders: Mapping[str, Folder], budget: int = 99) -> Plan:
    pruning = Pruning(complete=True, budget=budget)
    return directory.commit(lambda now: compare_folders(now, {CLUSTER_ROOT: folders}, pruning), Reason("a test")).plan


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_ids_are_those_of_git(tmp_path: Path) -> None:
    put(Directory(tmp_path, names=("clusters",)), {"a/one": Folder({"cni/fleet.yaml": b"x", "cni.yaml": b"y"})})
    (tmp_path / "clusters/link").symlink_to("a")
    environment = {**os.environ, "GIT_DIR": str(tmp_path / ".git"), "GIT_WORK_TREE": str(tmp_path)}
    for arguments in (["init", "-q"], ["add", "clusters/a"]):
        subprocess.run(["git", *arguments], env=environment, check=True, cwd=tmp_path)
    reported = subprocess.run(
        ["git", "write-tree"], env=environment, check=True, cwd=tmp_path, capture_output=True, text=True
    )
    listed = subprocess.run(
        ["git", "ls-tree", "-d", "-r", reported.stdout.strip()],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    ids = {line.split("\t")[1]: line.split()[2] for line in listed.stdout.splitlines()}
    snapshot = Directory(tmp_path, names=("clusters",)).sync()
    for path in ("clusters/a", "clusters/a/one", "clusters/a/one/cni"):
        entry = snapshot.entry(path)
        assert entry
        assert entry.id == ids[path]


def test_the_same_again_writes_nothing_and_what_is_deleted_leaves_no_empty_folders(tmp_path: Path) -> None:
    directory = Directory(tmp_path, "add-ons", names=("clusters",))
    folders = {"a/one": Folder({"cni/fleet.yaml": b"x"}), "a/two": Folder({"cni/fleet.yaml": b"x"})}
    put(directory, folders)
    assert set(files(tmp_path)) == {
        f"add-ons/clusters/a/{name}"
        for name in ("one/cni/fleet.yaml", "one/.caphv-files", "two/cni/fleet.yaml", "two/.caphv-files")
    }
    assert put(directory, folders).is_empty
    (tmp_path / "add-ons/clusters/a/two/mine").write_text("mine")
    put(directory, {})
    assert files(tmp_path) == {"add-ons/clusters/a/two/mine": b"mine"}
    assert not (tmp_path / "add-ons/clusters/a/one").exists()


@pytest.mark.parametrize("place", ["clusters", "clusters/a", "clusters/a/one"])
def test_a_link_is_not_followed(tmp_path: Path, place: str) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    link = inside / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    plan = put(Directory(inside, names=("clusters",)), {"a/one": Folder({"cni/fleet.yaml": b"x"})})
    assert [messages.why.partition(" ")[2] for messages in plan.refused] == ["is not a folder; move it away"]
    assert files(outside) == {}


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_list_of_files_that_is_no_file_stops_its_folder_only(tmp_path: Path, kind: str) -> None:
    directory = Directory(tmp_path, names=("clusters",))
    folders = {f"a/{name}": Folder({"cni/fleet.yaml": b"x"}) for name in ("one", "two", "unwanted")}
    put(directory, folders)
    for name in ("one", "unwanted"):
        record = tmp_path / "clusters/a" / name / ".caphv-files"
        record.unlink()
        if kind == "link":
            record.symlink_to("cni/fleet.yaml")
        else:
            record.mkdir()
            (record / "mine").touch()
    before = files(tmp_path)
    plan = put(directory, {f"a/{name}": Folder({"cni/fleet.yaml": b"new"}) for name in ("one", "two")})
    expected = "clusters/a/one/.caphv-files is not a regular file; move it away"
    assert [(refused.what, refused.why) for refused in plan.refused] == [("clusters/a/one", expected)]
    assert files(tmp_path) == {**before, "clusters/a/two/cni/fleet.yaml": b"new"}


def test_a_single_file_goes_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "inside").symlink_to(tmp_path / "outside")
    with pytest.raises(UnmanagedFiles, match="inside is not what caphv would write there"):
        Directory(tmp_path, "inside", names=("x",)).commit(lambda _: Plan(write={"x": b""}), Reason("a test"))
    assert files(tmp_path / "outside") == {}


def test_a_folder_that_is_none_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnmanagedFiles, match="cannot be written"):
        put(Directory(tmp_path / "file", names=("clusters",)), {"a/one": Folder({"cni/fleet.yaml": b"x"})})
