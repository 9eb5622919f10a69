"""Findings of `caphv doctor` about the objects that clusters and machines name on Harvester."""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj
from operations.doctor.references import References, checks
from operations.read.objects import HarvesterObjects, Unseen
from operations.status.check import Check, Result
from tests.support.clusters import condition
from tests.support.doctor import found, one

LABELS = {"cluster.x-k8s.io/cluster-name": "shop"}


def cluster(**spec: Any) -> Obj:
    metadata = {"name": "shop-x", "namespace": "team", "labels": LABELS}
    return {"metadata": metadata, "spec": {"targetNamespace": "vms", **spec}}


def machine(**spec: Any) -> Obj:
    return {"metadata": {"name": "m", "namespace": "team", "labels": LABELS}, "spec": spec}


def harvester(**fields: Any) -> HarvesterObjects:
    return HarvesterObjects(**{"namespaces": frozenset({"vms"}), **fields})


def named(name: str, namespace: str = "vms", **more: Any) -> Obj:
    return {"metadata": {"name": name, "namespace": namespace}, **more}


def checked(harvester: HarvesterObjects, **references: Any) -> list[Check]:
    return list(checks(References(**references), harvester, "h"))


def test_a_key_pair_without_a_namespace_is_that_of_the_target_namespace() -> None:
    references = {"clusters": [cluster()], "machines": [machine(sshKeyPair="admin")]}
    good = checked(harvester(key_pairs=[named("admin")]), **references)
    assert one(good, "key-pairs").result is Result.OK
    bad = checked(harvester(key_pairs=[named("admin", "default")]), **references)
    assert one(bad, "key-pairs").result is Result.ERROR


def test_a_key_pair_may_be_in_any_namespace_where_the_target_is_unknown() -> None:
    existing = harvester(key_pairs=[named("admin", "default")])
    for clusters in ([], [cluster(targetNamespace=None)], [{**cluster(), "spec": None}]):
        result = checked(existing, clusters=clusters, machines=[machine(sshKeyPair="admin")])
        assert one(result, "key-pairs").result is Result.OK


def test_a_machine_without_a_spec_names_nothing() -> None:
    assert checked(harvester(), machines=[{**machine(), "spec": None}]) == []


def test_an_image_is_an_error_only_when_its_import_has_failed() -> None:
    machines = [machine(volumes=[{"imageName": "vms/sles"}])]
    for status, result in (("Unknown", Result.WARNING), ("False", Result.ERROR)):
        image = named("sles", status={"conditions": [condition("Imported", status)]})
        assert one(checked(harvester(images=[image]), machines=machines), "images").result is result


def test_the_pool_of_a_cluster_must_serve_the_networks_of_its_machines() -> None:
    spec = {"selector": {"network": "vms/blue"}, "ranges": [{"subnet": "192.0.2.0/24"}]}
    existing = harvester(pools=[named("machines", spec=spec)], networks=[named("blue"), named("green")])
    clusters = [cluster(vmNetworkConfig={"ipPoolRef": "machines"})]

    served = checked(existing, clusters=clusters, machines=[machine(networks=["blue"])])
    assert found(served, "pools") == []

    check = one(checked(existing, clusters=clusters, machines=[machine(networks=["green"])]), "pools")
    assert check.result is Result.ERROR
    assert "serves VM network vms/blue only" in check.message
    assert "HarvesterCluster team/shop-x" in check.message


def test_storage_classes_that_could_not_be_listed_are_not_missed() -> None:
    machines = [machine(volumes=[{"storageClass": "fast"}])]
    assert found(checked(harvester(), machines=machines), "storage-class") == []
    slow = [{"metadata": {"name": "slow"}}]
    assert one(checked(harvester(), machines=machines, storage_classes=slow), "storage-class").wrong


def test_the_remedy_is_to_edit_a_cluster_and_to_replace_a_template() -> None:
    absent = {"vmNetworkConfig": {"ipPoolRef": "absent"}}
    check = one(checked(harvester(), clusters=[cluster(**absent)]), "pools")
    assert check.remedy.endswith(": kubectl edit harvestercluster shop-x -n team")
    check = one(checked(harvester(), machines=[machine(**absent)]), "pools")
    assert "create a HarvesterMachineTemplate under another name" in check.remedy


def test_a_kind_that_could_not_be_read_is_skipped_with_its_reason() -> None:
    unseen = [
        Unseen("keypairs.harvesterhci.io", "no answer"),
        Unseen("virtualmachineimages.harvesterhci.io", "forbidden"),
    ]
    machines = [machine(volumes=[{"imageName": "vms/sles"}], sshKeyPair="vms/admin")]
    skipped = checked(harvester(unseen=unseen), machines=machines)
    assert [(check.id, check.result, check.message) for check in skipped] == [
        ("images", Result.SKIPPED, "forbidden"),
        ("key-pairs", Result.SKIPPED, "no answer"),
    ]


def test_kinds_that_no_machine_names_have_no_check() -> None:
    assert checked(harvester(images=[named("sles")]), clusters=[cluster()]) == []
