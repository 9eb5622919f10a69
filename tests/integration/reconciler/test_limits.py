"""A server that reaches a limit is named in a condition of its own cluster, and other clusters do not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.processes import pki
from tests.support.hostile import hostile
from tests.support.reconciler.case import HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_ready

pytestmark = pytest.mark.integration

LIMITS, REACHED = "WithinLimits", "LimitReached"


@pytest.mark.parametrize(
    ("attack", "limit"),
    [
        ("endless", "is larger than 3145728 bytes"),
        ("events", "its objects take more than the 32 MiB they may take"),
        ("garbage", "does not answer like a Kubernetes API server"),
    ],
)
async def test_limit_is_reported_until_the_server_is_another(
    case: Case, other: Case, tmp_path: Path, attack: str, limit: str
) -> None:
    ca = pki.CA.create("hostile")
    async with hostile(tmp_path, attack, ca=ca) as (url, _):
        access = pki.kubeconfig(url, ca.certificate, name="hostile", user="caphv", credentials={"token": "hostile"})
        await case.identity(access)
        await case.write_secret("bootstrap", {"value": ""})
        await case.create_cluster()
        found = await case.until(HARVESTER_CLUSTERS, case.name, is_false(LIMITS, REACHED))
        message = condition_of(found, LIMITS)["message"]
        assert f"Harvester at {url}: it is read slowly" in message
        assert limit in message
        await other.ready_cluster()
        assert is_ready(await other.ready_machine("one"))
        assert not condition_of(await other.get(HARVESTER_CLUSTERS, other.name), LIMITS)
        await case.identity()
        found = await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
        assert not condition_of(found, LIMITS)
