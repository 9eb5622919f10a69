"""Ten-minute tokens of a real API server, 20 clusters and an hour of simulated time: no request with an old token.

The provider runs in this process with a clock that jumps. The API server has no such clock, so its audit log shows
which token each request had, and a token counts as ended ten simulated minutes after it was issued.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from caphv.api.object import SECRETS, Obj
from caphv.runtime.kubeconfig import token_claims
from reconciler.clusteridentity import controller
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import CLUSTER_LABEL, CLUSTERS, HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import condition_of, is_true
from tests.support.reconciler.renewedtoken import account, kept, renewing, requests_by_token, token_id, until_replaced
from tests.support.reconciler.sharedidentity import PROVIDER
from tests.support.waiting import until

pytestmark = pytest.mark.integration

CLUSTERS_OF_THE_CASE = 20
LIFE = timedelta(minutes=10)
# A third of the life, so that each token is due at the second step at the latest.
STEP = timedelta(minutes=3, seconds=20)
STEPS = 18


class Clock:
    """The time of the provider: that of this machine, and what was added to it."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


async def create_clusters(case: Case, identity: Obj) -> list[str]:
    """Create clusters in the namespace of the case, besides its own; return their names."""
    names = [f"{case.name}-{number}" for number in range(CLUSTERS_OF_THE_CASE - 1)]

    async def create(name: str) -> None:
        cluster = await case.create(CLUSTERS, name, {"infrastructureRef": {"kind": "HarvesterCluster", "name": name}})
        spec = {"targetNamespace": case.target, "loadBalancerConfig": {"ipamType": "dhcp"}, **identity}
        spec = {field: value for field, value in spec.items() if value is not None}
        await case.create(HARVESTER_CLUSTERS, name, spec, owner=cluster, labels={CLUSTER_LABEL: name})

    await asyncio.gather(*(create(name) for name in names))
    return names


async def reconcile_all(case: Case, names: list[str]) -> None:
    """Have each cluster be reconciled in full, as a change of its user does."""
    note = {"metadata": {"annotations": {"caphv.io/reconcile-at": str(time.time())}}}
    await asyncio.gather(*(case.patch(HARVESTER_CLUSTERS, name, note) for name in names))


async def has_switched(case: Case, names: list[str]) -> bool:
    """Whether all requests of clusters that are reconciled have the token in use."""
    position = case.environment.audit_position(case.environment.harvester)
    await reconcile_all(case, names)
    await asyncio.sleep(0.3)
    return {token for token, _ in requests_by_token(case, position)} <= {token_id(await kept(case))}


async def delete_clusters(case: Case, names: list[str]) -> None:
    await asyncio.gather(*(case.ask_deletion(HARVESTER_CLUSTERS, name) for name in names))
    await asyncio.gather(*(case.until_gone(HARVESTER_CLUSTERS, name) for name in names))
    await asyncio.gather(*(case.ask_deletion(CLUSTERS, name) for name in names))


@pytest.mark.usefixtures("alone")
async def test_an_hour_of_ten_minute_tokens(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(controller, "_now", clock)
    provider = asyncio.create_task(inprocess.run(case, None, cross_namespace=False))
    renewal = {"expirationSeconds": 600, "serviceAccount": account(case)}
    try:
        async with renewing(case, renewal) as identity:
            await case.create_cluster(**identity)
            names = [case.name, *await create_clusters(case, identity)]
            connected = is_true("HarvesterConnectionReady")
            await asyncio.gather(*(case.until(HARVESTER_CLUSTERS, name, connected) for name in names))
            await case.ready()

            access = await kept(case)
            issued = {token_id(access): clock()}
            since = await connections(case, names)
            began = case.environment.audit_position(case.environment.harvester)
            used: dict[str, datetime] = {}
            for step in range(STEPS):
                clock.ahead += STEP
                # Any change of the user's Secret, which has the same credentials, is a reason to check.
                note = {"metadata": {"annotations": {"step": str(step)}}}
                await case.management.patch(SECRETS, case.name, PROVIDER, note)
                if clock() - issued[token_id(access)] >= LIFE * 2 / 3:
                    access = await until_replaced(case, access)
                    issued[token_id(access)] = clock()
                    await case.until(HARVESTER_CLUSTERS, case.name, connected)
                position = case.environment.audit_position(case.environment.harvester)
                await reconcile_all(case, names)
                if step % 6 == 5:
                    await case.ready_machine(f"machine-{step}")
                # The clock may jump once all clusters have the new token. They take seconds, and a jump is minutes.
                await until(lambda: has_switched(case, names), "a cluster still uses a former token")
                for token, _ in requests_by_token(case, position):
                    used[token] = clock()
                # Tokens are renewed between 60 and 67 % of their life.
                access = await kept(case)
                issued.setdefault(token_id(access), clock())

            # Every request had a token that was issued and has not ended, and none was refused.
            assert clock.ahead == timedelta(hours=1)
            assert len(issued) >= 9
            assert set(used) <= set(issued), "a token that was not renewed here"
            late = {token for token, moment in used.items() if moment - issued[token] >= LIFE}
            assert late == set()
            requests = list(case.environment.requests(case.environment.harvester, began))
            assert [event for event in requests if event["responseStatus"]["code"] == 401] == []
            assert sum("/token" in event["requestURI"] for event in requests) == len(issued) - 1
            assert token_claims(access.token)["exp"] - token_claims(access.token)["iat"] == LIFE.total_seconds()
            assert await connections(case, names) == since, "a cluster lost its connection meanwhile"
            await delete_clusters(case, names[1:])
    finally:
        await inprocess.cancelled(provider)


async def connections(case: Case, names: list[str]) -> list[Obj]:
    """Since when each cluster is connected."""
    return [condition_of(await case.get(HARVESTER_CLUSTERS, name), "HarvesterConnectionReady") for name in names]
