"""What KubeVirt refuses about pinned CPUs, NUMA and huge pages."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from sandbox.harvester.pinning import denial_reason

pytestmark = pytest.mark.unit

PINNED = {"cores": 4, "dedicatedCpuPlacement": True}
NUMA = {"numa": {"guestMappingPassthrough": {}}}
PAGES = {"hugepages": {"pageSize": "1Gi"}}
RESOURCES = {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}}


def domain(cpu: Obj, memory: Obj | None = None, resources: Obj | None = None) -> Obj:
    return {"cpu": cpu, "memory": {"guest": "8Gi", **(memory or {})}, "resources": resources or RESOURCES}


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (domain({"cores": 4, "isolateEmulatorThread": True}), "DedicatedCPUPlacement"),
        (domain({"cores": 4, **NUMA}, PAGES), "dedicatedCpuPlacement must be set"),
        (domain({**PINNED, **NUMA}), "hugepages must be requested"),
        (domain({**PINNED, "cores": 3}), "CPU requests or limits must not"),
        (domain(PINNED, None, {**RESOURCES, "requests": {"cpu": "250m"}}), "limits of cpu must be equal"),
        (domain(PINNED, None, {**RESOURCES, "requests": {"memory": "4Gi"}}), "limits of memory must be equal"),
        (domain({"cores": 4}, PAGES, {"requests": {"memory": "5461Mi"}}), "not a multiple of the page size 1Gi"),
    ],
)
def test_refusals(refused: Obj, reason: str) -> None:
    assert reason in denial_reason(refused)


@pytest.mark.parametrize(
    "accepted",
    [domain({"cores": 4}), domain(PINNED), domain({**PINNED, **NUMA, "isolateEmulatorThread": True}, PAGES), {}],
)
def test_what_is_accepted(accepted: Obj) -> None:
    assert denial_reason(accepted) == ""
