"""Which identity Secrets have to stay: for whom, and how long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.names import identity_finalizer
from reconciler.cluster.identityprotection import needed

pytestmark = pytest.mark.unit

DELETED = {"deletionTimestamp": "2026-11-22T06:00:00Z"}
HELD = {"finalizers": [names.CLUSTER_FINALIZER]}


def secret(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "team-a", "name": "identity", **metadata}}


def cluster(namespace: str = "team-a", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": "one", **metadata}}


CLUSTERS = st.lists(
    st.builds(
        lambda namespace, deleted, held: cluster(namespace, **(DELETED if deleted else {}), **(HELD if held else {})),
        st.sampled_from(["team-a", "team-b"]),
        st.booleans(),
        st.booleans(),
    ),
    max_size=4,
)


@given(CLUSTERS, st.booleans())
def test_credentials_stay_for_each_cluster_that_is_being_deleted(clusters: list[Any], terminating: bool) -> None:
    clusters.append(cluster(**DELETED, **HELD))
    assert needed(secret(**DELETED), clusters, terminating=terminating)


@given(CLUSTERS)
def test_deletion_of_a_secret_alone_waits_for_no_cluster_that_lives(clusters: list[Any]) -> None:
    living = [each for each in clusters if "deletionTimestamp" not in each["metadata"]]
    assert not needed(secret(**DELETED), living, terminating=False)


def test_deleted_namespace_waits_for_its_own_clusters_only() -> None:
    assert needed(secret(**DELETED), [cluster()], terminating=True)
    assert not needed(secret(**DELETED), [cluster("team-b")], terminating=True)


def test_cluster_that_other_finalizers_keep_needs_no_credentials() -> None:
    assert not needed(secret(), [cluster(**DELETED, finalizers=["example.com/keep"])], terminating=False)


def test_secret_in_use_is_needed_and_one_without_clusters_is_not() -> None:
    assert needed(secret(), [cluster("team-b")], terminating=False)
    assert not needed(secret(), [], terminating=True)


def test_deployments_with_a_watch_filter_have_finalizers_of_their_own() -> None:
    assert identity_finalizer() != identity_finalizer("blue") != identity_finalizer("green")
