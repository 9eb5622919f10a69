"""Objects of a cluster on Harvester: which of another owner it may adopt."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api.object import Obj
from caphv.api.ownership import Owner, record
from reconciler.cluster.adoption import is_foreign

pytestmark = pytest.mark.unit

OWNER = Owner("HarvesterCluster", "team", "demo", "now", "here")


# A move to this management cluster


def moved(provider_id: str = "harvester://vm", **changes: Any) -> tuple[Any, Obj]:
    """A cluster with a machine, and a Service with the record of both owners' former management cluster."""
    former = replace(OWNER, uid="before", management_cluster="former")
    noted = {"caphv.io/vm-uid": changes.pop("noted", "")}
    vm_owner = Owner("HarvesterMachine", "team", "one", "machine-before", "former")
    annotations = record(replace(vm_owner, **changes.pop("vm_owner", {})))
    vm = {"metadata": {"namespace": "vms", "name": "one", "uid": "vm", "annotations": annotations, **changes}}
    machine = {
        "metadata": {"namespace": "team", "name": "one", "annotations": noted},
        "spec": {"providerID": provider_id},
    }
    context = SimpleNamespace(
        caches=SimpleNamespace(machines_of=lambda _: [machine]),
        belongs_to_another_tenant=lambda *_: False,
        owner=lambda *_: replace(vm_owner, uid="machine-now", management_cluster=OWNER.management_cluster),
    )
    scope = SimpleNamespace(
        obj={"metadata": {}},
        owner=OWNER,
        cluster={},
        context=context,
        target_namespace="vms",
        namespace=lambda: SimpleNamespace(vms=SimpleNamespace(get=lambda *_: vm)),
    )
    return scope, {"metadata": {"annotations": record(former)}}


def test_vm_of_a_machine_proves_that_the_cluster_was_moved() -> None:
    scope, service = moved()
    assert not is_foreign(scope, service)
    scope, service = moved("rke2://one", noted="vm")
    assert not is_foreign(scope, service)


@pytest.mark.parametrize(
    "changes",
    [
        {"provider_id": "harvester://another"},
        {"provider_id": ""},
        {"provider_id": "rke2://one", "noted": "another"},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
        {"vm_owner": {"management_cluster": "third"}},
        {"vm_owner": {"name": "two"}},
    ],
    ids=[
        "another VM",
        "no VM",
        "another VM in the annotation",
        "VM is being deleted",
        "VM of a third management cluster",
        "VM of another machine",
    ],
)
def test_nothing_else_proves_a_move(changes: dict[str, Any]) -> None:
    scope, service = moved(**changes)
    assert is_foreign(scope, service)


def test_objects_of_a_cluster_with_another_name_stay_foreign() -> None:
    scope, _ = moved()
    other = record(replace(OWNER, name="other", management_cluster="former"))
    assert is_foreign(scope, {"metadata": {"annotations": other}})
