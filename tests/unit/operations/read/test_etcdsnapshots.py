"""Snapshots of etcd from the objects of RKE2 and K3s."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.output import etcdsnapshots as out
from operations.read.etcdsnapshots import snapshots_of
from tests.support.etcdsnapshots import FOLDER, snapshot_file

pytestmark = pytest.mark.unit

NOW = datetime(2026, 1, 2, tzinfo=UTC)
FIELDS = st.sampled_from(["spec", "status", "metadata", "snapshotName", "size", "creationTime", "error", "s3"])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.datetimes().map(datetime.isoformat),
    lambda values: st.lists(values, max_size=2) | st.dictionaries(FIELDS, values, max_size=4),
    max_leaves=8,
)


def test_the_newest_is_first_and_each_copy_has_its_place() -> None:
    files = [
        snapshot_file("cp-1", "2026-01-01T00:00:00Z"),
        snapshot_file("cp-1", "2026-01-01T12:00:00Z"),
        snapshot_file("cp-1", "2026-01-01T12:00:00Z", s3=True),
    ]
    store, newest, oldest = snapshots_of(files, {"cp-1"})
    assert (store.s3, store.location) == (True, "s3://etcd-snapshots/team/shop/etcd-snapshot-cp-1-12")
    assert (newest.s3, newest.location) == (False, f"file://{FOLDER}/etcd-snapshot-cp-1-12")
    assert (oldest.created, oldest.size, oldest.node) == ("2026-01-01T00:00:00Z", 8937504, "cp-1")
    assert not any(snapshot.wrong for snapshot in (store, newest, oldest))


def test_a_copy_on_a_machine_that_no_longer_exists_is_lost_and_one_in_a_store_is_not() -> None:
    files = [snapshot_file("gone", "2026-01-01T00:00:00Z", s3=s3) for s3 in (False, True)]
    states = {snapshot.s3: snapshot.state for snapshot in snapshots_of(files, {"cp-1"})}
    assert states == {False: "lost", True: "ready"}


def test_a_snapshot_that_failed_has_its_reason() -> None:
    failed = snapshot_file("cp-1", "2026-01-01T00:00:00Z", error="no space left on device")
    unknown = snapshot_file("cp-1", "2026-01-01T12:00:00Z")
    del unknown["status"]
    second, first = snapshots_of([failed, unknown], {"cp-1"})[::-1]
    assert {first.state, second.state} == {"failed"}
    assert "no space left on device" in {first.error, second.error}


@pytest.mark.parametrize(
    "location",
    ["", "file://", "file://relative", "file:///a/../b", "file:///a\nb", "http://x", "s3://b/k", "/path", None],
)
def test_a_file_without_a_path_cannot_be_restored(location: str | None) -> None:
    """A reset without a path keeps the database that it should replace."""
    file = snapshot_file("cp-1", "2026-01-01T00:00:00Z")
    file["spec"]["location"] = location
    (snapshot,) = snapshots_of([file], {"cp-1"})
    assert (snapshot.state, snapshot.error) == ("failed", "its location is not a path of a file")


@pytest.mark.parametrize("time", ["2026-01-01T12:00:00", "2026-01-01", "yesterday", "0001-01-01T00:00:00+14:00"])
def test_a_time_that_is_none_hides_no_other_snapshot(time: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The workload cluster decides which times its objects have."""
    odd = snapshot_file("cp-1", "2026-01-01T00:00:00Z")
    odd["status"]["creationTime"] = time
    out.show(snapshots_of([odd, snapshot_file("cp-1", "2026-01-01T12:00:00Z")], {"cp-1"}), NOW)
    assert capsys.readouterr().out.count("ready") == 2


def test_a_size_is_never_negative() -> None:
    file = snapshot_file("cp-1", "2026-01-01T00:00:00Z")
    file["status"]["size"] = "-5Gi"
    assert snapshots_of([file], {"cp-1"})[0].size == 0


@given(st.lists(st.dictionaries(FIELDS, ANYTHING, max_size=4), max_size=3))
def test_objects_of_any_content_are_read_and_shown(objs: list[Any]) -> None:
    """They come from a workload cluster, which may be hostile."""
    snapshots = snapshots_of(objs, {"cp-1"})
    assert len(snapshots) == len(objs)
    out.show(snapshots, NOW)
