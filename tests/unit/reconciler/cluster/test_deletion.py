"""When a deletion may end without Harvester, and what it says of what it leaves."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.names import ConditionType, Reason
from caphv.api.object import Obj
from reconciler.cluster.deletion import advice, left_over, may_force_delete, never_provisioned
from reconciler.status import Blocked
from reconciler.triggers import Watched

pytestmark = pytest.mark.unit

PASSING = [
    Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
    Reason.HARVESTER_CONNECTION_IN_PROGRESS,
    Reason.TARGET_NAMESPACE_CHECKING,
]
LASTING = [
    Reason.HARVESTER_CONNECTION_FAILED,
    Reason.HARVESTER_AUTHENTICATION_FAILED,
    Reason.ANOTHER_HARVESTER,
    Reason.INFRASTRUCTURE_PROVISIONING_FAILED,
]


def blocked(reason: Reason) -> Blocked:
    return Blocked(ConditionType.HARVESTER_CONNECTION_READY, reason, "message", Watched.CONNECTION)


def cluster(annotation: str = "true", **spec: Any) -> Obj:
    full = {"targetNamespace": "vms", "server": "https://h", "loadBalancerConfig": {"ipamType": "dhcp"}, **spec}
    annotations = {"caphv.io/force-delete": annotation}
    return {"metadata": {"namespace": "clusters", "name": "demo", "annotations": annotations}, "spec": full}


@pytest.mark.parametrize("reason", LASTING)
def test_what_does_not_pass_may_be_left(reason: Reason) -> None:
    assert may_force_delete(cluster(), blocked(reason))
    assert not may_force_delete(cluster("false"), blocked(reason))
    assert "caphv.io/force-delete" in advice(blocked(reason))


@pytest.mark.parametrize("reason", PASSING)
def test_what_passes_is_waited_for_all_the_same(reason: Reason) -> None:
    assert not may_force_delete(cluster(), blocked(reason))
    assert advice(blocked(reason)) == ""


def test_all_that_may_be_left_is_named() -> None:
    message = left_over(
        cluster(
            controlPlaneEndpoint={"host": "10.0.0.9", "port": 6443},
            loadBalancerConfig={"ipamType": "pool", "ipPool": {"subnet": "10.0.0.0/24"}},
            vmNetworkConfig={"ipPool": {"subnet": "10.1.0.0/24"}},
        )
    )
    for part in ("https://h", "vms/clusters-demo-lb", "10.0.0.9", "clusters-demo-ippool", "clusters-demo-vm-ippool"):
        assert part in message


def test_what_was_never_made_is_not_named() -> None:
    message = left_over(cluster(controlPlaneEndpoint={"host": "10.0.0.9", "port": 6443}))
    assert "10.0.0.9" not in message
    assert "IPPool" not in message


def test_cluster_that_never_reached_harvester_can_be_deleted() -> None:
    never = cluster(controlPlaneEndpoint={"host": "0.0.0.0", "port": 6443})
    assert never_provisioned({**never, "status": {"conditions": [{"type": "Ready", "status": "False"}]}})


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        ({"controlPlaneEndpoint": {"host": "10.0.0.9", "port": 6443}}, {}),
        ({"vmNetworkConfig": {"ipPool": {"subnet": "10.1.0.0/24"}, "ipPoolRef": "made"}}, {}),
        ({}, {"harvester": {"uid": "u"}}),
        ({}, {"conditions": [{"type": "TargetNamespaceReady", "status": "True"}]}),
    ],
    ids=["moved with an endpoint", "moved with a pool", "connected", "namespace created"],
)
def test_cluster_that_may_have_something_on_harvester_is_not_simply_deleted(spec: Obj, status: Obj) -> None:
    assert not never_provisioned({**cluster(**spec), "status": status})
