"""LoadBalancers of guests, as the real webhook and controller of each release treated them."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from sandbox.harvester import guestbalancers, poolselection
from sandbox.harvester.releases import RELEASES
from tests.support.observed import Record, records

pytestmark = pytest.mark.unit

FILES = {
    "1.5": "harvester-load-balancer-harvester/guests-v1.5.2.yaml",
    "1.6": "harvester-load-balancer-harvester/guests-v1.6.1.yaml",
    "1.7": "harvester-load-balancer-harvester/guests-v1.7.1.yaml",
    "1.8.0": "harvester-load-balancer-harvester/guests-v1.8.0.yaml",
    "1.8": "harvester-load-balancer-harvester/guests.yaml",
    "1.9": "harvester-load-balancer-harvester/guests-v1.9.0-rc4.yaml",
}
CASES = [pytest.param(release, record, id=str(record)) for release, file in FILES.items() for record in records(file)]


def labelled(name: str, labels: dict[str, str], network: str = "") -> Obj:
    networks = [{"name": "nic", "multus": {"networkName": network}}]
    return {"metadata": {"name": name, "namespace": "NS", "labels": labels}, "spec": {"networks": networks}}


@pytest.mark.parametrize(("release", "record"), CASES)
def test_simulator_decides_as_the_real_programs_did(release: str, record: Record) -> None:
    simulated, outcome = RELEASES[release], dict(record.outcome)
    vms = [labelled(vm["name"], vm["labels"]) for vm in record.input["vms"]]
    vmis = [labelled(vm["name"], vm["instance"], vm["network"]) for vm in record.input["vms"]]
    pools = [
        {
            "metadata": {"name": pool["name"]},
            "spec": {"selector": {"network": pool["network"], "scope": [pool["scope"]]}},
        }
        for pool in record.input["pools"]
    ]
    balancer: Obj = {
        "metadata": {
            "name": "svc",
            "namespace": "NS",
            "labels": {"cloudprovider.harvesterhci.io/cluster": "prod"},
            "annotations": {
                "loadbalancer.harvesterhci.io/cluster": "prod",
                **record.input.get("annotations", {}),
            },
        },
        "spec": {"workloadType": "cluster", "ipam": record.input["ipam"]},
    }

    balancer["metadata"]["annotations"] = guestbalancers.mutated_annotations(balancer, vmis, simulated)
    found: Obj = {"network": balancer["metadata"]["annotations"]["loadbalancer.harvesterhci.io/network"]}
    denial = guestbalancers.denial_reason(balancer, vms, simulated)
    found["admitted"] = not denial
    if denial:
        found["denial"] = denial
    elif "pool" in outcome:
        by_pool = record.input["ipam"] == "pool"
        found["pool"] = poolselection.select_pool(balancer, pools, simulated) if by_pool else ""
    assert found == outcome
