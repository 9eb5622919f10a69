"""`caphv packager sync` deletes nothing that no one confirmed, and repeats what was confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.packager.definitions import definition
from tests.support.packager.repositories import Origin
from tests.support.packager.sync import Management, changed, done, put, status, sync

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("own_environment")]


def test_nothing_is_deleted_while_a_file_cannot_be_read(source: Path, origin: Origin) -> None:
    put(source, definition("a"), definition("b"))
    done(sync(source, origin))
    (source / "a.yaml").unlink()
    (source / "b.yaml").write_text("apiVersion: [caphv.io\n")
    result = sync(source, origin, "--confirm", "team-a/a", "--confirm", "team-a/b")
    assert result.exit_code == 1
    assert "b.yaml:" in result.stderr
    assert "not all clusters are known" in result.stdout
    assert {
        "manifests/team-a/a/cluster/cluster.yaml",
        "manifests/team-a/b/cluster/cluster.yaml",
    } <= origin.files().keys()


def test_a_definition_is_deleted_only_with_a_confirmation(source: Path, origin: Origin) -> None:
    put(source, definition("a"), definition("b"))
    done(sync(source, origin))
    (source / "a.yaml").unlink()
    result = sync(source, origin)
    assert result.exit_code == 1
    assert "left manifests/team-a/a: removing a definition deletes its cluster" in result.stdout
    kept = origin.files()
    assert "clusters/team-a/a/cni/fleet.yaml" in kept
    assert "manifests/team-a/a/cluster/cluster.yaml" in kept
    lifted = sync(source, origin, "--confirm", "team-a/a")
    assert (lifted.exit_code, changed(origin)) == (1, ["manifests/team-a/a/cluster/cluster.yaml"])
    done(sync(source, origin, "--confirm", "team-a/a"))
    left = {path for path in origin.files() if "/a/" in path}
    assert left == set()
    assert "namespaces/team-a/namespace/objects.yaml" in origin.files()
    assert "manifests/team-a/b/cluster/cluster.yaml" in origin.files()


def test_an_annotation_confirms_before(source: Path, origin: Origin) -> None:
    going = definition("a")
    going["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    put(source, going, definition("b"))
    done(sync(source, origin))
    (source / "a.yaml").unlink()
    done(sync(source, origin))
    assert not any(path.startswith("manifests/team-a/a/") for path in origin.files())


def test_more_removals_than_the_budget_are_all_held_back(source: Path, origin: Origin) -> None:
    put(source, *(definition(name) for name in ("a", "b", "c", "d")))
    done(sync(source, origin))
    for name in ("a", "b", "d"):
        (source / f"{name}.yaml").unlink()
    confirmed = [word for name in ("a", "b", "d") for word in ("--confirm", f"team-a/{name}")]
    assert sync(source, origin, *confirmed).exit_code == 1, "the commit that lifts their protection"
    result = sync(source, origin, *confirmed)
    assert result.exit_code == 1
    assert "12 removals at once exceed --max-prune 10" in result.stdout
    assert origin.count() == 2, "the status file is as before"
    states = {row["name"]: row["state"] for row in status(origin)["clusters"]}
    assert states == {"team-a/c": "Written"} | dict.fromkeys(("team-a/a", "team-a/b", "team-a/d"), "HeldBack")
    done(sync(source, origin, *confirmed, "--max-prune", 12))
    assert not any("/a/" in path for path in origin.files())


@pytest.mark.parametrize("confirmed_by", ["option", "annotation"])
def test_a_confirmed_deletion_is_repeated_until_the_cluster_is_deleted(
    source: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch, confirmed_by: str
) -> None:
    management = Management(monkeypatch)
    option = ("--confirm", "team-a/old") if confirmed_by == "option" else ()
    old = definition("old")
    if not option:
        old["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    put(source, old, definition("other"), definition("going"))
    done(sync(source, origin, "--apply"))
    (source / "old.yaml").unlink()
    if option:
        assert "protection is lifted" in sync(source, origin, "--apply", *option).stdout
    count = origin.count()

    management.reachable = False
    unreachable = sync(source, origin, "--apply", *option)
    assert (unreachable.exit_code, origin.count()) == (2, count)
    assert "cannot be reached" in unreachable.stderr

    management.reachable = True
    management.refused = {"team-a/old"}
    put(source, definition("other", addons={"cni": {"mtu": 1400}}))
    refused = sync(source, origin, "--apply", *option)
    assert refused.exit_code == 1
    assert "error: Cluster team-a/old: forbidden" in refused.stderr
    assert "left manifests/team-a/old: not all Clusters of removed definitions can be deleted" in refused.stdout
    # Others are synced.
    assert "clusters/team-a/other/cni/helmchartconfig.yaml" in changed(origin)
    assert "manifests/team-a/old/cluster/cluster.yaml" in origin.files()

    management.refused = set()
    done(sync(source, origin, "--apply", *option))
    assert management.deleted == ["team-a/old"]
    assert not any("/old/" in path for path in origin.files())
    done(sync(source, origin, "--apply", *option))
    assert management.deleted == ["team-a/old"]


def test_a_dry_run_deletes_no_cluster(source: Path, origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    management = Management(monkeypatch)
    old = definition("old")
    old["metadata"]["annotations"] = {"caphv.io/confirm-removal": "true"}
    put(source, old, definition("other"))
    done(sync(source, origin, "--apply"))
    (source / "old.yaml").unlink()
    assert "removed manifests/team-a/old" in sync(source, origin, "--apply", "--dry-run").stdout
    assert management.deleted == []
