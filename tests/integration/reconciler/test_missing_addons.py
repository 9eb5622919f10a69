"""A workload cluster without cloud provider and CSI driver reports it, where no packager does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from caphv.api import remedies
from caphv.api.names import ADOPT_ANNOTATION, SUSPEND_ADDONS_ANNOTATION
from caphv.api.object import CSI_DRIVERS, DEPLOYMENTS, LEASES, Obj, annotations_of
from caphv.runtime.errors import NotFound
from reconciler.cluster import addons
from tests.support.printed import Person
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import CLUSTERS, HARVESTER_CLUSTERS, Case
from tests.support.reconciler.conditions import condition_of, is_false, is_true
from tests.support.reconciler.environment import Environment

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("runner", "alone")]

READY = "AddonBundlesReady"
CSI_DRIVER: Obj = {"metadata": {"name": "driver.harvesterhci.io"}, "spec": {}}
LEASE: Obj = {"metadata": {"name": "cloud-controller-manager", "namespace": "kube-system"}, "spec": {}}
POD: Obj = {"metadata": {"labels": {"app": "ccm"}}, "spec": {"containers": [{"name": "ccm", "image": "ccm"}]}}
DEPLOYMENT: Obj = {
    "metadata": {"name": "harvester-cloud-provider", "namespace": "kube-system"},
    "spec": {"selector": {"matchLabels": {"app": "ccm"}}, "template": POD},
}


@contextlib.asynccontextmanager
async def cluster(environment: Environment, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    """A cluster with a Node, and the provider, which looks for add-ons at once and often."""
    monkeypatch.setattr(addons, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(addons, "RECHECK_SECONDS", 0.3)
    async with inprocess.opened(environment) as case:
        task = asyncio.create_task(inprocess.run(case, None))
        try:
            await case.ready_cluster()
            await case.register_node(f"{case.name}-one")
            yield case
            assert await case.remove() == []
        finally:
            await inprocess.cancelled(task)
            for resource, obj in ((CSI_DRIVERS, CSI_DRIVER), (LEASES, LEASE), (DEPLOYMENTS, DEPLOYMENT)):
                metadata = obj["metadata"]
                with contextlib.suppress(NotFound):
                    await case.workload.delete(resource, metadata["name"], metadata.get("namespace", ""))


async def reported(case: Case, condition: Any) -> Obj:
    return await case.until(HARVESTER_CLUSTERS, case.name, condition)


def has_none(obj: Obj) -> bool:
    return READY not in str(obj["status"]["conditions"])


async def reconciled(case: Case) -> Obj:
    """The HarvesterCluster after a whole reconcile: its last step removes this annotation."""
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {ADOPT_ANNOTATION: "true"}}})
    return await reported(case, lambda obj: ADOPT_ANNOTATION not in annotations_of(obj))


async def test_what_is_missing_is_reported_until_it_is_installed(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(environment, monkeypatch) as case:
        assert has_none(await reconciled(case))
        await case.connect_workload()
        found = await reported(case, is_false(READY, "AddonBundlesMissing", "no cloud provider and no CSI driver"))
        # Machines and health gates do not depend on it.
        assert is_true("Ready")(found)
        assert found["status"]["ready"]
        await case.until_event(case.name, "Normal", "AddonBundlesMissing")
        await case.workload.create(CSI_DRIVERS, CSI_DRIVER)
        await reported(case, is_false(READY, "AddonBundlesMissing", "has no cloud provider, and"))
        await case.workload.create(LEASES, LEASE)
        await reported(case, has_none)


async def test_clusters_that_need_no_report_have_none(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    person = Person(tmp_path, environment.management, environment.harvester)
    async with cluster(environment, monkeypatch) as case:
        await case.connect_workload()
        await reported(case, is_false(READY, "AddonBundlesMissing"))
        # The user installs add-ons in another way, or none.
        output = await person.sees(f"caphv status {case.name}/{case.name}")
        await person.follows(remedies.SUSPEND_ADDONS, output)
        await reported(case, has_none)
        note = {"metadata": {"annotations": {SUSPEND_ADDONS_ANNOTATION: None}}}
        await case.patch(CLUSTERS, case.name, note)
        await reported(case, is_false(READY, "AddonBundlesMissing"))
        # A cloud provider without leader election, and no driver by intent.
        await case.patch(CLUSTERS, case.name, {"metadata": {"labels": {"csi": "none"}}})
        await reported(case, is_false(READY, "AddonBundlesMissing", "has no cloud provider, and"))
        await case.workload.create(DEPLOYMENTS, DEPLOYMENT)
        await reported(case, has_none)


async def test_the_report_of_a_packager_is_left_alone(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(environment, monkeypatch) as case:
        before = await case.management.get(HARVESTER_CLUSTERS, case.name, case.name)
        progress = {
            "type": READY,
            "status": "False",
            "reason": "AddonBundlesInProgress",
            "message": "waiting for the control plane",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        status = {"status": {"conditions": [*before["status"]["conditions"], progress]}}
        await case.management.patch(HARVESTER_CLUSTERS, case.name, case.name, status, subresource="status")
        await case.connect_workload()
        await reported(case, is_true("Ready"))
        for _ in range(2):
            found = condition_of(await reconciled(case), READY)
            assert (found["reason"], found["message"]) == (progress["reason"], progress["message"])
