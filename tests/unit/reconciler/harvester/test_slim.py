"""What caches keep of VMs: all of this management cluster's, and of others what may affect it."""

import pytest

from caphv.api import names
from caphv.api.object import Obj
from caphv.api.virtualmachine import claims_of, devices_of
from caphv.runtime.budget import SHARED_CACHE_BYTES, memory_of
from reconciler.harvester import slim
from reconciler.harvester.addressuse import instance_addresses
from reconciler.machine.node import is_guest_of
from tests.support.crowded import foreign_claim, foreign_instance, foreign_vm, our_vm

pytestmark = pytest.mark.unit


def test_three_thousand_vms_of_others_fit_into_the_cache() -> None:
    kept = (
        slim.virtual_machine(foreign_vm(1), "ours"),
        slim.instance(foreign_instance(1)),
        slim.claim(foreign_claim(1)),
    )
    assert 3000 * sum(map(memory_of, kept)) < SHARED_CACHE_BYTES


def test_our_vm_keeps_its_spec() -> None:
    vm = our_vm()
    assert slim.virtual_machine(vm, "ours")["spec"] == vm["spec"]


@pytest.mark.parametrize("management_cluster", ["", "theirs"])
def test_of_vms_of_others_no_cloud_init_is_kept_but_their_claims(management_cluster: str) -> None:
    vm = foreign_vm(1)
    if management_cluster:
        vm["metadata"]["annotations"][names.OWNER_CLUSTER_ANNOTATION] = management_cluster
    kept = slim.virtual_machine(vm, "ours")
    assert claims_of(kept) == claims_of(vm)
    assert "userData" not in str(kept)
    assert (names.OWNER_CLUSTER_ANNOTATION in str(kept)) is bool(management_cluster)


def test_vm_of_the_go_provider_keeps_its_mark() -> None:
    vm = foreign_vm(1)
    vm["spec"]["template"]["metadata"]["annotations"] = {names.MACHINE_TYPE_LABEL: "worker"}
    kept = slim.virtual_machine(vm, "ours")
    assert kept["spec"]["template"]["metadata"]["annotations"] == {names.MACHINE_TYPE_LABEL: "worker"}


@pytest.mark.parametrize("spec", [{}, {"template": {}}, {"template": {"spec": {}}}])
def test_vm_without_volumes_is_kept(spec: Obj) -> None:
    kept = slim.virtual_machine({"metadata": {"name": "a", "resourceVersion": "1"}, "spec": spec}, "ours")
    assert kept == {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}}


def test_addresses_of_instances_of_others_stay_known() -> None:
    vmi = foreign_instance(1)
    assert instance_addresses(slim.instance(vmi)) == instance_addresses(vmi)


def test_of_thousands_of_addresses_those_of_nics_are_kept() -> None:
    """kube-proxy in a guest gives one interface, which has no name, the addresses of all Services."""
    services = {"interfaceName": "kube-ipvs0", "ipAddresses": [f"10.43.{n >> 8}.{n & 255}" for n in range(5000)]}
    nic = {"name": "nic-1", "ipAddress": "10.0.0.1", "ipAddresses": ["10.0.0.1", "10.0.0.2"]}
    vmi = {"metadata": {"name": "a"}, "status": {"interfaces": [services, nic]}}
    interfaces = slim.instance(vmi)["status"]["interfaces"]
    assert interfaces[0] == nic
    assert len(interfaces[1]["ipAddresses"]) == 510


@pytest.mark.parametrize("guest", ["1e4f", "1E4F", "0000"])
def test_the_guest_of_a_cached_instance_is_known(guest: str) -> None:
    node = {"status": {"nodeInfo": {"systemUUID": guest}}}
    vmi = {
        "metadata": {"name": "a", "labels": {"caphv.io/cluster": "x"}},
        "spec": {"domain": {"firmware": {"uuid": "1e4f", "serial": "x"}, "devices": {"disks": []}}},
    }
    assert is_guest_of(node, slim.instance(vmi)) is is_guest_of(node, vmi)
    assert is_guest_of(node, vmi) is (guest != "0000")


def test_what_an_evacuation_reads_is_kept() -> None:
    annotations = {names.EVACUATE_ANNOTATION: "true", "harvesterhci.io/maintain-status": "running", "other": "x"}
    kept = slim.host({"metadata": {"name": "h", "annotations": annotations}, "spec": {}})
    assert set(kept["metadata"]["annotations"]) == annotations.keys() - {"other"}
    ours = {"metadata": {"name": "a", "labels": {"caphv.io/cluster": "x"}}, "spec": {"evictionStrategy": "External"}}
    assert slim.instance(ours)["spec"]["evictionStrategy"] == "External"
    ours["metadata"]["creationTimestamp"] = "2026-11-27T10:00:00Z"
    assert slim.instance(ours)["metadata"]["creationTimestamp"] == "2026-11-27T10:00:00Z"


