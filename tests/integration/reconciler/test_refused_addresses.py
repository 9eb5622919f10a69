"""What a provider refuses by its options: addresses that kubeconfigs may not name, and references to other namespaces.

And what it tells a tenant of a server that answers, but is no Harvester.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import pytest

from caphv.api.names import ALLOWED_NAMESPACES_ANNOTATION
from caphv.api.object import CONFIG_MAPS, SECRETS
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import HARVESTER_CLUSTERS, Case
from tests.support.reconciler.cloudconfig import config_map
from tests.support.reconciler.conditions import condition_of, is_false
from tests.support.reconciler.environment import Environment

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("runner", "alone")]

CONNECTION = "HarvesterConnectionReady"
REFUSED = is_false(CONNECTION, "HarvesterConnectionFailed", "--allow-harvester-cidr")


@contextlib.asynccontextmanager
async def provider(case: Case, *allowed: str, cross_namespace: bool = True) -> AsyncIterator[None]:
    """The provider, with these networks allowed."""
    task = asyncio.create_task(inprocess.run(case, None, allowed=allowed, cross_namespace=cross_namespace))
    try:
        yield
    finally:
        await inprocess.cancelled(task)


async def test_loopback_harvester_of_a_new_and_of_a_provisioned_cluster(environment: Environment) -> None:
    async with inprocess.opened(environment) as case:
        since = environment.audit_position(environment.harvester)
        async with provider(case):
            await case.cluster()
            found = await case.until(HARVESTER_CLUSTERS, case.name, REFUSED)
            assert "127.0.0" not in condition_of(found, CONNECTION)["message"].replace(environment.harvester.url, "")
            await case.until_event(case.name, "Warning", "HarvesterConnectionFailed")
        assert list(environment.requests(environment.harvester, since)) == []

        async with provider(case, "127.0.0.0/8"):
            await case.ready()

        async with provider(case):
            # The address was allowed and no longer is: the operator's change counts for this cluster, too.
            await case.until(HARVESTER_CLUSTERS, case.name, REFUSED)

        async with provider(case, "127.0.0.0/8"):
            assert await case.remove() == []


async def test_server_that_is_no_harvester_is_called_that_and_not_described(environment: Environment) -> None:
    async with inprocess.opened(environment) as case, provider(case, "127.0.0.0/8"):
        access = environment.workload.kubeconfig()
        await case.identity(access)
        await case.write_secret("bootstrap", {"value": ""})
        await case.create_cluster()
        found = await case.until(
            HARVESTER_CLUSTERS, case.name, is_false(CONNECTION, "HarvesterConnectionFailed", "is not a Harvester")
        )
        server = re.escape(access["clusters"][0]["cluster"]["server"])
        wanted = (
            rf"{server} is not a Harvester: it does not serve [a-z.]+; put a kubeconfig of Harvester into \S+ \S+ \S+"
        )
        assert re.fullmatch(wanted, condition_of(found, CONNECTION)["message"])
        assert await case.remove() == []


async def test_without_cross_namespace_references_permission_of_their_owner_does_not_help(
    environment: Environment,
) -> None:
    permission = {"metadata": {"annotations": {ALLOWED_NAMESPACES_ANNOTATION: "*"}}}
    async with inprocess.opened(environment) as other, inprocess.opened(environment) as case:
        await other.identity()
        config = await config_map(other)
        for resource, name in ((SECRETS, "identity"), (CONFIG_MAPS, config["manifestsConfigMapName"])):
            await other.management.patch(resource, name, other.name, permission)
        before = await other.management.get(CONFIG_MAPS, config["manifestsConfigMapName"], other.name)
        async with provider(case, "127.0.0.0/8", cross_namespace=False):
            await case.identity()
            await case.write_secret("bootstrap", {"value": ""})
            identity = {"name": "identity", "namespace": other.name}
            await case.create_cluster(identitySecret=identity, updateCloudProviderConfig=config)
            refused = is_false(CONNECTION, "HarvesterConnectionFailed", "--no-cross-namespace-refs")
            await case.until(HARVESTER_CLUSTERS, case.name, refused)
            own = {"spec": {"identitySecret": {"name": "identity", "namespace": case.name}}}
            await case.patch(HARVESTER_CLUSTERS, case.name, own)
            refused = is_false(
                "CloudProviderConfigReady", "CloudProviderConfigGenerationFailed", "--no-cross-namespace-refs"
            )
            await case.until(HARVESTER_CLUSTERS, case.name, refused)
            assert await other.management.get(CONFIG_MAPS, config["manifestsConfigMapName"], other.name) == before
            assert await case.remove() == []
