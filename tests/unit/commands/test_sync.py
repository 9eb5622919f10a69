"""`caphv packager sync` with repositories and folders on disk: what is written, printed and refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
import yaml

from commands.packager import sync_source
from packager.git.directory import Directory
from packager.git.remote import Remote
from packager.git.snapshot import Snapshot
from tests.support.packager.definitions import definition
from tests.support.packager.repositories import Origin
from tests.support.packager.sync import Management, call, done, put, sync

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own, and nothing of the user who runs the tests."""
    for name in ("GIT_REPO", "GIT_BRANCH", "GIT_PATH", "GIT_CREDENTIALS", "GIT_REVIEW", "GIT_CACHE", "SOURCE_REPO"):
        monkeypatch.delenv(f"CAPHV_{name}", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin.make(tmp_path / "origin.git")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "definitions"
    folder.mkdir()
    return folder


def test_lines_say_what_was_written_and_what_follows(source: Path, origin: Origin) -> None:
    put(source, definition("a"))
    shown = done(sync(source, origin, "--dry-run")).stdout
    assert "added manifests/team-a/a" in shown
    assert "nothing was written: --dry-run" in shown
    assert origin.branches() == []

    lines = done(sync(source, origin)).stdout.splitlines()
    assert f"pushed {origin.head()[:12]} to main" in lines
    assert done(sync(source, origin)).stdout == "nothing to do\n"

    put(source, definition("a", addons={"cni": {"name": "calico", "mtu": 1400}}))
    assert "changed manifests/team-a/a" in done(sync(source, origin)).stdout


def test_data_says_what_was_written_and_which_definitions_are_faulty(source: Path, origin: Origin) -> None:
    put(source, definition("a"), definition("bad", kubernetesVersion="latest"))
    result = sync(source, origin, "-o", "json")
    assert result.exit_code == 1
    content = json.loads(result.stdout)
    assert (content["commit"], content["branch"]) == (origin.head(), "main")
    assert (content["clusters"], content["faulty"]) == (["team-a/a"], ["team-a/bad"])
    (problem,) = content["problems"]
    line = (source / "bad.yaml").read_text().splitlines().index("  kubernetesVersion: latest") + 1
    assert (problem["file"], problem["line"], problem["advice"]) == ("bad.yaml", line, False)
    assert f"error: bad.yaml:{line}: " in result.stderr


def test_a_secret_among_definitions_is_no_cluster_and_must_leave_git(source: Path, origin: Origin) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x", "namespace": "team-a"}}
    put(source, definition("a"))
    (source / "secret.yaml").write_text(yaml.safe_dump(secret))
    result = sync(source, origin)
    assert result.exit_code == 1
    assert "secret.yaml:2: kind: Forbidden: a Secret must not be in Git" in result.stderr
    assert "belongs to no Cluster" not in result.stderr
    status = yaml.safe_load(origin.files()["caphv-status.yaml"])
    assert [row["name"] for row in status["clusters"]] == ["team-a/a"]


def test_a_removed_definition_is_held_until_it_is_confirmed(source: Path, origin: Origin) -> None:
    put(source, definition("a"), definition("b"))
    done(sync(source, origin))
    (source / "a.yaml").unlink()
    held = sync(source, origin)
    assert held.exit_code == 1
    assert "left manifests/team-a/a: " in held.stdout
    assert "manifests/team-a/a/cluster/cluster.yaml" in origin.files()
    lifted = sync(source, origin, "--confirm", "team-a/a")
    assert (lifted.exit_code, "changed manifests/team-a/a" in lifted.stdout) == (1, True)
    assert "removed manifests/team-a/a" in done(sync(source, origin, "--confirm", "team-a/a")).stdout
    assert not any(path.startswith("manifests/team-a/a/") for path in origin.files())


def test_the_last_definition_of_a_folder_is_removed_like_others(source: Path, origin: Origin) -> None:
    put(source, definition("a"))
    done(sync(source, origin))
    (source / "a.yaml").unlink()
    held = sync(source, origin)
    assert held.exit_code == 1
    assert "has no definition: all clusters that it defined before count as removed" in held.stderr
    assert "manifests/team-a/a/cluster/cluster.yaml" in origin.files()
    assert sync(source, origin, "--confirm", "team-a/a").exit_code == 1
    assert "removed manifests/team-a/a" in done(sync(source, origin, "--confirm", "team-a/a")).stdout


def test_a_folder_gets_the_same_files_and_no_gitrepo(source: Path, tmp_path: Path) -> None:
    put(source, definition("a"))
    result = done(call("sync", source, "--folder", tmp_path / "fleet"))
    assert (tmp_path / "fleet/manifests/team-a/a/cluster/cluster.yaml").is_file()
    assert not (tmp_path / "fleet/gitrepos").exists()
    assert "gitrepo" not in result.stdout
    assert "pushed" not in result.stdout


@pytest.mark.parametrize("path", [".", "../definitions", "{folder}"])
def test_a_commit_names_the_folder_however_its_path_is_written(
    source: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    put(source, definition("a"))
    monkeypatch.chdir(source)
    done(call("sync", path.format(folder=source), "--repo", origin.url))
    assert "Source: definitions" in origin.message().splitlines()


def test_links_count_as_unread_except_those_of_mounted_volumes(source: Path, origin: Origin) -> None:
    put(source, definition("a"), definition("b"))
    done(sync(source, origin))
    (source / "a.yaml").unlink()
    # A volume is mounted as links into a hidden folder.
    (source / "..data").mkdir()
    (source / "..data/inner").symlink_to("elsewhere")
    (source / "mounted").symlink_to("..data/mounted")
    allowed = sync(source, origin, "--confirm", "team-a/a", "--dry-run")
    assert "changed manifests/team-a/a" in allowed.stdout
    assert "symbolic link" not in allowed.output

    (source / "sub").mkdir()
    (source / "sub/other").symlink_to("../..")
    linked = sync(source, origin, "--confirm", "team-a/a")
    assert linked.exit_code == 1
    assert "sub/other:1: " in linked.stderr
    assert "is a symbolic link, which is not followed" in linked.stderr


def test_definitions_of_a_repository_are_read_from_their_branch_and_folder(origin: Origin, tmp_path: Path) -> None:
    definitions = Origin.make(tmp_path / "definitions.git")
    definitions.push({"prod/a.yaml": yaml.safe_dump(definition("a")), "test/b.yaml": yaml.safe_dump(definition("b"))})
    options = ("--source-repo", definitions.url, "--source-path", "prod", "--repo", origin.url)
    missing = call("sync", *options, "--source-branch", "gone")
    assert (missing.exit_code, f"{definitions.url} has no branch gone" in missing.output) == (2, True)
    done(call("sync", *options))
    assert f"Source: {definitions.url}@{definitions.head()}" in origin.message()
    assert {path.split("/")[2] for path in origin.files() if path.startswith("manifests/")} == {"a"}
    assert call("sync", *options, "--source-name", "#name").exit_code == 2


def test_the_user_of_an_address_is_for_git_alone(origin: Origin, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(source, definition("a"))
    store = SimpleNamespace(
        remote=Remote("https://bob@git.example.com/definitions.git"), read=Directory(source, names=["a.yaml"]).read
    )
    monkeypatch.setattr(sync_source, "open_store", lambda _: contextlib.nullcontext(store))
    done(call("sync", "--source-repo", store.remote.url, "--repo", origin.url))
    assert "Source: https://git.example.com/definitions.git@folder" in origin.message().splitlines()

    store.read = lambda read: read(Snapshot(cast(Any, None), ""))
    missing = call("sync", "--source-repo", store.remote.url, "--repo", origin.url)
    assert "https://git.example.com/definitions.git has no branch main" in missing.output


def test_a_repository_may_hold_both_in_different_folders(tmp_path: Path) -> None:
    both = Origin.make(tmp_path / "both.git")
    both.push({"definitions/a.yaml": yaml.safe_dump(definition("a"))})
    same = ("--source-repo", both.url, "--repo", both.url)
    for folders in ((), ("--source-path", "definitions", "--path", "definitions/out")):
        refused = call("sync", *same, *folders)
        assert (refused.exit_code, "output would be read as definitions" in refused.output) == (2, True)
    done(call("sync", *same, "--source-path", "definitions", "--path", "fleet"))
    assert "fleet/manifests/team-a/a/cluster/cluster.yaml" in both.files()
    inner = ("--source-path", "definitions", "--path", "definitions/out")
    done(call("sync", *same, *inner, "--branch", "rendered", "--create-branch"))
    assert "rendered" in both.branches()


@pytest.mark.parametrize(
    ("repo", "is_same"),
    [
        ("git@git.example.com:team/fleet.git", True),
        ("ssh://git@git.example.com:2222/team/fleet", True),
        ("https://bob@git.example.com/team/fleet.git/", True),
        ("https://git.example.com/team/definitions.git", False),
        ("https://other.example.com/team/fleet.git", False),
        ("", False),
        ("https://u:p@git.example.com/team/fleet.git", False),
    ],
)
def test_output_is_not_read_by_another_address_of_its_repository(repo: str, is_same: bool) -> None:
    source = SimpleNamespace(source_repo="https://git.example.com/team/fleet.git", source_branch="main", source_path="")
    refused = pytest.raises(click.UsageError, match="output would be read as definitions")
    with refused if is_same else contextlib.nullcontext():
        sync_source.refuse_circles(cast(Any, source), repo, "main", "")
    sync_source.refuse_circles(cast(Any, source), repo, "rendered", "")
    source.source_path = "definitions"
    sync_source.refuse_circles(cast(Any, source), repo, "main", "fleet")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--repo", "file:///x"],
        [".", "--source-repo", "file:///x", "--repo", "file:///y"],
        ["."],
        [".", "--folder", "x", "--client-secret", "y"],
        [".", "--folder", "x", "--source-signers", "."],
        [".", "--folder", "x", "--interval", "5"],
        [".", "--repo", "file:///x", "--interval", "5"],
        [".", "--repo", "file:///x", "--review", "y", "--apply"],
    ],
)
def test_wrong_usage_writes_nothing(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("sync", *arguments).exit_code == 2
    assert not (tmp_path / "x").exists()


def test_refused_objects_fail_and_a_dry_run_applies_nothing(
    source: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    management = Management(monkeypatch)
    put(source, definition("a"))
    done(sync(source, origin, "--apply", "--dry-run"))
    assert management.applied == 0
    management.refused = {"team-a/a"}
    result = sync(source, origin, "--apply")
    assert (result.exit_code, management.applied) == (1, 1)
    assert "forbidden" in result.stderr
    assert "Fleet applies the manifests" not in result.stdout
    management.refused = set()
    applied = done(sync(source, origin, "--apply")).stdout
    assert (management.applied, applied) == (2, "nothing to commit\napplied the objects of team-a/a\n")


def test_an_interval_syncs_new_commits_and_survives_an_unreachable_host(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = Origin.make(tmp_path / "definitions.git")
    definitions.push({"a.yaml": yaml.safe_dump(definition("a"))})
    commits: list[int] = []
    elsewhere = tmp_path / "elsewhere.git"

    def sleep(seconds: float) -> None:
        assert seconds == 5
        commits.append(origin.count())
        if len(commits) == 2:
            definitions.folder.rename(elsewhere)
        if len(commits) == 3:
            elsewhere.rename(definitions.folder)
            definitions.push({"b.yaml": yaml.safe_dump(definition("b"))})
        if len(commits) == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr("commands.packager.sync.time", SimpleNamespace(sleep=sleep))
    result = call("sync", "--source-repo", definitions.url, "--repo", origin.url, "--interval", 5)
    assert commits == [1, 1, 1, 2, 2]
    assert "nothing to do" not in result.stdout, "a round without a new commit syncs nothing"
    assert result.stdout.count("pushed") == 2
    assert result.stderr.count("error: ") == 1


def test_a_commit_on_top_of_our_own_push_is_synced_at_the_next_interval(
    origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    definitions = Origin.make(tmp_path / "definitions.git")
    definitions.push({"a.yaml": yaml.safe_dump(definition("a"))})
    manifest = "manifests/team-a/a/cluster/cluster.yaml"
    commits: list[int] = []

    def print_result(*_: object) -> None:
        # Another client pushes after ours, before the command polls again.
        if origin.count() == 1:
            origin.push({manifest: "overwritten: true"})

    def sleep(_seconds: float) -> None:
        commits.append(origin.count())
        if len(commits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("commands.packager.sync.print_result", print_result)
    monkeypatch.setattr("commands.packager.sync.time", SimpleNamespace(sleep=sleep))
    call("sync", "--source-repo", definitions.url, "--repo", origin.url, "--interval", 5)
    assert commits == [2, 3, 3]
    assert "overwritten" not in origin.files()[manifest]
