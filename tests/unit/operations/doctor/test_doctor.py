"""The doctor's checks: what each finds, and what it says to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from caphv import data
from caphv.api.names import FORMER_OWNER_ANNOTATION, PARKED_STRATEGY_ANNOTATION, VM_UID_ANNOTATION
from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner, record
from caphv.runtime.kubeconfig import Kubeconfig
from caphv.runtime.text import load_yaml_all
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from operations.doctor import harvester, rights
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.doctor.storage import Storage
from operations.read.objects import HarvesterObjects
from operations.read.owners import OwnerObjects
from operations.status.check import Result
from tests.support.clusters import NOW, ago, condition, token
from tests.support.doctor import found, host, one

US = "0a1b2c3d-1111-2222-3333-444455556666"


def objects(**fields: Any) -> HarvesterObjects:
    fine: dict[str, Any] = {
        "server": "https://harvester:6443",
        "version": "v1.34.1",
        "hosts": [host("h1", "a"), host("h2", "b")],
        "images": [{"metadata": {"namespace": "default", "name": "image-x"}, "spec": {"displayName": "sles-15"}}],
        "networks": [{"metadata": {"namespace": "default", "name": "production"}}],
        "key_pairs": [{"metadata": {"namespace": "default", "name": "admin"}}],
        "pools": [{"metadata": {"name": "machines"}, "spec": {"ranges": [{"subnet": "10.0.0.0/24"}]}}],
        "namespaces": frozenset({"vms"}),
    }
    return HarvesterObjects(**{**fine, **fields})


def pool(total: int = 100, free: int = 50, **fields: Any) -> PoolReport:
    return PoolReport(
        harvester="https://harvester:6443", name="machines", total=total, available=free, expected=free, **fields
    )


def owner_objects(namespaces: frozenset[str] | None = None) -> OwnerObjects:
    machine = {"metadata": {"name": "m", "namespace": "team", "uid": "m-uid"}}
    return OwnerObjects(US, {Key("team", "m"): machine}, namespaces)


def harvester_facts(**fields: Any) -> HarvesterFacts:
    """A Harvester where all is well."""
    machine_spec = {
        "volumes": [{"imageName": "default/sles-15"}],
        "networks": ["default/production"],
        "sshKeyPair": "default/admin",
        "vmNetworkConfig": {"ipPoolRef": "machines"},
    }
    fine: dict[str, Any] = {
        "kubeconfig": Kubeconfig("https://harvester:6443", token=token(days=90)),
        "objects": objects(),
        "denied": [],
        "deployment": {"status": {"conditions": [condition("Available", "True")]}},
        "machines": [{"metadata": {"name": "m", "namespace": "team"}, "spec": machine_spec}],
        "clusters": [],
        "recorded_owners": owner_objects(),
        "pools": (pool(),),
    }
    return HarvesterFacts(Key("team", "identity"), **{**fine, **fields})


def test_a_harvester_where_all_is_well_has_only_checks_that_are_ok() -> None:
    results = {check.id: check.result for check in harvester.checks(harvester_facts(), NOW)}
    assert set(results.values()) == {Result.OK}
    assert {"credentials", "rights", "hosts", "zones", "pools", "images", "networks", "key-pairs", "orphans"} <= set(
        results
    )


LEAK = Entry(pool="machines", address="10.0.0.9", id="team/gone", verdict=Verdict.LEAKED)
RIGHT = rights.Right("vms", "kubevirt.io", "virtualmachines", "create")
OWNED = record(Owner("HarvesterMachine", "team", "gone", "m-uid", US))
ORPHAN = {"metadata": {"name": "gone", "namespace": "vms", "annotations": OWNED}}
RUNNING_ORPHAN = ORPHAN | {"status": {"printableStatus": "Running"}}
SILENT = {
    "metadata": {"name": "m", "namespace": "vms", "creationTimestamp": ago(hours=1)},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize(
    ("fields", "check", "result", "text"),
    [
        ({"kubeconfig": None, "error": "not found"}, "identity", Result.ERROR, "not found"),
        ({"kubeconfig": Kubeconfig("https://h", token=token(days=-1))}, "credentials", Result.ERROR, "expired at"),
        ({"kubeconfig": Kubeconfig("https://h", token=token(days=3))}, "credentials", Result.WARNING, "in 3 days"),
        ({"objects": None, "error": "no answer"}, "connection", Result.ERROR, "no answer"),
        ({"denied": [RIGHT]}, "rights", Result.ERROR, "create virtualmachines.kubevirt.io in namespace vms"),
        ({"deployment": {"status": {}}}, "harvester", Result.ERROR, "not available"),
        ({"objects": objects(hosts=[host("h1"), host("h2", ready=False)])}, "hosts", Result.ERROR, "h2"),
        ({"objects": objects(hosts=[host("h1", unschedulable=True)])}, "hosts", Result.WARNING, "take no VMs: h1"),
        ({"objects": objects(hosts=[host("h1", "a"), host("h2")])}, "zones", Result.WARNING, "no zone label on h2"),
        ({"pools": (pool(free=0),)}, "pools", Result.ERROR, "0 of 100"),
        ({"pools": (pool(free=4),)}, "pools", Result.WARNING, "4 of 100"),
        ({"pools": (pool(entries=(LEAK,)),)}, "pools", Result.WARNING, "1 has leaked"),
        ({"objects": objects(images=[])}, "images", Result.ERROR, "default/sles-15: VM image does not exist"),
        ({"objects": objects(networks=[])}, "networks", Result.ERROR, "default/production: VM network does not exist"),
        ({"objects": objects(instances=[SILENT])}, "guest-agent", Result.WARNING, "vms/m"),
        ({"objects": objects(vms=[ORPHAN])}, "orphans", Result.WARNING, "VirtualMachine vms/gone"),
        ({"objects": objects(vms=[RUNNING_ORPHAN])}, "orphans", Result.WARNING, "VirtualMachine vms/gone"),
        ({"recorded_owners": None}, "orphans", Result.SKIPPED, "may not be read"),
        ({"recorded_owners": owner_objects(frozenset({"team"}))}, "orphans", Result.SKIPPED, "may not be read"),
    ],
)
def test_a_harvester(fields: Any, check: str, result: Result, text: str) -> None:
    only = one(harvester.checks(harvester_facts(**fields), NOW), check)
    assert (only.result, text in only.message) == (result, True)
    assert bool(only.remedy) == only.wrong


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        OWNED | {"caphv.io/management-cluster": "another"},
        OWNED | {"caphv.io/owner": "IPPool/team/gone"},
        OWNED | {"caphv.io/owner": "HarvesterMachine/team/m"},
        {"caphv.io/owner": "HarvesterMachine/team/gone"},
        OWNED | {"caphv.io/owner": "HarvesterMachine"},
        OWNED | {"caphv.io/owner": "HarvesterMachine/gone"},
    ],
)
def test_what_others_own_is_no_orphan(annotations: dict[str, str]) -> None:
    vm = {"metadata": {"name": "gone", "namespace": "vms", "annotations": annotations}}
    seen = harvester_facts(objects=objects(vms=[vm]))
    assert one(harvester.checks(seen, NOW), "orphans").result is Result.OK


@pytest.mark.parametrize(
    ("machine", "result"),
    [
        ({"uid": "gone-uid"}, Result.OK),
        ({"uid": "new", "annotations": {FORMER_OWNER_ANNOTATION: f"{US}/gone-uid"}}, Result.OK),
        ({"uid": "new", "annotations": {VM_UID_ANNOTATION: "vm-uid"}}, Result.OK),
        ({"uid": "new"}, Result.WARNING),
    ],
    ids=["parked", "restored", "moved", "recreated"],
)
def test_vm_that_is_parked_is_an_orphan_only_without_its_owner(machine: Obj, result: Result) -> None:
    owner = {"metadata": {"name": "gone", "namespace": "team", **machine}}
    annotations = record(Owner("HarvesterMachine", "team", "gone", "gone-uid", US)) | {PARKED_STRATEGY_ANNOTATION: "x"}
    vm = {
        "metadata": {"name": "gone", "namespace": "vms", "uid": "vm-uid", "annotations": annotations},
        "status": {"printableStatus": "Stopped"},
    }
    owners = replace(owner_objects(), machines={Key("team", "gone"): owner})
    seen = harvester_facts(objects=objects(vms=[vm]), recorded_owners=owners)
    assert one(harvester.checks(seen, NOW), "orphans").result is result


@pytest.mark.parametrize("spec", [{}, {"targetNamespace": ""}])
def test_a_cluster_without_a_target_namespace_stops_no_check(spec: Obj) -> None:
    clusters = [{"metadata": {"name": "old", "namespace": "team"}, "spec": spec}]
    secret = harvester_facts(kubeconfig=None, error="not found", clusters=clusters)
    assert "NAMESPACE" in one(harvester.checks(secret, NOW), "identity").remedy
    refused = harvester_facts(denied=[RIGHT], clusters=clusters)
    assert "NAMESPACE" in one(harvester.checks(refused, NOW), "rights").remedy
    assert rights.needed_rights(clusters) == rights.needed_rights([])


def test_a_pool_that_does_not_exist_is_an_error() -> None:
    other = [{"metadata": {"name": "machine"}, "spec": {"ranges": [{"subnet": "10.0.0.0/24"}]}}]
    checks = found(harvester.checks(harvester_facts(objects=objects(pools=other), pools=()), NOW), "pools")
    assert [check.message for check in checks] == [
        'machines: IPPool does not exist; did you mean "machine"?: create it on Harvester, or name another '
        "(HarvesterMachine team/m, spec.vmNetworkConfig.ipPoolRef)"
    ]


def test_what_many_machines_name_is_one_finding_with_the_variable_that_sets_it() -> None:
    label = {"cluster.x-k8s.io/cluster-name": "shop"}
    spec = {"volumes": [{"imageName": "default/sles-16", "storageClass": "fsat"}], "sshKeyPair": "admin"}
    machines = [{"metadata": {"name": f"m{n}", "namespace": "team", "labels": label}, "spec": spec} for n in range(7)]
    cluster = {"metadata": {"name": "shop-x", "namespace": "team", "labels": label}}
    cluster["spec"] = {"targetNamespace": "default"}
    topology = {"variables": [{"name": "image", "value": "default/sles-16"}]}
    owner = {"metadata": {"name": "shop", "namespace": "team"}, "spec": {"topology": topology}}
    facts = harvester_facts(
        clusters=[cluster],
        machines=machines,
        owners={Key("team", "shop"): owner},
        storage=Storage([{"metadata": {"name": "fast"}}]),
    )

    wrong = {check.id: check for check in harvester.checks(facts, NOW) if check.wrong}

    assert set(wrong) == {"images", "storage-class"}, "a key pair without a namespace is in that of the VMs"
    assert 'did you mean "default/sles-15"?' in wrong["images"].message
    assert "(HarvesterMachine team/m0, team/m1, team/m2, team/m3, team/m4 and 2 more" in wrong["images"].message
    assert wrong["images"].remedy == (
        "To name another, correct variable image of the topology: kubectl edit cluster shop -n team"
    )
    assert 'did you mean "fast"?' in wrong["storage-class"].message


def test_reference_with_a_namespace_means_the_pool_of_that_name() -> None:
    spec = {"vmNetworkConfig": {"ipPoolRef": "old", "ipPoolRefs": ["default/machines"]}}
    cluster = {"metadata": {"namespace": "clusters", "name": "demo"}, "spec": spec}
    facts = harvester_facts(clusters=[cluster], machines=[])
    assert one(harvester.checks(facts, NOW), "pools").result is Result.OK


def test_gateway_and_mask_of_another_subnet_than_the_pools_are_errors() -> None:
    config = {"ipPoolRef": "machines", "gateway": "10.9.0.1", "subnetMask": "255.255.0.0"}
    cluster = {"metadata": {"name": "shop", "namespace": "team"}, "spec": {"vmNetworkConfig": config}}
    ranges = [{"subnet": "10.0.0.0/17", "gateway": "10.0.0.1"}]
    pools = [{"metadata": {"name": "machines"}, "spec": {"ranges": ranges}}]
    facts = harvester_facts(clusters=[cluster], objects=replace(objects(), pools=pools))

    checks = found(harvester.checks(facts, NOW), "pool-subnet")

    assert {check.result for check in checks} == {Result.ERROR}
    messages = " ".join(check.message for check in checks)
    assert "255.255.0.0: the subnets of IPPool machines have mask 255.255.128.0" in messages
    assert "10.9.0.1: it is in no subnet of IPPool machines" in messages
    assert "spec.vmNetworkConfig.subnetMask" in messages
    assert "HarvesterCluster team/shop" in messages


def test_more_replicas_of_a_volume_than_hosts_are_a_warning() -> None:
    metadata, parameters = {"name": "longhorn"}, {"numberOfReplicas": "3"}
    classes = [{"metadata": metadata, "provisioner": "driver.longhorn.io", "parameters": parameters}]
    claims = [{"metadata": {"name": "a", "namespace": "vms"}, "spec": {"storageClassName": "longhorn"}}]
    facts = harvester_facts(storage=Storage(classes), objects=objects(claims=claims))
    assert one(harvester.checks(facts, NOW), "longhorn-replicas").wrong


def test_a_witness_is_no_host_for_machines() -> None:
    witness = host("w", ready=False)
    witness["metadata"]["labels"]["node-role.harvesterhci.io/witness"] = "true"
    checks = harvester.checks(harvester_facts(objects=objects(hosts=[host("h1", "a"), witness])), NOW)
    assert one(checks, "hosts").result is Result.OK


def test_rights_are_those_of_the_shipped_roles_in_each_target_namespace() -> None:
    needed = rights.needed_rights([{"spec": {"targetNamespace": name}} for name in ("a", "b")])
    assert rights.Right("", "loadbalancer.harvesterhci.io", "ippools", "patch") in needed
    assert {right.namespace for right in needed if right.resource == "virtualmachines"} == {"a", "b"}
    assert rights.Right("harvester-system", "apps", "deployments", "list", "harvester") in needed


def test_right_that_only_a_later_harvester_asks_for_is_shipped_and_accounts_without_it_are_no_problem() -> None:
    roles = load_yaml_all((data.folder("deploy/harvester") / "clusterroles.yaml").read_text(encoding="utf-8"))
    images = [rule["verbs"] for role in roles for rule in role["rules"] if "virtualmachineimages" in rule["resources"]]
    assert images == [["get", "list", "watch"], ["create"]]
    needed = rights.needed_rights([{"spec": {"targetNamespace": "a"}}])
    assert {right.verb for right in needed if right.resource == "virtualmachineimages"} == {"list", "watch"}
    check = one(harvester.checks(harvester_facts(denied=[*rights.AHEAD]), NOW), "rights")
    assert (check.result, check.wrong) == (Result.OK, False)
    assert (
        "get virtualmachineimages.harvesterhci.io in all namespaces: before an upgrade, run caphv identity create"
        in check.message
    )
    check = one(harvester.checks(harvester_facts(denied=[RIGHT, *rights.AHEAD]), NOW), "rights")
    assert (check.result, "virtualmachineimages" in check.message) == (Result.ERROR, False)


def test_right_to_import_images_is_needed_in_their_namespaces() -> None:
    entry = {"url": "https://images.example.com/a.qcow2", "checksum": "a" * 128}
    images = [{"name": "a", **entry}, {"name": "shared/b", **entry}, {"name": "invalid"}]
    clusters = [{"metadata": {"name": "c", "namespace": "team"}, "spec": {"targetNamespace": "vms", "images": images}}]
    needed = rights.import_rights(clusters)
    assert not set(needed).intersection(rights.needed_rights(clusters)), "a cluster can do without"
    creates = {
        right.namespace for right in needed if (right.verb, right.resource) == ("create", "virtualmachineimages")
    }
    assert creates == {"vms", "shared"}

    check = one(harvester.checks(harvester_facts(denied=needed, clusters=clusters), NOW), "rights")
    assert check.result is Result.WARNING
    assert "--import-images shared --import-images vms" in check.remedy
    check = one(harvester.checks(harvester_facts(denied=[RIGHT, *needed], clusters=clusters), NOW), "rights")
    assert check.result is Result.ERROR
    assert "--import-images shared --import-images vms" in check.remedy


def test_right_to_back_up_machines_is_needed_where_clusters_want_it() -> None:
    field = {"controlPlaneBackups": {"keep": 3}}
    clusters = [
        {"metadata": {"name": name, "namespace": "team"}, "spec": {"targetNamespace": name, **spec}}
        for name, spec in (("plain", {}), ("backups", field))
    ]
    needed = rights.backup_rights(clusters)
    assert not set(needed).intersection(rights.needed_rights(clusters)), "a cluster can do without"
    assert {right.namespace for right in needed} == {"backups"}
    assert {right.verb for right in needed} == {"get", "list", "create", "patch", "delete"}

    check = one(harvester.checks(harvester_facts(denied=needed, clusters=clusters), NOW), "rights")
    assert check.result is Result.WARNING
    assert "upgrades make no backups" in check.message
    assert " --target-namespace backups --back-up-vms, with --name and --namespace of the account" in check.remedy


@pytest.mark.parametrize(("imports", "backups"), [(True, False), (False, True), (True, True)])
def test_a_right_that_an_account_can_do_without_says_what_is_not_done(imports: bool, backups: bool) -> None:
    image = {"name": "a", "url": "https://images.example.com/a.qcow2", "checksum": "a" * 128}
    spec = {"targetNamespace": "vms", "images": [image], "controlPlaneBackups": {"keep": 3}}
    clusters = [
        {"metadata": {"name": "c", "namespace": "team"}, "spec": spec},
        {"metadata": {"name": "d", "namespace": "team"}, "spec": {"targetNamespace": "later"}},
    ]
    denied = rights.import_rights(clusters) * imports + rights.backup_rights(clusters) * backups
    check = one(harvester.checks(harvester_facts(denied=denied, clusters=clusters), NOW), "rights")
    assert check.result is Result.WARNING
    assert ("imported by hand" in check.message, "make no backups" in check.message) == (imports, backups)
    assert ("--import-images vms" in check.remedy, "--back-up-vms" in check.remedy) == (imports, backups)
    assert "later" not in check.remedy, "nothing is missing there"
    # Without a right that is needed, what else is not done does not matter.
    check = one(harvester.checks(harvester_facts(denied=[RIGHT, *denied], clusters=clusters), NOW), "rights")
    assert (check.result, "by hand" in check.message, "no backups" in check.message) == (Result.ERROR, False, False)


def test_rights_for_cloud_configs_and_pools_are_needed_where_clusters_have_them() -> None:
    plain, config = {"targetNamespace": "a"}, {"targetNamespace": "b", "cloudConfig": {"delivery": "Secret"}}
    pool = {"targetNamespace": "c", "loadBalancerConfig": {"ipPool": {"subnet": "192.0.2.0/24"}}}
    needed = rights.needed_rights([{"spec": spec} for spec in (plain, config, pool)])
    assert {right.namespace for right in needed if right.resource == "serviceaccounts/token"} == {"b"}
    bindings = [right for right in needed if right.resource == "clusterrolebindings" and right.verb != "get"]
    assert [(right.verb, right.name) for right in bindings] == [("patch", "caphv-guests:b")]
    deletes = {right.resource for right in needed if right.verb == "delete" and not right.namespace}
    assert deletes == {"ippools"}
    needed = rights.needed_rights([{"spec": plain}])
    assert not [right for right in needed if right.verb == "delete" and not right.namespace]
