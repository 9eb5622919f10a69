"""What was known of a cluster stays for a while when its Harvester cannot be asked; and what is missing is named."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml

from caphv.api import resources
from caphv.api.names import LOAD_BALANCER_SUFFIX, generated_names
from caphv.api.object import SERVICES, Obj
from caphv.runtime.errors import Forbidden
from reconciler.cluster.loadbalancer import control_plane_vms
from reconciler.cluster.manifest import with_credentials
from reconciler.memory import GRACE_SECONDS
from tests.support.reconciler.memorycase import MemoryCase

pytestmark = pytest.mark.unit

RANGE = {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.14", "gateway": "10.0.0.1"}


async def ready(monkeypatch: pytest.MonkeyPatch, **spec: Any) -> MemoryCase:
    case = MemoryCase(monkeypatch, **spec)
    await case.reconcile()
    case.assign("10.0.0.9")
    await case.reconcile()
    assert case.condition("Ready")[0] == "True"
    return case


@pytest.mark.virtual_time
async def test_a_ready_cluster_stays_ready_while_caches_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    case.session.is_settled = False
    requeue = await case.reconcile()
    assert requeue is not None
    assert 0 < requeue <= GRACE_SECONDS
    assert case.condition("HarvesterConnectionReady")[0] == "True"
    await asyncio.sleep(GRACE_SECONDS + 1)
    await case.reconcile()
    assert case.condition("HarvesterConnectionReady") == ("False", "HarvesterConnectionInProgress")


@pytest.mark.virtual_time
async def test_a_connection_that_was_known_in_between_begins_a_new_grace_period(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = await ready(monkeypatch)
    for _ in range(2):
        case.session.is_settled = False
        await case.reconcile()
        await asyncio.sleep(GRACE_SECONDS - 1)
        await case.reconcile()
        assert case.condition("HarvesterConnectionReady")[0] == "True"
        case.session.is_settled, case.session.available = True, False
        await case.reconcile()
        assert case.condition("HarvesterConnectionReady")[0] == "False"
        case.session.available = True
        await case.reconcile()
        assert case.condition("HarvesterConnectionReady")[0] == "True"


async def test_a_new_cluster_reports_at_once_that_it_is_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    case.session.is_settled = False
    await case.reconcile()
    assert case.condition("HarvesterConnectionReady") == ("False", "HarvesterConnectionInProgress")


async def test_a_missing_right_to_create_pools_names_its_option(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch, vmNetworkConfig={"ipPool": {**RANGE, "vmNetwork": "default/production"}})
    case.harvester.errors["create IPPool"] = Forbidden(403, "Forbidden", "cannot create ippools")
    await case.reconcile()
    (message,) = (each["message"] for each in case.obj["status"]["conditions"] if each["type"] == "VMIPPoolReady")
    assert "--target-namespace vms --create-ip-pools" in message


async def test_vms_of_the_control_plane_are_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    case = await ready(monkeypatch)
    first = case.add_machine("cp-0")
    case.add_machine("w-0", control_plane=False)
    case.add_machine("cp-1")
    await case.harvester.delete(resources.VIRTUAL_MACHINES, "cp-1", "vms")
    assert [vm["metadata"]["name"] for vm in control_plane_vms(case.scope())] == [first["metadata"]["name"]]


async def test_a_service_under_the_name_of_the_go_provider_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    metadata = {**case.obj["metadata"], "name": "a-cluster-with-a-name-that-is-far-too-long-for-a-label-of-dns"}
    scope = case.scope()
    scope.obj = {**case.obj, "metadata": metadata}
    name = scope.load_balancer_name
    (former,) = set(generated_names(scope.obj, LOAD_BALANCER_SUFFIX)) - {name}
    service: Obj = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": former, "namespace": "vms"}}
    case.harvester.put({**service, "metadata": {**service["metadata"], "annotations": {"caphv.io/owner": "other"}}})
    assert scope.load_balancer_name == name, "of another owner"
    record = f"HarvesterCluster/team/{metadata['name']}"
    case.harvester.put({**service, "metadata": {**service["metadata"], "annotations": {"caphv.io/owner": record}}})
    assert scope.load_balancer_name == former
    assert len(case.harvester.stored(SERVICES)) == 1


@pytest.mark.parametrize("metadata", ["", "metadata:\n", "metadata: {}\n", "metadata: {name: cloud}\n"])
def test_a_secret_without_a_name_is_not_the_one(metadata: str) -> None:
    manifest = f"apiVersion: v1\nkind: Secret\n{metadata}"
    before, added = yaml.safe_load_all(with_credentials(manifest, "cloud", "config", "x"))
    assert before == yaml.safe_load(manifest)
    assert (added["metadata"]["name"], added["metadata"]["namespace"]) == ("cloud", "kube-system")
