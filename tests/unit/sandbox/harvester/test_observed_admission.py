"""The simulated admission of VMs and claims does what that of real Harvester did."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caphv.api.object import Obj
from caphv.api.quantity import quantity
from sandbox.harvester import admission_rules
from sandbox.harvester.informers import Informers
from sandbox.harvester.mutations import MutationSettings, VmNetwork, interfaces_of, mutate
from sandbox.harvester.releases import release_named
from tests.support import observed, observedvms
from tests.support.observed import Record

pytestmark = pytest.mark.unit

FILES = {
    "1.9": "harvester/admission-v1.9.0-rc6.yaml",
    "1.8": "harvester/admission-v1.8.2.yaml",
    "1.6": "harvester/admission-v1.6.1.yaml",
}
RECORDS = {release: {record.name: record for record in observed.records(file)} for release, file in FILES.items()}
# What is known and not modelled, see docs/simulators.md.
NOT_MODELLED = {
    "create-over-quota-that-is-not-ranchers": "any ResourceQuota counts",
    "label-changed-over-quota-that-is-not-ranchers": "any ResourceQuota counts",
    "mac-of-another-vm": "MACs are not compared",
    "volume-is-a-golden-image": "images of CDI have no claims of their own",
    "volume-of-another-vm-rwx-of-another-driver": "the sandbox has only Longhorn's volumes",
    "volume-of-another-vm-without-claim": "a claim follows its VM at once",
    "storage-class-of-a-template-changed": "templates are not compared",
    "template-shrunk": "templates are not compared",
    "claim-with-reserved-class": "the sandbox has no reserved class",
}
REQUESTED = ("cpu", "memory")


class FakeInformers(Informers):
    """Informers with the objects of a record."""

    def __init__(self, objects: dict[str, list[Obj]]) -> None:
        super().__init__(FakeClient())  # type: ignore[arg-type]
        for informer, name in (
            (self.networks, "networks"),
            (self.vms, "vms"),
            (self.claims, "claims"),
            (self.storage_classes, "storageClasses"),
        ):
            for number, obj in enumerate(objects.get(name) or ()):
                informer.observe(with_version(obj, number))
        for number, obj in enumerate(objects.get("quotas") or ()):
            self.quotas.observe(with_version({**obj, "spec": {"hard": rancher_limits(objects)}}, number))
        for number, pod in enumerate(objects.get("pods") or ()):
            vmi = {"metadata": {"name": pod["metadata"]["labels"]["harvesterhci.io/vmName"], "namespace": "vms"}}
            self.vmis.observe(with_version({**vmi, "spec": {}, "status": {"phase": "Running"}}, number))
        self.use_of_quotas(objects)

    def use_of_quotas(self, objects: dict[str, list[Obj]]) -> None:
        """Add what the quota counts as used: claims, and an instance of another VM."""
        for obj in objects.get("quotas") or ():
            used = obj["status"]["used"]
            claim = {"spec": {"resources": {"requests": {"storage": used.get("requests.storage", "0")}}}}
            self.claims.observe(with_version({"metadata": {"name": "used", "namespace": "vms"}, **claim}, 1))
            limits = {name: used.get(f"limits.{name}", "0") for name in REQUESTED}
            spec = {"domain": {"resources": {"limits": limits}}}
            vmi = {"metadata": {"name": "other", "namespace": "vms"}, "spec": spec, "status": {"phase": "Running"}}
            self.vmis.observe(with_version(vmi, 1))


class FakeClient:
    """What informers read of a client that they do not use."""

    name, budget = "harvester", None


def with_version(obj: Obj, number: int) -> Obj:
    metadata = {"uid": f"uid-{number}", **obj["metadata"], "resourceVersion": str(number + 1)}
    return {**obj, "metadata": metadata}


def rancher_limits(objects: dict[str, list[Obj]]) -> dict[str, str]:
    """The limits of Rancher's quota, in the form of a ResourceQuota."""
    names = {"limitsCpu": "limits.cpu", "limitsMemory": "limits.memory", "requestsStorage": "requests.storage"}
    annotations = [obj["metadata"].get("annotations") or {} for obj in objects["namespaces"]]
    texts = [each["field.cattle.io/resourceQuota"] for each in annotations if "field.cattle.io/resourceQuota" in each]
    limits = json.loads(texts[0])["limit"] if texts else {}
    return {names[name]: value for name, value in limits.items()}


