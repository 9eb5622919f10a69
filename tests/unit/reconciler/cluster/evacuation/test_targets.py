"""Whether a VM that leaves its host would find another one."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from reconciler.cluster.evacuation.targets import (
    describe_bound_claims,
    describe_local_disks,
    describe_missing_cpu_manager,
    describe_obstacle,
)
from reconciler.machine.placement import REQUIRED

pytestmark = pytest.mark.unit

GPU = "nvidia.com/GA102GL_A10"


def host(name: str, *, gpus: int = 0, ready: bool = True, annotations: Any = None, **spec: Any) -> Obj:
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "rack": name[-1]},
            "annotations": annotations or {},
        },
        "spec": spec,
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "allocatable": {"cpu": "8", **({GPU: str(gpus)} if gpus else {})},
        },
    }


def instance(name: str, gpus: int, kind: str = "hostDevices") -> Obj:
    devices = {kind: [{"name": f"gpu-{number}", "deviceName": GPU} for number in range(gpus)]}
    return {"status": {"nodeName": name}, "spec": {"domain": {"devices": devices}}}


def vm(gpus: int = 1, **spec: Any) -> Obj:
    return {"spec": {"template": {"spec": {**instance("", gpus)["spec"], **spec}}}}


def requires(*expressions: Obj) -> Obj:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}}}


def expression(operator: str, *values: str) -> Obj:
    return {"key": "rack", "operator": operator, "values": list(values)}


def tolerant(**toleration: str) -> Obj:
    return vm(tolerations=[toleration])


def sized(size: str) -> Obj:
    other = host("h1", gpus=1)
    other["metadata"]["labels"]["size"] = size
    return other


def paged(guest: str | None = "4Gi", *, gpus: int = 1, page: str = "1Gi", **spec: Any) -> Obj:
    leaving = vm(gpus, **spec)
    memory = {"hugepages": {"pageSize": page}, **({"guest": guest} if guest else {})}
    domain = {"memory": memory, "resources": {"requests": {"memory": "8Gi"}}}
    leaving["spec"]["template"]["spec"]["domain"] |= domain
    return leaving


def with_pages(name: str, size: str, *, gpus: int = 1, page: str = "1Gi") -> Obj:
    other = host(name, gpus=gpus)
    other["status"]["allocatable"][f"hugepages-{page}"] = size
    return other


def pinned(leaving: Obj) -> Obj:
    leaving["spec"]["template"]["spec"]["domain"]["cpu"] = {"dedicatedCpuPlacement": True}
    return leaving


def pinning(host: Obj) -> Obj:
    """The host with its CPU manager enabled."""
    metadata = host["metadata"]
    return {**host, "metadata": {**metadata, "labels": {**metadata["labels"], "cpumanager": "true"}}}


CPU_MANAGER = {"key": "cpumanager", "operator": "In", "values": ["true"]}
UNREADY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
TAINT = {"key": "team", "value": "gpu", "effect": "NoSchedule"}
HERE, OTHER = host("h0", gpus=1), host("h1", gpus=1)


@pytest.mark.parametrize(
    ("leaving", "hosts", "instances", "part"),
    [
        (vm(), [HERE, OTHER], [instance("h0", 1)], ""),
        (vm(0), [HERE, host("h1")], [], ""),
        (vm(), [HERE, host("h1")], [], f"no other host has 1 {GPU} free"),
        (vm(2), [HERE, OTHER], [], f"no other host has 2 {GPU} free"),
        (vm(), [HERE, OTHER], [instance("h1", 1)], "no other host has"),
        (vm(), [HERE, OTHER], [instance("h1", 1, "gpus")], "no other host has"),
        (vm(), [HERE, OTHER, host("h2", gpus=2)], [instance("h1", 1), instance("h2", 1)], ""),
        (vm(), [HERE], [], "no other host is ready"),
        (vm(), [HERE, host("h1", gpus=1, ready=False)], [], "no other host is ready"),
        (vm(), [HERE, host("h1", gpus=1, unschedulable=True)], [], "no other host is ready"),
        (vm(), [HERE, host("h1", gpus=1, annotations={"caphv.io/evacuate": "true"})], [], "no other host is ready"),
        (vm(), [HERE, host("h1", gpus=1, taints=[TAINT])], [], "no other host is ready"),
        (vm(), [HERE, host("h1", gpus=1, taints=[{**TAINT, "effect": "NoExecute"}])], [], "no other host is ready"),
        (vm(), [HERE, host("h1", gpus=1, taints=[{**TAINT, "effect": "PreferNoSchedule"}])], [], ""),
        (vm(), [HERE, host("h1", gpus=1, taints=[UNREADY])], [], ""),
        (tolerant(key="team", value="gpu"), [HERE, host("h1", gpus=1, taints=[TAINT])], [], ""),
        (tolerant(key="team", operator="Exists"), [HERE, host("h1", gpus=1, taints=[TAINT])], [], ""),
        (tolerant(operator="Exists", effect="NoSchedule"), [HERE, host("h1", gpus=1, taints=[TAINT])], [], ""),
        (tolerant(key="team", value="cpu"), [HERE, host("h1", gpus=1, taints=[TAINT])], [], "no other host is ready"),
        (tolerant(key="other", operator="Exists"), [HERE, host("h1", gpus=1, taints=[TAINT])], [], "no other host"),
        (tolerant(operator="Exists", effect="NoExecute"), [HERE, host("h1", gpus=1, taints=[TAINT])], [], "no other"),
        (vm(affinity={"podAffinity": {REQUIRED: [{}]}}), [HERE, OTHER], [], "which is not checked"),
        (vm(affinity={"podAntiAffinity": {REQUIRED: [{}]}}), [HERE, OTHER], [], "which is not checked"),
        (vm(affinity={"podAffinity": {REQUIRED: []}, "podAntiAffinity": {}}), [HERE, OTHER], [], ""),
        (vm(nodeSelector={"rack": "0"}), [HERE, OTHER], [], "requires this host"),
        (vm(nodeSelector={"rack": "1"}), [HERE, OTHER], [], ""),
        (vm(affinity=requires(expression("In", "0"))), [HERE, OTHER], [], "requires this host"),
        (vm(affinity=requires(expression("In", "0", "1"))), [HERE, OTHER], [], ""),
        (vm(affinity=requires(expression("NotIn", "1"))), [HERE, OTHER], [], "requires this host"),
        (vm(affinity=requires(expression("Exists"))), [HERE, OTHER], [], ""),
        (vm(affinity=requires(expression("DoesNotExist"))), [HERE, OTHER], [], "requires this host"),
        (vm(affinity=requires(expression("Gt", "0"))), [HERE, OTHER], [], ""),
        (vm(affinity=requires(expression("Lt", "1"))), [HERE, OTHER], [], "requires this host"),
        (vm(affinity=requires(expression("Lt", "2"))), [HERE, OTHER], [], ""),
        (vm(affinity=requires({**expression("Lt", "5"), "key": "missing"})), [HERE, OTHER], [], "requires this host"),
        (vm(affinity=requires({**expression("Gt", "-1"), "key": "missing"})), [HERE, OTHER], [], "requires this host"),
        (vm(affinity=requires({**expression("Gt", "1"), "key": "size"})), [HERE, sized("1Gi")], [], "requires this"),
        (vm(affinity=requires({**expression("Gt", "1"), "key": "size"})), [HERE, sized("1_0")], [], "requires this"),
        (vm(affinity=requires({**expression("Gt", "1"), "key": "size"})), [HERE, sized("10")], [], ""),
        (vm(affinity=requires({**expression("Gt", "1Ki"), "key": "size"})), [HERE, sized("10")], [], "requires this"),
        (vm(affinity=requires({**expression("Lt", "1Ki"), "key": "size"})), [HERE, sized("10")], [], "requires this"),
        (vm(affinity=requires(expression("Unheard"))), [HERE, OTHER], [], "requires this host"),
        (vm(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}), [HERE, OTHER], [], "requires this"),
        (vm(affinity=requires()), [HERE, OTHER], [], "requires this"),
        (vm(affinity=requires({"key": "rack", "operator": "Exists"})), [HERE, OTHER], [], ""),
        (tolerant(key="team"), [HERE, host("h1", gpus=1, taints=[{"key": "team", "effect": "NoSchedule"}])], [], ""),
        (tolerant(key="team"), [HERE, host("h1", gpus=1, taints=[TAINT])], [], "no other host is ready"),
        ({}, [HERE, OTHER], [], ""),
        (vm(), [HERE, OTHER], [{"spec": instance("", 1)["spec"]}], "no other host has"),
        (vm(), [HERE, OTHER], [{"status": {"nodeName": "h1"}}], ""),
        (paged(), [with_pages("h0", "4Gi"), OTHER], [], "no other host has 4Gi of hugepages-1Gi; reserve such pages"),
        (paged(), [HERE, with_pages("h1", "4Gi")], [], ""),
        (paged(), [HERE, with_pages("h1", "3Gi")], [], "no other host has 4Gi of hugepages-1Gi"),
        (paged(), [HERE, with_pages("h1", "0")], [], "no other host has 4Gi of hugepages-1Gi"),
        (paged(), [HERE, with_pages("h1", "8Gi", page="2Mi")], [], "no other host has 4Gi of hugepages-1Gi"),
        (paged(page="2Mi"), [HERE, with_pages("h1", "8Gi", page="2Mi")], [], ""),
        (paged(None), [HERE, with_pages("h1", "4Gi")], [], "no other host has 8Gi of hugepages-1Gi"),
        (paged(gpus=0), [HERE, host("h1")], [], "no other host has 4Gi of hugepages-1Gi"),
        (paged(), [HERE, with_pages("h1", "8Gi", gpus=0), OTHER], [], f"no other host has 1 {GPU} free"),
        (pinned(vm()), [HERE, pinning(OTHER)], [], ""),
        (pinned(vm()), [pinning(HERE), OTHER], [], "no other host that takes VMs has its CPU manager enabled (label"),
        (pinned(vm(0)), [pinning(HERE), OTHER], [], "has its CPU manager enabled (label cpumanager=true)"),
        (pinned(vm(affinity=requires(CPU_MANAGER))), [HERE, OTHER], [], "has its CPU manager enabled (label"),
        (pinned(vm(affinity=requires(CPU_MANAGER))), [HERE, pinning(OTHER)], [], ""),
        (pinned(vm()), [HERE], [], "no other host is ready"),
        (
            pinned(vm()),
            [HERE, OTHER, pinning(host("h2"))],
            [],
            f"no other host with its CPU manager enabled has 1 {GPU} free",
        ),
        (
            pinned(vm(affinity=requires(expression("In", "0", "1")))),
            [HERE, OTHER, pinning(host("h2", gpus=1))],
            [],
            "its affinity or node selector admits no other host with its CPU manager enabled",
        ),
        (
            pinned(paged()),
            [HERE, with_pages("h1", "8Gi"), pinning(OTHER)],
            [],
            "no other host with its CPU manager enabled has 4Gi of hugepages-1Gi",
        ),
        (vm(), [HERE, {**OTHER, "status": {"conditions": OTHER["status"]["conditions"]}}], [], "no other host has"),
        (vm(), [HERE, {**OTHER, "status": {**OTHER["status"], "allocatable": {GPU: "x"}}}], [], "no other host has"),
    ],
)
def test_obstacle(leaving: Obj, hosts: list[Obj], instances: list[Obj], part: str) -> None:
    reason = describe_obstacle(leaving, "h0", hosts, instances)
    assert part in reason
    assert bool(reason) is bool(part)


@pytest.mark.parametrize(
    ("leaving", "hosts", "is_missing"),
    [
        (pinned(vm(0)), [pinning(HERE), OTHER], True),
        (pinned(vm(0)), [pinning(HERE), pinning(OTHER)], False),
        (vm(0), [pinning(HERE), OTHER], False),
        (pinned(vm(0)), [pinning(HERE)], False),
        (pinned(vm(0)), [HERE, OTHER, pinning(host("h2", unschedulable=True))], True),
    ],
)
def test_a_migration_needs_a_host_that_can_pin_too(leaving: Obj, hosts: list[Obj], is_missing: bool) -> None:
    assert bool(describe_missing_cpu_manager(leaving, "h0", hosts)) is is_missing


def claim(name: str, *modes: str) -> Obj:
    return {"metadata": {"name": name, "namespace": "vms"}, "spec": {"accessModes": list(modes)}}


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ([], ""),
        ([claim("disk-0", "ReadWriteMany")], ""),
        ([claim("disk-0", "ReadWriteOnce", "ReadWriteMany")], ""),
        ([claim("disk-0", "ReadWriteMany"), claim("disk-1", "ReadWriteOnce")], "disk-1"),
        ([claim("other", "ReadWriteOnce")], ""),
        ([{**claim("disk-0"), "spec": {}}], "disk-0"),
    ],
)
def test_a_disk_that_only_one_host_can_have_may_be_local(claims: list[Obj], name: str) -> None:
    disks = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in ("disk-0", "disk-1")]
    reason = describe_bound_claims(vm(volumes=disks), claims)
    assert reason.startswith(f"disk {name} is not ReadWriteMany, ") if name else reason == ""


@pytest.mark.parametrize(
    ("condition", "part"),
    [
        ({"type": "LiveMigratable", "status": "False", "reason": "DisksNotLiveMigratable"}, "(DisksNotLiveMigratable)"),
        ({"type": "LiveMigratable", "status": "False"}, "(no reason)"),
        ({"type": "LiveMigratable", "status": "True"}, ""),
        ({"type": "Ready", "status": "False"}, ""),
    ],
)
def test_an_instance_that_cannot_migrate_may_have_a_local_disk_unless_it_has_a_device(
    condition: Obj, part: str
) -> None:
    running = {"status": {"conditions": [condition]}}
    reason = describe_local_disks(vm(0), running)
    assert part in reason
    assert bool(reason) is bool(part)
    assert describe_local_disks(vm(1), running) == ""
    assert describe_local_disks(vm(0), None) == ""
    assert bool(describe_local_disks({}, running)) is bool(part)
