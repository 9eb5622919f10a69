"""A paused or externally managed cluster: connected for its machines, its guests renewed, and nothing written to it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from caphv.api import names
from caphv.api.names import ConditionType, Reason
from caphv.runtime.errors import Unauthorized
from reconciler import metrics
from reconciler.blocked import Blocked
from reconciler.cluster import connection, identity
from reconciler.cluster.scope import ClusterScope
from reconciler.triggers import Delay
from tests.support.reconciler.guests import delivered, tokens
from tests.support.reconciler.infrastructure import ready
from tests.support.reconciler.memorycase import KEY, MemoryCase

pytestmark = pytest.mark.unit

MANAGED = {"cluster.x-k8s.io/managed-by": "another"}


def pause(case: MemoryCase) -> None:
    case.management.put({**case.cluster, "spec": {"paused": True}})


def manage_externally(case: MemoryCase) -> None:
    case.management.put({**case.obj, "metadata": {**case.obj["metadata"], "annotations": MANAGED}})


def has_metric() -> bool:
    samples = [sample for metric in metrics.CLUSTER_READY.collect() for sample in metric.samples]
    return any(str(KEY) in sample.labels.values() for sample in samples)


@pytest.mark.parametrize("stop", [pause, manage_externally])
async def test_cluster_that_is_not_observed_has_no_metric(monkeypatch: pytest.MonkeyPatch, stop: Any) -> None:
    case = await ready(monkeypatch)
    assert has_metric()
    stop(case)
    await case.reconcile()
    assert not has_metric()


@pytest.mark.parametrize("stop", [pause, manage_externally])
async def test_lost_connection_changes_no_condition(monkeypatch: pytest.MonkeyPatch, stop: Any) -> None:
    case = await ready(monkeypatch)
    stop(case)
    await case.reconcile()
    before = case.obj, list(case.events)
    assert case.condition("Paused") == (("True", "Paused") if stop is pause else ("False", "NotPaused"))
    case.session.available = False
    await case.reconcile()
    assert (case.obj, case.events) == before


async def test_paused_cluster_that_waits_for_time_is_reconciled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def blocked(_: object) -> None:
        reason = Reason.HARVESTER_CONNECTION_IN_PROGRESS
        raise Blocked(ConditionType.HARVESTER_CONNECTION_READY, reason, "soon", Delay(7.0))

    case = await ready(monkeypatch)
    pause(case)
    monkeypatch.setattr(connection, "ensure_connection", blocked)
    assert await case.reconcile() == 7.0


async def test_token_is_renewed_although_the_connection_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await delivered(monkeypatch)
    case.clock[0] += 1000
    pause(case)
    case.session.available = False
    case.note(names.RENEW_AT_ANNOTATION, (datetime.now(UTC) - timedelta(minutes=1)).isoformat())
    requeue_after = await case.reconcile()
    assert tokens(case.secret) == {"expiring-2"}
    assert requeue_after is not None
    assert requeue_after > 3600


async def test_refused_credentials_of_a_paused_cluster_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: object) -> None:
        raise Unauthorized(401, "Unauthorized", "")

    case = await ready(monkeypatch)
    pause(case)
    monkeypatch.setattr(connection, "ensure_connection", refuse)
    assert await case.reconcile() == 5.0
    assert ("", "probed") in case.events


@pytest.mark.parametrize("stop", [pause, lambda _: None], ids=["paused", "not paused"])
async def test_refusal_by_the_management_cluster_is_not_blamed_on_the_identity(
    monkeypatch: pytest.MonkeyPatch, stop: Any
) -> None:
    async def refuse(_scope: ClusterScope, *_: object) -> None:
        raise Unauthorized(401, "Unauthorized", "by the management cluster")

    case = await ready(monkeypatch)
    stop(case)
    monkeypatch.setattr(identity, "ensure_session", refuse)
    with pytest.raises(Unauthorized, match="by the management cluster"):
        await case.reconcile()
    assert ("", "probed") not in case.events
    assert case.condition("HarvesterConnectionReady")[0] == "True"