def settings_of(objects: dict[str, list[Obj]], release: str) -> MutationSettings:
    values = {obj["metadata"]["name"]: obj.get("value") or obj["default"] for obj in objects["settings"]}
    overcommit = json.loads(values["overcommit-config"])
    networks = {f"{n['metadata']['namespace']}/{n['metadata']['name']}": n for n in objects["networks"]}
    providers = {subnet["spec"]["provider"] for subnet in objects["subnets"] if subnet["spec"]["enableDHCP"]}

    def network(name: str) -> VmNetwork:
        obj = networks.get(name if "/" in name else f"vms/{name}")
        labels = obj["metadata"]["labels"] if obj else {}
        space, _, bare = name.partition("/")
        overlay = labels.get("network.harvesterhci.io/type") == "OverlayNetwork"
        cluster_network = labels.get("network.harvesterhci.io/clusternetwork", "")
        return VmNetwork(cluster_network, overlay and f"{bare}.{space}.ovn" in providers)

    return MutationSettings(
        cpu_overcommit=overcommit["cpu"],
        memory_overcommit=overcommit["memory"],
        overhead_ratio=float(values["additional-guest-memory-overhead-ratio"]) >= 1,
        release=release_named(release),
        network=network,
    )


def modelled(release: str) -> list[Record]:
    return [
        record for name, record in RECORDS[release].items() if name not in NOT_MODELLED and "claim" not in record.input
    ]


@pytest.mark.parametrize(
    ("release", "record"),
    [pytest.param(release, record, id=str(record)) for release in FILES for record in modelled(release)],
)
def test_virtual_machine_is_admitted_as_by_harvester(release: str, record: Record) -> None:
    records = RECORDS[release]
    objects = {**records["plain"].input["objects"], **record.input.get("objects", {})}
    informers, settings = FakeInformers(objects), settings_of(objects, release)
    vm, before = observedvms.given_vm(records, record), observedvms.vm_before(records, record)

    denial = admission_rules.check_virtual_machine(vm, before, informers, settings)
    refused = record.outcome.get("refused")
    assert (denial and (denial.code, denial.reason)) == (refused and (refused["code"], refused["reason"]))
    if denial or vm["metadata"].get("deletionTimestamp"):
        return

    expected = observedvms.admitted_vm(records, record)
    assert comparable(mutate(vm, before, settings)) == comparable(expected)


@pytest.mark.parametrize("release", FILES)
def test_claims_of_unknown_classes_are_admitted(release: str) -> None:
    """No webhook looks a StorageClass up, and the simulator has none for the creation of claims."""
    assert "refused" not in RECORDS[release]["claim-with-unknown-class"].outcome
    assert "refused" not in RECORDS[release]["unknown-storage-class"].outcome


def test_names_of_what_is_not_modelled_are_those_of_records() -> None:
    assert NOT_MODELLED.keys() <= set().union(*RECORDS.values())


def comparable(vm: Obj) -> Any:
    """What a VM means: quantities as numbers, one MAC like another, without what KubeVirt's controller adds."""
    spec = vm["spec"]["template"]["spec"]
    for nic in interfaces_of(spec):
        if nic.get("macAddress"):
            nic["macAddress"] = "random"
    domain = spec["domain"]
    domain["memory"]["guest"] = quantity(domain["memory"]["guest"])
    resources = domain["resources"]
    resources["requests"] = {name: quantity(resources["requests"][name]) for name in REQUESTED}
    vm["metadata"].pop("finalizers", None)
    return vm


@pytest.mark.parametrize(
    ("release", "device", "is_admitted"),
    [
        ("1.8", "nvidia.com/NVIDIA_A10-4Q", True),
        ("1.7", "nvidia.com/NVIDIA_A10-4Q", False),
        ("1.7", "nvidia.com/GA102GL_A10", True),
        ("1.8", "nvidia.com/NONE", False),
    ],
)
def test_vgpus_are_host_devices_since_1_8(release: str, device: str, is_admitted: bool) -> None:
    informers = FakeInformers({})
    offered = {"nvidia.com/NVIDIA_A10-4Q": "4", "nvidia.com/GA102GL_A10": "1"}
    informers.hosts.observe(with_version({"metadata": {"name": "h"}, "status": {"allocatable": offered}}, 1))
    domain = {"devices": {"hostDevices": [{"name": "device-0", "deviceName": device}]}}
    vm = {"metadata": {"name": "vm", "namespace": "vms"}, "spec": {"template": {"spec": {"domain": domain}}}}
    settings = MutationSettings(release=release_named(release))
    denial = admission_rules.check_virtual_machine(vm, None, informers, settings)
    assert (denial is None) is is_admitted
    assert denial is None or f"resource name {device} not found in pcidevice and usbdevice cache" in denial.message
