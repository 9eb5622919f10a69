"""Which places a Harvester offers, and which of them to control planes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from caphv.api import names
from caphv.api.object import Obj
from reconciler.cluster.failuredomains import ensure_failure_domains, unavailable
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.topology import domain_of_host, has_single_host, unpublished_domains
from reconciler.machine.placement import domain_requirement
from reconciler.statusdraft import StatusDraft
from tests.support.reconciler.failuredomains import failure_domains
from tests.support.reconciler.memorycase import MemoryCase

pytestmark = pytest.mark.unit


def host(name: str, zone: str = "") -> Obj:
    labels = {"kubernetes.io/hostname": name} | ({"topology.kubernetes.io/zone": zone} if zone else {})
    return {"metadata": {"name": name, "labels": labels}}


def offered(hosts: list[Obj], *control_plane: str) -> dict[str, bool]:
    return {domain["name"]: domain["controlPlane"] for domain in failure_domains(hosts, control_plane)}


def test_every_zone_is_for_control_planes_unless_some_are_named() -> None:
    hosts = [host("a", "zone-2"), host("b", "zone-1"), host("c", "zone-2")]
    assert offered(hosts) == {"zone-1": True, "zone-2": True}
    assert offered(hosts, "zone-2", "elsewhere") == {"zone-1": False, "zone-2": True}


def test_hosts_are_named_where_one_has_no_zone() -> None:
    hosts = [host("b", "zone-1"), host("a")]
    assert offered(hosts, "a") == {"a": True, "b": False}
    assert list(offered(hosts)) == ["a", "b"]


def test_nothing_is_offered_without_hosts() -> None:
    assert failure_domains([], ["zone-1"]) == []


def test_host_without_a_zone_changes_nothing_for_the_others() -> None:
    hosts = [host("a", "zone-1"), host("b", "zone-2")]
    before = failure_domains(hosts)
    assert failure_domains([*hosts, host("new")], published=before) == before


def test_witness_is_no_failure_domain() -> None:
    witness = host("w")
    witness["metadata"]["labels"]["node-role.harvesterhci.io/witness"] = "true"
    assert offered([host("a"), host("b"), witness]) == {"a": True, "b": True}
    assert offered([host("a", "zone-1"), witness]) == {"zone-1": True}


def test_cordoned_hosts_and_hosts_in_maintenance_take_no_new_machines() -> None:
    cordoned = {**host("a", "zone-1"), "spec": {"unschedulable": True}}
    maintained = host("b", "zone-2")
    maintained["metadata"]["annotations"] = {"harvesterhci.io/maintain-status": "running"}
    assert offered([cordoned, maintained, host("c", "zone-2")]) == {"zone-1": False, "zone-2": True}


def test_domain_of_a_machine_stays_when_its_host_is_removed() -> None:
    before = failure_domains([host("a"), host("b")])
    found = failure_domains([host("a")], published=before, used=["b"])
    assert {domain["name"]: domain["controlPlane"] for domain in found} == {"a": True, "b": False}
    assert [domain["name"] for domain in failure_domains([host("a")], published=before)] == ["a"]


def test_domain_in_use_says_why_it_takes_no_machines() -> None:
    cordoned = {**host("a", "zone-1"), "spec": {"unschedulable": True}}
    maintained, witness = host("b", "zone-1"), host("w", "zone-2")
    maintained["metadata"]["annotations"] = {"harvesterhci.io/maintain-status": "running"}
    before = failure_domains([cordoned, maintained, witness, host("c", "zone-3"), host("d", "zone-4")])
    witness["metadata"]["labels"]["node-role.harvesterhci.io/witness"] = "true"
    hosts, used = [cordoned, maintained, witness, host("d", "zone-4")], ["zone-1", "zone-2", "zone-3", "zone-4"]
    found = failure_domains(hosts, published=before, used=used)
    assert unavailable(found, used, hosts) == {
        "zone-1": "host a is cordoned, host b is in maintenance",
        "zone-2": "host w is a witness",
        "zone-3": "no host has label topology.kubernetes.io/zone=zone-3",
    }
    assert unavailable(found, ["zone-4"], hosts) == {}


def test_domain_that_the_user_excludes_is_available() -> None:
    hosts = [host("a", "zone-1"), host("b", "zone-2")]
    assert unavailable(failure_domains(hosts, ["zone-1"]), ["zone-2"], hosts) == {}


@pytest.mark.parametrize(("name", "single"), [("zone-1", False), ("zone-2", True), ("c", True), ("nowhere", False)])
def test_vm_may_leave_a_domain_with_a_single_host(name: str, single: bool) -> None:
    hosts = [host("a", "zone-1"), host("b", "zone-1"), host("c", "zone-2")]
    assert has_single_host(name, failure_domains(hosts), hosts) is single


@pytest.mark.parametrize(
    ("wanted", "status", "message"),
    [
        ({}, "True", "failure domains are not published: Cluster API core serves only v1beta1"),
        (
            {"controlPlaneFailureDomains": ["zone-1"]},
            "False",
            "spec.controlPlaneFailureDomains has no effect: Cluster API core serves only v1beta1",
        ),
    ],
)
def test_core_of_v1beta1_gets_no_list_which_it_could_not_read(wanted: Obj, status: str, message: str) -> None:
    before = {"failureDomains": failure_domains([host("a", "zone-1")])}
    scope = SimpleNamespace(
        obj={"spec": wanted},
        cluster={},
        draft=StatusDraft({"metadata": {}, "status": before}),
        context=SimpleNamespace(
            caches=SimpleNamespace(publishes_failure_domains=False, machines_of=lambda _cluster: [])
        ),
        require_session=lambda: SimpleNamespace(hosts=SimpleNamespace(store=[host("a", "zone-1")])),
    )
    ensure_failure_domains(cast(ClusterScope, scope))
    patch = scope.draft.patch() or {}
    assert patch["failureDomains"] is None
    (condition,) = patch["conditions"]
    assert (condition["type"], condition["status"]) == ("FailureDomainsAvailable", status)
    assert condition["message"].startswith(message)


async def test_core_of_v1beta2_gets_the_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch, controlPlaneFailureDomains=["zone-2"])
    for name, zone in (("a", "zone-1"), ("b", "zone-2")):
        case.harvester.put({"apiVersion": "v1", "kind": "Node", **host(name, zone)})
    await case.reconcile()
    domains = case.obj["status"]["failureDomains"]
    assert {domain["name"]: domain["controlPlane"] for domain in domains} == {"zone-1": False, "zone-2": True}
    assert case.condition("FailureDomainsAvailable")[0] == "True"


async def test_cluster_waits_for_a_domain_that_its_spec_names(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch, controlPlaneFailureDomains=["zone-3"])
    case.harvester.put({"apiVersion": "v1", "kind": "Node", **host("a", "zone-1")})
    await case.reconcile()
    assert case.condition("InfrastructureReady") == ("False", "InfrastructureProvisioningFailed")
    assert ("Warning", "InfrastructureProvisioningFailed") in case.events
    message = "spec.controlPlaneFailureDomains is zone-3: choose from those of Harvester: zone-1"
    assert message in {condition.get("message") for condition in case.obj["status"]["conditions"]}
    case.harvester.put({"apiVersion": "v1", "kind": "Node", **host("b", "zone-3")})
    await case.reconcile()
    assert case.condition("InfrastructureReady")[1] != "InfrastructureProvisioningFailed"


async def test_cluster_says_that_there_are_no_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch, controlPlaneFailureDomains=["zone-3"])
    await case.reconcile()
    message = "spec.controlPlaneFailureDomains is zone-3: choose from those of Harvester: none"
    assert message in {condition.get("message") for condition in case.obj["status"]["conditions"]}


async def test_domains_in_use_that_are_lost_or_cordoned_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = MemoryCase(monkeypatch)
    nodes = [{"apiVersion": "v1", "kind": "Node", **host(name, f"zone-{name}")} for name in ("a", "b")]
    for node in nodes:
        case.harvester.put(node)
    case.add_machine("cp-0")
    case.machines[-1]["spec"]["failureDomain"] = "zone-a"
    await case.reconcile()
    assert case.condition("FailureDomainsAvailable")[0] == "True"
    case.harvester.put({**nodes[0], "spec": {"unschedulable": True}})
    for _ in range(2):
        await case.reconcile()
    assert case.condition("FailureDomainsAvailable") == ("False", "FailureDomainUnavailable")
    assert case.events.count(("Warning", "FailureDomainUnavailable")) == 1

    case.harvester.put({**nodes[1], "spec": {"unschedulable": True}})
    for _ in range(2):
        await case.reconcile()
    assert case.events.count(("Warning", "FailureDomainUnavailable")) == 2, (
        "a domain that was offered, without machines"
    )


def test_unpublished_domain_is_a_zone_or_a_host() -> None:
    hosts = [host("a", "zone-1"), host("b", "zone-1"), host("c")]
    domains = unpublished_domains(hosts)
    assert [domain_requirement(name, domains) for name in ("zone-1", "b")] == [
        {"key": names.ZONE_LABEL, "operator": "In", "values": ["zone-1"]},
        {"key": names.HOSTNAME_LABEL, "operator": "In", "values": ["b"]},
    ]
    assert [domain_of_host(domains, each) for each in hosts] == ["zone-1", "zone-1", "c"]
    assert [has_single_host(name, domains, hosts) for name in ("zone-1", "c")] == [False, True]
