"""Load balancers on the simulated Harvester."""

from __future__ import annotations

from caphv.api.object import SERVICES, Obj
from tests.support.reconciler.case import (
    Case,
)

SERVICE_LABEL = {"loadbalancer.harvesterhci.io/servicelb": "true"}


async def place(case: Case, name: str, annotations: Obj, address: str = "0.0.0.0") -> Obj:
    """A placeholder Service that a user made."""
    metadata = {"name": name, "namespace": case.target, "labels": SERVICE_LABEL, "annotations": annotations}
    spec = {"type": "LoadBalancer", "loadBalancerIP": address, "ports": [{"port": 6443}]}
    return await case.harvester.create(SERVICES, {"metadata": metadata, "spec": spec})
