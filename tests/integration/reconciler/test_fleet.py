"""The Fleet Cluster of an imported cluster gets its labels, whichever way Rancher imports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from caphv.api.object import (
    CUSTOM_RESOURCE_DEFINITIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Key,
    Obj,
    labels_of,
)
from caphv.api.resources import FLEET_CLUSTERS, MANAGED_CLUSTERS, RANCHER_CLUSTERS
from caphv.runtime.errors import NotFound
from sandbox.processes import children
from tests.support.caapf import Caapf, Naming
from tests.support.rancher import AUTO_IMPORT, Rancher, install, managed_name
from tests.support.reconciler.case import CLUSTERS, HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import is_false, is_true
from tests.support.reconciler.fleet import LABELS
from tests.support.waiting import until

pytestmark = pytest.mark.integration

READY = "FleetIntegrationReady"


@contextlib.asynccontextmanager
async def rancher(case: Case, *, turtles: bool = True, caapf: Naming | None = None) -> AsyncIterator[str]:
    """Run Rancher, with CAAPF on request; answers the name that it gives the cluster. Its objects go with the block."""
    name = managed_name(Key(case.name, case.name))
    runs = [Rancher(case.management, turtles=turtles, use_caapf=caapf is not None).run()]
    runs += [Caapf(case.management, caapf).run()] if caapf else []
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        yield name
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for resource, space, of in (
            (FLEET_CLUSTERS, "fleet-default", name),
            (RANCHER_CLUSTERS, case.name, case.name),
            (MANAGED_CLUSTERS, "", name),
        ):
            with contextlib.suppress(NotFound):
                await case.management.delete(resource, of, space)


async def imported(case: Case) -> None:
    await case.ready_cluster()
    await case.patch(CLUSTERS, case.name, {"metadata": {"labels": LABELS}})


async def until_labels(case: Case, name: str, wanted: dict[str, str]) -> Obj:
    found: Obj = {}

    async def there() -> bool:
        nonlocal found
        with contextlib.suppress(NotFound):
            found = await case.management.get(FLEET_CLUSTERS, name, "fleet-default")
            return wanted.items() <= labels_of(found).items()
        return False

    await until(there, lambda: f"the Fleet Cluster has not its labels: {found}")
    return found


async def test_rancher_may_come_later(case: Case) -> None:
    listed = await case.management.list(CUSTOM_RESOURCE_DEFINITIONS)
    if any(crd["metadata"]["name"].endswith("cattle.io") for crd in listed["items"]):
        pytest.skip("another test has installed Rancher's CRDs")
    await imported(case)
    await case.until(HARVESTER_CLUSTERS, case.name, is_false(READY, "FleetIntegrationNotApplicable"))
    await install(case.management)
    await case.until(
        HARVESTER_CLUSTERS, case.name, is_false(READY, "FleetIntegrationInProgress", "waiting for Rancher")
    )
    async with rancher(case, turtles=True):
        await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))


async def test_webhook_of_rancher_that_does_not_answer_holds_up_nothing_else(case: Case) -> None:
    await install(case.management)
    (port,) = children.free_ports(1)
    webhook = {
        "name": "rancher.cattle.io",
        "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
        "rules": [
            {"apiGroups": ["fleet.cattle.io"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["*"]}
        ],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
    }
    await case.management.create(
        VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": case.name}, "webhooks": [webhook]}
    )
    try:
        async with rancher(case, turtles=True):
            await imported(case)
            broken = is_false(READY, "FleetIntegrationFailed", "failed calling webhook")
            await case.until(HARVESTER_CLUSTERS, case.name, broken)
            # The next phase follows.
            await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"cloudConfig": {"delivery": "Secret"}}})
            await case.until(
                HARVESTER_CLUSTERS, case.name, lambda obj: "CloudProviderConfigReady" in str(obj["status"])
            )
    finally:
        await case.management.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, case.name)


@pytest.mark.parametrize("turtles", [True, False], ids=["Turtles", "provisioning"])
async def test_fleet_cluster_gets_the_labels_and_keeps_them(case: Case, turtles: bool) -> None:
    await install(case.management)
    async with rancher(case, turtles=turtles) as name:
        await imported(case)
        wanted = {**LABELS, "cluster.x-k8s.io/cluster-name": case.name}
        del wanted[AUTO_IMPORT]
        found = await until_labels(case, name, wanted)
        assert found["metadata"]["labels"]["management.cattle.io/cluster-name"] == name
        await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
        managed = await case.management.get(MANAGED_CLUSTERS, name)
        assert managed["spec"]["fleetWorkspaceName"] == "fleet-default"
        await case.until_event(case.name, "Normal", "FleetClusterLabelled")
        # Labels of the Cluster change; a user removes one of them.
        await case.patch(CLUSTERS, case.name, {"metadata": {"labels": {"cni": "cilium"}}})
        await until_labels(case, name, {**wanted, "cni": "cilium"})
        await case.management.patch(FLEET_CLUSTERS, name, "fleet-default", {"metadata": {"labels": {"csi": None}}})
        await until_labels(case, name, {**wanted, "cni": "cilium"})
        await case.patch(CLUSTERS, case.name, {"metadata": {"labels": {AUTO_IMPORT: None}}})
        await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: READY not in str(obj["status"]["conditions"]))


async def test_with_use_caapf_rancher_leaves_fleet_to_caapf(case: Case) -> None:
    await install(case.management)
    async with rancher(case, caapf=Naming("prod-")) as name:
        await imported(case)
        # CAAPF waits for the control plane.
        await case.until(
            HARVESTER_CLUSTERS, case.name, is_false(READY, "FleetIntegrationInProgress", "waiting for CAAPF")
        )
        await case.management.patch(
            CLUSTERS,
            case.name,
            case.name,
            {"status": {"initialization": {"controlPlaneInitialized": True}}},
            subresource="status",
        )
        await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
        managed = await case.management.get(MANAGED_CLUSTERS, name)
        assert not managed["spec"].get("fleetWorkspaceName"), "the workspace is none of our business then"
        found = await case.management.get(FLEET_CLUSTERS, f"prod-{case.name}", case.name)
        assert LABELS.items() <= labels_of(found).items()


async def test_clusters_that_are_not_imported_do_not_speak_of_it(case: Case) -> None:
    found = await case.ready_cluster()
    assert READY not in str(found["status"]["conditions"])
