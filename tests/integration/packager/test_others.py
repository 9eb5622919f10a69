"""A repository is shared: a folder in it, a branch for review, files of others, links, submodules and hooks."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path

import asyncssh
import pytest

from packager.contents.folders import compare_folders
from packager.git.changeplan import Plan
from packager.git.commit import Identity, Reason
from packager.git.credentials import Credentials
from packager.git.errors import GitError, MissingBranch, UnmanagedFiles, UnusableContent
from packager.git.pruning import Pruning
from packager.git.remote import Remote
from packager.git.repository import Repository
from packager.git.snapshot import Snapshot
from tests.support.packager.repositories import CLUSTERS, SYNCED, Origin, folder, git, paths, put, wanted

pytestmark = pytest.mark.integration


def test_a_folder_in_the_repository(origin: Origin, cache: Path) -> None:
    origin.push({"clusters/a/one/cni/fleet.yaml": "of others", "fleet/prod/README.md": "x"})
    with Repository(Remote(origin.url, path="fleet/prod"), cache) as repository:
        put(repository, wanted("a/one"))
        put(repository, {})
        put(repository, wanted("b/two"))
    expected = {f"fleet/prod/{path}" for path in paths("b/two")}
    assert set(origin.files()) == expected | {"clusters/a/one/cni/fleet.yaml", "fleet/prod/README.md"}


def test_another_branch_is_created_only_when_asked_for(origin: Origin, cache: Path) -> None:
    head = origin.push({"README.md": "x"})
    problem = "has no branch team/flet, only main: correct --branch, or create the branch with --create-branch"
    misspelt = Repository(Remote(origin.url, branch="team/flet"), cache / "misspelt")
    with misspelt as repository, pytest.raises(MissingBranch, match=problem):
        put(repository, wanted("a/one"))
    assert git(origin.folder, "branch", "--list").split() == ["*", "main"]
    remote = Remote(origin.url, branch="team/fleet", create_branch=True)
    with Repository(remote, cache / "created") as repository:
        put(repository, wanted("a/one"))
    assert set(origin.files("team/fleet")) == paths("a/one")
    assert origin.head() == head


def test_a_repository_with_other_names_of_objects_is_named_as_such(tmp_path: Path, cache: Path) -> None:
    git(tmp_path, "init", "--quiet", "--object-format=sha256", "other")
    git(tmp_path / "other", "-c", "user.name=n", "-c", "user.email=e", "commit", "--allow-empty", "--message=x")
    git(tmp_path / "other", "branch", "-M", "main")
    remote = Remote(f"file://{tmp_path}/other")
    with Repository(remote, cache) as repository, pytest.raises(UnusableContent, match="names objects by SHA-256"):
        repository.sync()


def test_message_and_author(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url), cache, identity=Identity("Packager", "packager@example.com")) as repository:
        put(repository, wanted("a/one", "a/two"), why="First commit of the site.")
    reported = ["Added:", "- clusters/a/one", "- clusters/a/two"]
    assert origin.message().splitlines() == [
        "Add 2 folders",
        "",
        "First commit of the site.",
        "",
        *reported,
    ]
    who = git(origin.folder, "log", "-1", "--format=%an <%ae> %cn <%ce>", "main")
    assert who == "Packager <packager@example.com> Packager <packager@example.com>"


def test_what_is_held_back_is_reported(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url), cache) as repository:
        put(repository, wanted("a/one", "a/two"))
        wish = {"a/one": folder("a/one", 9000, ("ccm",))}
        result = put(repository, wish, Pruning(complete=True, budget=1))
        assert [reported.what for reported in result.plan.held] == [
            "clusters/a/one/cni",
            "clusters/a/one/csi",
            "clusters/a/two",
        ]
        assert "clusters/a/two: 5 removals at once exceed --max-prune 1" in origin.message()
        assert set(origin.files()) == paths("a/one", "a/two")
        assert put(repository, wish, Pruning(complete=True, budget=1)).commit == ""
        put(repository, wish, Pruning(complete=True, budget=5))
        assert set(origin.files()) == {"clusters/a/one/ccm/fleet.yaml", "clusters/a/one/.caphv-files"}
        assert "- clusters/a/one/cni" in origin.message()


def test_drift_is_repaired_and_files_of_others_stay(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url), cache) as repository:
        put(repository, wanted("a/one"))
        origin.push({"clusters/a/one/cni/fleet.yaml": "edited", "clusters/a/one/extra/fleet.yaml": "of others"})
        origin.push({"clusters/a/static/fleet.yaml": "of others"})
        result = put(repository, wanted("a/one"))
        assert set(result.plan.write) == {"clusters/a/one/cni/fleet.yaml"}
        assert put(repository, {}).plan.removed[0].folder == "clusters/a/one"
    assert set(origin.files()) == {"clusters/a/one/extra/fleet.yaml", "clusters/a/static/fleet.yaml"}


@pytest.mark.parametrize("where", ["clusters", "clusters/a", "clusters/a/one", "clusters/a/one/cni"])
def test_links_are_not_followed(where: str, origin: Origin, cache: Path, tmp_path: Path) -> None:
    target = tmp_path / "outside"
    target.mkdir()
    origin.push({where: str(target)}, mode="120000")
    with Repository(Remote(origin.url), cache) as repository:
        result = put(repository, wanted("a/one"))
    assert (result.commit, result.plan.refused[0].what) == ("", "clusters/a/one")
    assert list(target.iterdir()) == []
    assert set(origin.files()) == {where}


def test_a_link_for_the_whole_path(origin: Origin, cache: Path) -> None:
    origin.push({"fleet": "somewhere"}, mode="120000")
    with Repository(Remote(origin.url, path="fleet/prod"), cache) as repository:
        assert put(repository, wanted("a/one")).plan.refused[0].why == "fleet is not a folder; move it away"


@pytest.mark.parametrize("kind", ["link", "submodule", "folder"])
@pytest.mark.parametrize("where", ["fleet", "fleet/caphv-status.yaml"])
def test_single_files_replace_nothing_of_others(kind: str, where: str, origin: Origin, cache: Path) -> None:
    head = origin.push({"README.md": "x"})
    if kind == "submodule":
        entry = f"160000 commit {head}\t{where.rpartition('/')[2]}\n"
        tree = git(origin.folder, "mktree", "--missing", stdin=entry.encode())
        if "/" in where:
            tree = git(origin.folder, "mktree", stdin=f"040000 tree {tree}\tfleet\n".encode())
        git(origin.folder, "update-ref", "refs/heads/main", git(origin.folder, "commit-tree", "-m", "x", tree))
    else:
        origin.push(
            {f"{where}/mine": "x"} if kind == "folder" else {where: "x"},
            mode="100644" if kind == "folder" else "120000",
        )
    head, free = origin.head(), (kind, where) == ("folder", "fleet")
    with Repository(Remote(origin.url, path="fleet"), cache) as repository:
        for plan in (Plan(write={"caphv-status.yaml": b"x"}), Plan(delete=("caphv-status.yaml",))):
            with (
                contextlib.nullcontext() if free else pytest.raises(UnmanagedFiles, match=f"{where} is not what caphv")
            ):
                repository.commit(lambda _, one=plan: one, Reason("a test"))
    assert (origin.head() == head) is not free


def test_a_file_and_a_folder_of_the_packager_change_places(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url, path="fleet"), cache) as repository:
        repository.commit(lambda _: Plan(write={"a": b"", "b/c": b"", "b/d/e": b""}), Reason("a test"))
        turned = Plan(write={"a/x": b"", "b": b""}, delete=("a", "b/c", "b/d/e"))
        repository.commit(lambda _: turned, Reason("a test"))
    assert set(origin.files()) == {"fleet/a/x", "fleet/b"}


def test_hooks_and_settings_of_the_user_do_nothing(
    origin: Origin, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        f'[core]\n\tsshCommand = touch {trap}\n[url "file:///nowhere"]\n\tinsteadOf = file:\n'
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'core.pager'='x'")
    monkeypatch.setenv("GIT_TRACE", str(trap))
    with Repository(Remote(origin.url), cache) as repository:
        put(repository, wanted("a/one"))
        hooks = cache / "clone.git" / "hooks"
        hooks.mkdir()
        for name in ("reference-transaction", "pre-push", "post-commit"):
            (hooks / name).write_text(f"#!/bin/sh\ntouch {trap}\n")
            (hooks / name).chmod(0o755)
        put(repository, wanted("a/one", mtu=9000))
    assert origin.count() == 2
    assert not trap.exists()


def review(origin: Origin) -> Remote:
    return Remote(origin.url, review="caphv/review")


def test_a_branch_for_review(origin: Origin, cache: Path) -> None:
    head = origin.push({"README.md": "x"})
    with Repository(review(origin), cache) as repository:
        first = put(repository, wanted("a/one"))
        assert (first.branch, origin.head("caphv/review"), origin.head()) == ("caphv/review", first.commit, head)
        assert put(repository, wanted("a/one")).commit == ""
        second = put(repository, wanted("a/one", mtu=9000))
        assert origin.count("caphv/review") == 3
        moved = origin.push({"README.md": "y"})
        third = put(repository, wanted("a/one", mtu=9000))
        assert git(origin.folder, "rev-parse", f"{third.commit}^") == moved
        assert set(origin.files("caphv/review")) == paths("a/one") | {"README.md"}
        git(origin.folder, "update-ref", "refs/heads/main", third.commit)
        assert put(repository, wanted("a/one", mtu=9000)).commit == ""
        assert second.commit != third.commit


def test_a_proposal_that_was_taken_back_leaves_the_review(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url), cache / "main") as repository:
        put(repository, wanted("a/one", "a/two"))
    head, tree = origin.head(), origin.tree()
    with Repository(review(origin), cache / "review") as repository:
        for proposal in (wanted("a/one"), wanted("a/one", "a/two", mtu=9000)):
            put(repository, proposal)
            assert origin.tree("caphv/review") != tree
            result = put(repository, wanted("a/one", "a/two"))
            assert (origin.tree("caphv/review"), result.head) == (tree, head)
            assert put(repository, wanted("a/one", "a/two")).commit == ""


def test_a_removed_cluster_returns_to_the_review_as_it_was(origin: Origin, cache: Path) -> None:
    with Repository(Remote(origin.url), cache / "main") as repository:
        put(repository, wanted("a/one", "a/two"))

    def planned(snapshot: Snapshot) -> Plan:
        pinned = snapshot.read("clusters/a/one/cni/fleet.yaml") is not None
        one = wanted("a/one", mtu=1500 if pinned else 9000)
        return compare_folders(snapshot, {CLUSTERS: {**one, **wanted("a/two", mtu=9000)}}, SYNCED)

    with Repository(review(origin), cache / "review") as repository:
        put(repository, wanted("a/two"))
        repository.commit(planned, Reason("a test"))
    files = origin.files("caphv/review")
    assert files["clusters/a/one/cni/fleet.yaml"] == origin.files()["clusters/a/one/cni/fleet.yaml"]
    assert files["clusters/a/two/cni/fleet.yaml"] != origin.files()["clusters/a/two/cni/fleet.yaml"]


def test_a_proposal_that_was_taken_back_after_its_base_moved_is_deleted(origin: Origin, cache: Path) -> None:
    origin.push({"README.md": "x"})
    with Repository(review(origin), cache) as repository:
        put(repository, wanted("a/one"))
        head = origin.push({"README.md": "y"})
        assert put(repository, {}).head == head
        assert origin.branches() == ["main"]
        put(repository, wanted("a/one"))
        assert set(origin.files("caphv/review")) == paths("a/one") | {"README.md"}


def test_a_review_branch_that_may_not_be_deleted_stops_nothing(origin: Origin, cache: Path) -> None:
    origin.push({"README.md": "x"})
    git(origin.folder, "config", "receive.denyDeletes", "true")
    with Repository(review(origin), cache) as repository:
        put(repository, wanted("a/one"))
        head = origin.push({"README.md": "y"})
        assert put(repository, {}).head == head
        put(repository, wanted("a/two"))
        assert set(origin.files("caphv/review")) == paths("a/two") | {"README.md"}


def test_work_of_reviewers_on_a_proposal_that_was_taken_back_stays(origin: Origin, cache: Path) -> None:
    origin.push({"README.md": "x"})
    with Repository(review(origin), cache) as repository:
        put(repository, wanted("a/one"))
        theirs = origin.push({"docs/note.md": "better"}, "caphv/review")
        origin.push({"README.md": "y"})
        assert put(repository, {}).commit == ""
        assert origin.head("caphv/review") == theirs


def test_work_of_reviewers_is_not_overwritten(origin: Origin, cache: Path) -> None:
    origin.push({"README.md": "x"})
    with Repository(review(origin), cache) as repository:
        put(repository, wanted("a/one"))
        theirs = origin.push({"clusters/a/one/cni/fleet.yaml": "better"}, "caphv/review")
        with pytest.raises(UnmanagedFiles, match=theirs[:12]):
            put(repository, wanted("a/one"))
        assert origin.head("caphv/review") == theirs


def update_review(origin: Origin) -> str:
    """Merge main into the review branch, as a host does on request."""
    lines = "commit refs/heads/caphv/review\ncommitter other <other@example.com> 1 +0000\ndata 5\nmerge\n"
    lines += "from refs/heads/caphv/review^0\nmerge refs/heads/main^0\n"
    lines += "M 100644 inline README.md\ndata 1\ny\ndone\n"
    git(origin.folder, "fast-import", "--quiet", "--done", stdin=lines.encode())
    return origin.head("caphv/review")


@pytest.mark.parametrize("is_merged", [False, True], ids=["open", "merged"])
@pytest.mark.parametrize("has_history", [False, True], ids=["new-clone", "old-clone"])
def test_a_review_that_its_host_updated_is_restarted(
    is_merged: bool, has_history: bool, origin: Origin, cache: Path
) -> None:
    origin.push({"README.md": "x"})
    with Repository(review(origin), cache) as repository:
        put(repository, wanted("a/one"))
    origin.push({"README.md": "y"})
    merge = update_review(origin)
    if is_merged:
        git(origin.folder, "update-ref", "refs/heads/main", merge)
    head = origin.push({"other.md": "z"})

    with Repository(review(origin), cache if has_history else cache / "new") as repository:
        result = put(repository, wanted("a/one", mtu=9000))
        assert git(origin.folder, "rev-parse", f"{result.commit}^") == head
        assert origin.head("caphv/review") == result.commit
        assert set(origin.files("caphv/review")) == paths("a/one") | {"README.md", "other.md"}
        assert put(repository, wanted("a/one", mtu=9000)).commit == ""


@pytest.mark.parametrize("has_history", [False, True], ids=["new-clone", "old-clone"])
def test_work_of_reviewers_below_an_update_is_not_overwritten(has_history: bool, origin: Origin, cache: Path) -> None:
    origin.push({"README.md": "x"})
    with Repository(review(origin), cache) as repository:
        put(repository, wanted("a/one"))
    origin.push({"docs/note.md": "better"}, "caphv/review")
    origin.push({"README.md": "y"})
    merge = update_review(origin)
    with (
        Repository(review(origin), cache if has_history else cache / "new") as repository,
        pytest.raises(UnmanagedFiles, match=merge[:12]),
    ):
        put(repository, wanted("a/one"))
    assert origin.head("caphv/review") == merge


def test_a_review_needs_a_branch_to_compare_with(origin: Origin, cache: Path) -> None:
    with Repository(review(origin), cache) as repository, pytest.raises(UnmanagedFiles, match="main does not exist"):
        put(repository, wanted("a/one"))


def test_signed_commits(origin: Origin, cache: Path, tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    public = key.export_public_key().decode().strip()
    (tmp_path / "signers").write_text(f"packager@example.com {public}\n")
    credentials = Credentials(signing_key=key.export_private_key().decode())
    identity = Identity("Packager", "packager@example.com")
    with Repository(Remote(origin.url), cache, credentials, identity) as repository:
        for mtu in (1500, 9000):
            assert put(repository, wanted("a/one", mtu=mtu)).commit == origin.head()
    verify = ["git", "-C", str(origin.folder), "-c", f"gpg.ssh.allowedSignersFile={tmp_path / 'signers'}"]
    for commit in ("main", "main^"):
        done = subprocess.run([*verify, "verify-commit", commit], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert b"Good" in done.stderr
    assert origin.message().startswith("Update clusters/a/one\n")
    assert [path.name for path in cache.iterdir() if path.name.startswith("private-")] == []


def test_a_bad_signing_key_pushes_nothing(origin: Origin, cache: Path) -> None:
    credentials = Credentials(signing_key="no key at all")
    with Repository(Remote(origin.url), cache, credentials) as repository:
        with pytest.raises(GitError, match="signing the commit") as error:
            put(repository, wanted("a/one"))
        assert repository.heads().target == ""
    assert "no key at all" not in str(error.value)


def test_a_snapshot_is_a_tree_for_rendering(origin: Origin, cache: Path) -> None:
    origin.push({"fleet/clusters/a/one/caphv.yaml": "pinned", "other": "x"})
    with Repository(Remote(origin.url, path="fleet"), cache) as repository:
        tree = repository.sync().tree
        assert dict(tree) == {"clusters/a/one/caphv.yaml": b"pinned"}
        assert (tree.get("clusters/a/two/caphv.yaml"), tree.get("clusters/a"), len(tree)) == (None, None, 1)