def test_devices_and_huge_pages_of_hosts_are_kept_and_nothing_else_of_their_resources() -> None:
    allocatable = {
        "cpu": "64",
        "memory": "1Ti",
        "nvidia.com/A10": "2",
        "nvidia.com/A2": "0",
        "hugepages-1Gi": "8Gi",
        "hugepages-2Mi": "0",
        "devices.kubevirt.io/kvm": "1k",
    }
    kept = slim.host({"metadata": {"name": "h"}, "spec": {}, "status": {"allocatable": allocatable}})
    assert kept["status"] == {"allocatable": {"nvidia.com/A10": "2", "hugepages-1Gi": "8Gi"}}
    assert "status" not in slim.host({"metadata": {"name": "h"}, "spec": {}, "status": {"allocatable": {"cpu": "1"}}})


def test_of_the_conditions_of_hosts_only_readiness_is_kept_without_its_times() -> None:
    conditions = [
        {"type": "MemoryPressure", "status": "False"},
        {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
    ]
    kept = slim.host({"metadata": {"name": "h"}, "spec": {}, "status": {"conditions": conditions}})
    assert kept["status"] == {"conditions": [{"type": "Ready", "status": "True"}]}


@pytest.mark.parametrize("devices", [{"a": "b"}, ["a"], [["a"]], "a", 1, None])
def test_malformed_devices_of_others_are_ignored(devices: object) -> None:
    vmi = foreign_instance(1)
    vmi["spec"] = {"domain": {"devices": {"hostDevices": devices, "gpus": devices}}}
    assert not devices_of(slim.instance(vmi).get("spec") or {})
    vmi["spec"] = {"domain": {"devices": devices}}
    slim.instance(vmi)


@pytest.mark.parametrize("allocatable", [["a/b"], "a/b", 1])
def test_malformed_resources_of_a_host_are_ignored(allocatable: object) -> None:
    kept = slim.host({"metadata": {"name": "h"}, "spec": {}, "status": {"allocatable": allocatable}})
    assert "status" not in kept


@pytest.mark.parametrize("malformed", [["a"], "a", 5, {"a": "b"}])
def test_malformed_conditions_and_volumes_are_ignored(malformed: object) -> None:
    host = {"metadata": {"name": "h"}, "spec": {}, "status": {"conditions": malformed}}
    assert "status" not in slim.host(host)
    vmi = {
        "metadata": {"name": "a", "labels": {"caphv.io/cluster": "x"}},
        "status": {"volumeStatus": malformed, "phase": "Running"},
    }
    assert "volumeStatus" not in slim.instance(vmi)["status"]
    vmi["status"] = {"volumeStatus": [{"name": "a", "persistentVolumeClaimInfo": malformed}]}
    slim.instance(vmi)


@pytest.mark.parametrize("labels", [{}, {"caphv.io/cluster": "x"}])
def test_devices_of_all_instances_are_kept(labels: Obj) -> None:
    devices = {
        "hostDevices": [{"name": "a", "deviceName": "n.com/a"}],
        "gpus": [{"deviceName": "n.com/b"}],
        "disks": [],
    }
    vmi = {"metadata": {"name": "a", "labels": labels}, "spec": {"domain": {"devices": devices}}, "status": {}}
    assert devices_of(slim.instance(vmi)["spec"]) == {"n.com/a": 1, "n.com/b": 1}


def test_of_volumes_those_of_the_machine_are_kept_with_claim_capacity_and_phase() -> None:
    def volume(name: str, claim: str, **fields: object) -> Obj:
        info = {"claimName": claim, "capacity": {"storage": "10Gi", "other": "x"}, "requests": {"storage": "10Gi"}}
        return {"name": name, "target": "vda", "persistentVolumeClaimInfo": info, **fields}

    hotplugged: Obj = {"hotplugVolume": {"attachPodName": "hp"}, "phase": "Ready"}
    volumes = [
        volume("disk-0", "restored"),
        volume("disk-1-abcde", "a-disk-1-abcde", **hotplugged),
        volume("disk-2-abcde", "a-disk-2-abcde-target", **hotplugged),
        volume("pvc-1", "pvc-1", **hotplugged),
        {"name": "cloudinitdisk", "target": "vdb"},
    ]
    vmi: Obj = {"metadata": {"name": "a", "labels": {"caphv.io/cluster": "x"}}, "status": {"volumeStatus": volumes}}
    kept = slim.instance(vmi)["status"]["volumeStatus"]
    assert kept == [
        {"persistentVolumeClaimInfo": {"claimName": "restored", "capacity": {"storage": "10Gi"}}},
        {
            "phase": "Ready",
            "persistentVolumeClaimInfo": {"claimName": "a-disk-1-abcde", "capacity": {"storage": "10Gi"}},
        },
        {
            "phase": "Ready",
            "persistentVolumeClaimInfo": {"claimName": "a-disk-2-abcde-target", "capacity": {"storage": "10Gi"}},
        },
    ]
    vmi["metadata"]["labels"] = {}
    assert "volumeStatus" not in slim.instance(vmi)["status"]
