"""Snapshots of etcd from the objects of RKE2 and K3s."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.read.etcdsnapshots import snapshots_of
from tests.support.etcdsnapshots import FOLDER, snapshot_file

pytestmark = pytest.mark.unit

FIELDS = st.sampled_from(["spec", "status", "metadata", "snapshotName", "size", "creationTime", "error", "s3"])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
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


@given(st.lists(st.dictionaries(FIELDS, ANYTHING, max_size=4), max_size=3))
def test_objects_of_any_content_are_read(objs: list[Any]) -> None:
    """They come from a workload cluster, which may be hostile."""
    assert len(snapshots_of(objs, {"cp-1"})) == len(objs)
