"""Whether Harvester has what a new cluster names and needs."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from caphv.validation.finding import Finding
from operations.capacity.free import CapacityObjects
from operations.capacity.machinepools import Pool
from operations.capacity.newcluster import NewCluster, findings
from operations.capacity.surroundings import Surroundings
from operations.read.chartlimits import ChartLimits
from operations.read.objects import HarvesterObjects, Unseen
from tests.support.clusters import condition

pytestmark = pytest.mark.unit


def definition(**spec: Any) -> Obj:
    machines = {"image": "default/sles-15", "sshKeyPair": "default/admin", "networks": ["default/production"]}
    machines |= spec.pop("machines", {})
    return {"metadata": {"name": "shop", "namespace": "team"}, "spec": {"machines": machines, **spec}}


def named(name: str, namespace: str = "default", **more: Any) -> Obj:
    return {"metadata": {"name": name, "namespace": namespace}, **more}


def pool(name: str, last: int = 19, network: str = "", **allocated: str) -> Obj:
    bounds = {"rangeStart": "10.0.0.10", "rangeEnd": f"10.0.0.{last}", "subnet": "10.0.0.0/24"}
    spec = {"ranges": [bounds], **({"selector": {"network": network}} if network else {})}
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocated": allocated}}


def surroundings(**changed: Any) -> Surroundings:
    quotas = changed.pop("quotas", [])
    classes = changed.pop("classes", ["harvester-longhorn"])
    objects: dict[str, Any] = {
        "images": [named("image-x7k2p", spec={"displayName": "sles-15"})],
        "key_pairs": [named("admin")],
        "networks": [named("production")],
        "pools": [pool("machines"), pool("balancers")],
        **changed,
    }
    return Surroundings(CapacityObjects(HarvesterObjects(**objects), quotas=quotas), ["default", "vms"], classes)


def machines(*replicas: int, **machine: Any) -> list[Pool]:
    return [Pool(f"pool-{number}", count, machine=machine) for number, count in enumerate(replicas)]


def lines(wanted: Obj, found: Surroundings, *pools: Pool) -> list[str]:
    return [str(each) for each in findings(NewCluster(wanted, pools), found)]


def only(wanted: Obj, found: Surroundings, *pools: Pool) -> Finding:
    (finding,) = findings(NewCluster(wanted, pools), found)
    return finding


def test_nothing_is_wrong_with_what_exists() -> None:
    wanted = definition(addresses={"ipPoolRefs": ["machines"]}, loadBalancer={"ipPoolRef": "balancers"})
    assert lines(wanted, surroundings(), *machines(3, 2)) == []
    assert lines({"spec": None}, surroundings()) == []


@pytest.mark.parametrize("declared", [True, False])
def test_image_by_version_exists_or_is_imported(declared: bool) -> None:
    wanted = definition(kubernetesVersion="v1.36.2", targetNamespace="default")
    del wanted["spec"]["machines"]["image"]
    wanted["spec"]["machines"]["imageLookup"] = {"format": "sles-{{.K8sVersion}}"}
    entry = {"name": "default/sles-1.36.2-rke2r1", "url": "https://i.example.com/a", "checksum": "a" * 128}
    wanted["spec"]["images"] = [entry] if declared else []
    found = lines(wanted, surroundings(), *machines(3, 2))
    absent = 'spec.machines.imageLookup: Invalid value: "sles-1.36.2-rke2r1": VM image does not exist'
    assert [line.partition(" in namespace")[0] for line in found] == ([] if declared else [absent])


def test_everything_that_is_absent_is_named_at_once_with_field_value_and_remedy() -> None:
    wanted = definition(
        machines={
            "image": "sles-15",
            "sshKeyPair": "default/admim",
            "networks": ["default/production", "team/production"],
            "extraDisks": [{"size": "10Gi", "storageClass": "fast"}],
        },
        addresses={"ipPoolRefs": ["default/machines", "machine"]},
        loadBalancer={"ipPoolRef": "none"},
        targetNamespace="vms",
    )
    create = "create it on Harvester, or name another"
    assert lines(wanted, surroundings(), *machines(3, 2)) == [
        'spec.machines.image: Invalid value: "sles-15": VM image does not exist in namespace vms; Harvester has '
        "default/sles-15: upload it to Harvester, or name another",
        'spec.machines.sshKeyPair: Invalid value: "default/admim": KeyPair does not exist; did you mean '
        f'"default/admin"?: {create}',
        'spec.machines.networks[1]: Invalid value: "team/production": VM network does not exist; Harvester has '
        f"default/production: {create}",
        'spec.machines.extraDisks[0].storageClass: Invalid value: "fast": StorageClass does not exist; Harvester has '
        f"harvester-longhorn: {create}",
        'spec.addresses.ipPoolRefs[1]: Invalid value: "machine": IPPool does not exist; did you mean "machines"?: '
        f"{create}",
        'spec.loadBalancer.ipPoolRef: Invalid value: "none": IPPool does not exist; Harvester has balancers, machines: '
        f"{create}",
    ]


@pytest.mark.parametrize(
    ("status", "message", "advice"),
    [("False", "x509: unknown authority", False), ("Unknown", "", True)],
)
def test_an_image_that_is_not_imported_is_reported(status: str, message: str, advice: bool) -> None:
    progress = {"progress": 40, "conditions": [condition("Imported", status, message=message)]}
    found = only(definition(), surroundings(images=[named("sles-15", status=progress)]))
    assert found.advice is advice
    assert f"not imported yet ({message or '40 %'})" in found.detail


@pytest.mark.parametrize(
    ("last", "balancer", "text"),
    [
        (13, "", "4 addresses are free, and the cluster needs 5: add a range or another IPPool"),
        (10, "", "1 address is free, and the cluster needs 5"),
        (14, "machines", "5 addresses are free, and the cluster needs 6"),
        (14, "", "none is left for a rollout"),
    ],
)
def test_a_pool_needs_an_address_for_each_machine(last: int, balancer: str, text: str) -> None:
    wanted = definition(
        addresses={"ipPoolRefs": ["machines"]}, **({"loadBalancer": {"ipPoolRef": balancer}} if balancer else {})
    )
    found = only(wanted, surroundings(pools=[pool("machines", last)]), *machines(3, 2))
    assert text in found.detail
    assert found.field == "spec.addresses.ipPoolRefs"
    assert found.advice is (text == "none is left for a rollout")


def test_addresses_of_several_pools_are_added() -> None:
    wanted = definition(addresses={"ipPoolRefs": ["machines", "more", "machines"]})
    pools = [pool("machines", 12), pool("more", 12)]
    assert lines(wanted, surroundings(pools=pools), *machines(3, 2)) == []
    assert (
        "6 addresses are free, and the cluster needs 7"
        in only(wanted, surroundings(pools=pools), *machines(3, 4)).detail
    )


def test_the_pool_of_the_control_plane_needs_one_address() -> None:
    full = pool("balancers", 10, **{"10.0.0.10": "team/other"})
    wanted = definition(loadBalancer={"ipPoolRef": "balancers"})
    assert "no address is free" in only(wanted, surroundings(pools=[full]), *machines(1)).detail


def test_a_pool_that_serves_another_network_is_refused() -> None:
    found = surroundings(pools=[pool("machines", network="default/storage")])
    assert (
        "serves VM network default/storage only"
        in only(definition(addresses={"ipPoolRefs": ["machines"]}), found).detail
    )
    broken = {"metadata": {"name": "machines"}, "spec": {"ranges": [{"subnet": "nonsense"}]}}
    assert (
        "its ranges are invalid"
        in only(definition(addresses={"ipPoolRefs": ["machines"]}), surroundings(pools=[broken])).detail
    )


def test_a_quota_that_is_too_small_is_refused_and_a_full_host_is_a_warning() -> None:
    quota = named("limits", "vms", spec={"hard": {"limits.cpu": "9", "limits.memory": "64Gi"}})
    host = {
        "metadata": {"name": "host"},
        "status": {"allocatable": {"cpu": "64", "memory": "16Gi"}, "conditions": [condition("Ready", "True")]},
    }
    wanted = definition(targetNamespace="vms")
    sized = machines(3, 2, cpu=2, memory="4Gi")
    found = findings(NewCluster(wanted, sized), surroundings(quotas=[quota], hosts=[host]))
    errors = [str(each) for each in found if not each.advice]
    assert errors == [
        'spec.targetNamespace: Invalid value: "vms": quota vms/limits limits.cpu has 9 free, and the cluster needs 10: '
        "raise the quota on Harvester, or use fewer or smaller machines"
    ]
    # Without a VM it is not known how far Harvester overcommits.
    assert [str(each) for each in found if each.advice] == []
    resources = {"requests": {"cpu": "125m", "memory": "4Gi"}, "limits": {"cpu": "2", "memory": "4Gi"}}
    elsewhere = named("other", spec={"domain": {"resources": resources}}, status={"nodeName": "another"})
    full = surroundings(hosts=[host], instances=[elsewhere])
    assert [str(each) for each in findings(NewCluster(wanted, sized), full)] == [
        "spec.machines: Invalid value: hosts have room for 4 of 5 VMs: use fewer or smaller machines, or add hosts"
    ]
    resources["requests"]["memory"] = "2730Mi"  # memory is overcommitted as well
    assert findings(NewCluster(wanted, sized), full) == []
    resources["requests"]["memory"] = "4Gi"
    disk = {"storageMaximum": 100 * 1024**3, "storageScheduled": 0}
    full.capacity.disks = [{"spec": {"disks": {"d": {}}}, "status": {"diskStatus": {"d": disk}}}]
    large = machines(1, volumes=[{"volumeSize": "200Gi"}])
    assert [str(each) for each in findings(NewCluster(wanted, large), full)] == [
        "spec.machines.diskSize: Invalid value: Longhorn has 100 GiB free, and the cluster needs 200 GiB for one "
        "replica: use smaller disks, or add storage"
    ]


def test_a_namespace_that_does_not_exist_is_advice() -> None:
    finding = only(definition(targetNamespace="new"), surroundings())
    assert (finding.advice, finding.field) == (True, "spec.targetNamespace")


def test_a_cluster_that_exists_needs_nothing_again() -> None:
    wanted = definition(addresses={"ipPoolRefs": ["machines"]})
    annotations = {"caphv.io/owner": "HarvesterMachine/team/shop-abc-1"}
    vm = {"metadata": {"name": "shop-abc-1", "namespace": "default", "annotations": annotations}}
    assert lines(wanted, surroundings(pools=[pool("machines", 10)], vms=[vm]), *machines(3, 2)) == []


def test_what_may_not_be_listed_is_not_missing() -> None:
    hidden = [
        Unseen(what, "forbidden", forbidden=True)
        for what in (
            "virtualmachineimages.harvesterhci.io",
            "keypairs.harvesterhci.io",
            "network-attachment-definitions.k8s.cni.cncf.io",
            "ippools.loadbalancer.harvesterhci.io",
        )
    ]
    found = surroundings(images=[], key_pairs=[], networks=[], pools=[], classes=None, unseen=hidden)
    wanted = definition(addresses={"ipPoolRefs": ["machines"]}, loadBalancer={"ipPoolRef": "balancers"})
    assert lines(wanted, found, *machines(3, 2)) == []


@pytest.mark.parametrize(
    ("gateway", "mask", "fields"),
    [
        ("10.0.0.1", "255.255.255.0", []),
        ("10.0.0.1", "255.255.0.0", ["subnetMask"]),
        ("10.0.1.1", "255.255.255.0", ["gateway"]),
        ("172.16.0.1", "255.255.128.0", ["subnetMask", "gateway"]),
    ],
)
def test_gateway_and_mask_are_those_of_the_pool(gateway: str, mask: str, fields: list[str]) -> None:
    addresses = {"ipPoolRefs": ["machines"], "gateway": gateway, "subnetMask": mask}
    found = findings(NewCluster(definition(addresses=addresses), machines(1)), surroundings())
    assert [finding.path[-1] for finding in found] == fields
    assert not any(finding.advice for finding in found)


def host(name: str, **devices: int) -> Obj:
    allocatable = {"cpu": "64", "memory": "1Ti", "devices.kubevirt.io/kvm": "1k"}
    allocatable |= {f"nvidia.com/{device}": str(count) for device, count in devices.items()}
    status = {"allocatable": allocatable, "conditions": [condition("Ready", "True")]}
    return {"metadata": {"name": name}, "spec": {}, "status": status}


def test_device_that_no_host_offers_is_a_warning_with_what_there_is() -> None:
    workers = [{"name": "a"}, {"name": "b", "devices": [{"resourceName": "nvidia.com/A1O"}]}]
    found = only(definition(workers=workers), surroundings(hosts=[host("one", A10=2), host("two", A2=0)]))
    assert (found.field, found.rule, found.advice) == ("spec.workers[1].devices[0].resourceName", "devices", True)
    assert "did you mean" in found.detail
    assert "nvidia.com/A10" in found.detail
    assert lines(definition(workers=workers), surroundings(hosts=[])) == [], "hosts cannot be read"


@pytest.mark.parametrize(("replicas", "warned"), [(3, False), (4, True)])
def test_devices_for_all_machines_of_a_pool(replicas: int, warned: bool) -> None:
    devices = [{"resourceName": "nvidia.com/A10"}]
    found = surroundings(hosts=[host("one", A10=2), host("two", A10=1)])
    text = "\n".join(lines(definition(machines={"devices": devices}), found, *machines(replicas, devices=devices)))
    assert ("3 free, and the cluster needs 4" in text) == warned


# Charts


def test_charts_that_harvester_does_not_serve_are_an_error() -> None:
    old = surroundings()
    old.chart_limits = ChartLimits((1, 1))
    rke2 = definition(kubernetesVersion="v1.34.4+rke2r1", addons={"cloudProviderName": "harvester"})
    finding = only(rke2, old)
    assert (finding.field, finding.value) == ("spec.kubernetesVersion", "v1.34.4+rke2r1")
    assert finding.detail.startswith("harvester-cloud-provider 0.2.11 needs Harvester 1.2 or later: upgrade Harvester")
    assert not finding.advice
    for addons in ({}, {"cloudProviderName": "harvester"}):
        other = definition(kubernetesVersion="v1.34.4+k3s1", distribution="k3s", addons=addons)
        assert only(other, old).field == "spec.addons"


@pytest.mark.parametrize(
    "addons",
    [
        {"ccm": {"version": "0.1.14"}, "csi": {"version": "0.1.14"}},
        {"ccm": {"enabled": False}, "csi": {"version": "0.1.14"}},
        {"ccm": {"enabled": False}, "csi": {"enabled": False}},
    ],
)
def test_the_remedy_for_charts_works(addons: Obj) -> None:
    strict = surroundings()
    strict.chart_limits = ChartLimits(
        (1, 1), {"harvester-cloud-provider": "<0.2.0", "harvester-csi-provider": "<0.1.15"}
    )
    assert len(lines(definition(), strict)) == 3
    assert lines(definition(addons=addons), strict) == []


def test_charts_of_a_cluster_that_exists_are_those_of_its_lockfile() -> None:
    annotations = {"caphv.io/owner": "HarvesterMachine/team/shop-abc-1"}
    old = surroundings(vms=[{"metadata": {"name": "shop-abc-1", "annotations": annotations}}])
    old.chart_limits = ChartLimits((1, 1))
    assert lines(definition(), old) == []


def test_charts_that_its_setting_excludes_are_an_error() -> None:
    strict = surroundings()
    strict.chart_limits = ChartLimits((1, 8), {"harvester-csi-provider": "<0.1.0"})
    assert "is not accepted by this Harvester, which takes <0.1.0" in only(definition(), strict).detail


@pytest.mark.parametrize(
    "limits", [ChartLimits(), ChartLimits((1, 8)), ChartLimits(None, {"harvester-csi-provider": 1})]
)
def test_an_unknown_harvester_refuses_no_chart(limits: ChartLimits) -> None:
    found = surroundings()
    found.chart_limits = limits
    assert lines(definition(), found) == []


def test_pools_of_interfaces_exist_and_serve_their_networks_in_each_part() -> None:
    def part(name: str) -> Obj:
        listed = [{"apiGroup": "loadbalancer.harvesterhci.io", "kind": "IPPool", "name": name}]
        return {"networkInterfaces": [{"network": "default/production", "addressesFromPools": listed}]}

    wanted = definition(controlPlane=part("other"), workers=[{"name": "a"}, {"name": "b", **part("absent")}])
    wanted["spec"]["machines"] |= part("pool")
    right = pool("pool")
    right["spec"]["ranges"][0]["gateway"] = "10.0.0.1"
    found = surroundings(pools=[right, pool("other", network="default/storage")])
    other, absent = lines(wanted, found)
    assert "spec.controlPlane.networkInterfaces[0].addressesFromPools[0].name" in other
    assert "the IPPool serves VM network default/storage only" in other
    assert 'spec.workers[1].networkInterfaces[0].addressesFromPools[0].name: Invalid value: "absent"' in absent


def test_pool_of_the_first_interface_without_a_gateway_is_advice() -> None:
    listed = [{"apiGroup": "loadbalancer.harvesterhci.io", "kind": "IPPool", "name": "pool"}]
    networks = ["default/production", "default/storage"]
    without, gateway, v6 = pool("pool"), pool("pool"), pool("pool")
    gateway["spec"]["ranges"][0]["gateway"] = "10.0.0.1"
    v6["spec"]["ranges"] = [{"subnet": "fd00::/64"}]
    found = {}
    for name, obj in (("without", without), ("gateway", gateway), ("v6", v6)):
        for network in networks:
            settings = [{"network": network, "addressesFromPools": listed}]
            wanted = definition(machines={"networks": networks, "networkInterfaces": settings})
            harvester = surroundings(pools=[obj], networks=[named("production"), named("storage")])
            found[name, network] = findings(NewCluster(wanted), harvester)
    (advice,) = found.pop(("without", "default/production"))
    assert (advice.advice, "guests have no default route on their first interface" in advice.detail) == (True, True)
    assert not any(found.values())
