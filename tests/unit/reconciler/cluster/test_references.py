"""References to other namespaces: who may use what, and what was in use before the rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.names import ALLOWED_NAMESPACES_ANNOTATION, Reason
from caphv.api.object import Key
from reconciler.cluster.references import Reference, allows, decide, in_use_before, may_use

pytestmark = pytest.mark.unit

SECRET = Key("team-b", "identity")
NAMES = st.from_regex(r"\A[a-z]([a-z0-9-]{0,6}[a-z0-9])?\Z")


def secret(allowed: str | None = None) -> dict[str, Any]:
    annotations = {} if allowed is None else {ALLOWED_NAMESPACES_ANNOTATION: allowed}
    return {"metadata": {"namespace": SECRET.namespace, "name": SECRET.name, "annotations": annotations}}


def cluster(**status: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "team-a", "name": "one"}, "status": status}


def recorded(reason: str, message: str = "") -> dict[str, Any]:
    return {"type": "ReferencesAllowed", "status": "False", "reason": reason, "message": message}


PROVISIONED = {"initialization": {"provisioned": True}}


@given(st.lists(NAMES, min_size=1, max_size=4), NAMES)
def test_exactly_the_named_namespaces_are_allowed(named: list[str], namespace: str) -> None:
    assert allows(secret(" , ".join(named)), namespace) == (namespace in named)


@pytest.mark.parametrize(("annotation", "allowed"), [(None, False), ("", False), ("*", True), ("team-*", False)])
def test_absent_and_empty_annotations_allow_nothing_and_a_star_all(annotation: str | None, allowed: bool) -> None:
    assert allows(secret(annotation), "team-a") is allowed


def test_only_what_the_status_proves_was_in_use_before() -> None:
    forged = cluster()
    forged["metadata"] |= {"finalizers": ["harvester.infrastructure.cluster.x-k8s.io/finalizer"], "annotations": {}}
    assert in_use_before(forged) == ()
    assert in_use_before(cluster(**PROVISIONED)) is None


def test_provisioned_cluster_cannot_add_a_reference_once_its_condition_is_set() -> None:
    allowed = {"type": "ReferencesAllowed", "status": "True", "reason": "ReferencesAllowed"}
    assert in_use_before(cluster(**PROVISIONED, conditions=[allowed])) == ()
    message = "Secret team-b/identity: in another namespace"
    known = in_use_before(cluster(**PROVISIONED, conditions=[recorded(Reason.CROSS_NAMESPACE_REFERENCE, message)]))
    another = Reference("Secret", Key("team-c", "identity"), allowed=False)
    former = Reference("Secret", SECRET, allowed=False)
    decision = decide([former, another], known, cross_namespace=True)
    assert (decision.tolerated, decision.refused) == ((former,), (another,))


def test_refused_reference_stays_refused() -> None:
    condition = recorded(Reason.REFERENCE_NOT_ALLOWED, f"Secret {SECRET}: is in another namespace")
    known = in_use_before(cluster(conditions=[condition]))
    reference = Reference("Secret", SECRET, allowed=False)
    assert decide([reference], known, cross_namespace=True).refused == (reference,)


def test_without_cross_namespace_references_permission_does_not_help() -> None:
    reference = Reference("Secret", SECRET, allowed=True)
    assert decide([reference], None, cross_namespace=False).refused == (reference,)
    assert decide([reference], (), cross_namespace=True).refused == ()


def test_secret_is_kept_for_clusters_that_may_use_it_only() -> None:
    assert not may_use(secret(), cluster())
    assert may_use(secret("team-a"), cluster())
    assert may_use(secret(), cluster(**PROVISIONED))
