"""Load balancers on the simulated Harvester."""

from __future__ import annotations

from caphv.api.object import SERVICES, Obj
from sandbox.harvester import kinds
from tests.support.reconciler.case import AT_ONCE, Case

SERVICE_LABEL = {"loadbalancer.harvesterhci.io/servicelb": "true"}


async def place(case: Case, name: str, annotations: Obj, address: str = "0.0.0.0") -> Obj:
    """A placeholder Service that a user made."""
    metadata = {"name": name, "namespace": case.target, "labels": SERVICE_LABEL, "annotations": annotations}
    spec = {"type": "LoadBalancer", "loadBalancerIP": address, "ports": [{"port": 6443}]}
    return await case.harvester.create(SERVICES, {"metadata": metadata, "spec": spec})


async def balanced(case: Case, **config: object) -> Obj:
    """A cluster with a control plane machine and a load balancer that has its address."""
    await case.ready_cluster(loadBalancerConfig={"ipamType": "pool", "ipPoolRef": "load-balancers", **config})
    await case.ready_machine("first", control_plane=True)
    return await taken_over(case)


async def taken_over(case: Case, timeout: float = 30.0) -> Obj:
    return await case.until(
        kinds.LOAD_BALANCERS, case.balancer, lambda obj: obj.get("status", {}).get("address"), timeout=timeout
    )


async def until_spec(case: Case, wanted: Obj) -> None:
    def fulfilled(obj: Obj) -> bool:
        return all(obj["spec"].get(name) == value for name, value in wanted.items())

    await case.until(kinds.LOAD_BALANCERS, case.balancer, fulfilled, timeout=AT_ONCE)
