"""Findings of `caphv doctor` about a Harvester and its identity, at their edges."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from caphv.api import resources
from caphv.api.identities import cluster_identity
from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner, record
from caphv.api.tokenrenewal import issued_at
from caphv.runtime.kubeconfig import Kubeconfig
from operations.capacity.addresspools import Entry, PoolReport, Verdict
from operations.doctor import harvester
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.doctor.rights import Right
from operations.doctor.storage import Storage
from operations.read.objects import HarvesterObjects, Unseen
from operations.read.owners import OwnerObjects
from operations.status.check import Check, Result
from tests.support.clusters import NOW, ago, condition, token
from tests.support.doctor import found, host, one

IDENTITY = Key("team", "identity")
OWNERS = OwnerObjects("us", {}, None)
LEAK = Entry(pool="machines", address="10.0.0.9", id="team/gone", verdict=Verdict.LEAKED)


def checked(objects: HarvesterObjects | None = None, **fields: Any) -> list[Check]:
    fields.setdefault("kubeconfig", Kubeconfig("https://h", token=token(days=90)))
    facts = HarvesterFacts(IDENTITY, objects=objects or HarvesterObjects(), **fields)
    return list(harvester.checks(facts, NOW))


def unanswered(days: float, **fields: Any) -> Check:
    facts = HarvesterFacts(IDENTITY, Kubeconfig("https://h", token=token(days=days)), "refused", **fields)
    return one(harvester.checks(facts, NOW), "connection")


def test_expired_credentials_that_are_rejected_are_reported_once() -> None:
    assert unanswered(-1, rejected=True).result is Result.SKIPPED
    assert unanswered(-1).result is Result.ERROR
    assert unanswered(90, rejected=True).result is Result.ERROR


def test_credentials_that_may_not_be_read_are_not_called_wrong() -> None:
    hidden = HarvesterFacts(IDENTITY, hidden="secrets is forbidden")
    (check,) = harvester.checks(hidden, NOW)
    assert (check.id, check.result, check.message) == ("identity", Result.SKIPPED, "secrets is forbidden")
    (wrong,) = harvester.checks(HarvesterFacts(IDENTITY, error="no key kubeconfig"), NOW)
    assert (wrong.id, wrong.result) == ("identity", Result.ERROR)


def test_missing_rights_are_granted_where_they_are_missing() -> None:
    def cluster(target: str) -> Obj:
        return {"metadata": {"name": target, "namespace": "team"}, "spec": {"targetNamespace": target}}

    def remedy(*denied: Right) -> str:
        clusters = [cluster("alpha"), cluster("beta"), cluster("gamma")]
        return one(checked(clusters=clusters, denied=list(denied)), "rights").remedy

    vms = Right("beta", "kubevirt.io", "virtualmachines", "create")
    assert "create --harvester-kubeconfig FILE --target-namespace beta, with --name" in remedy(vms)
    both = " --target-namespace beta --target-namespace gamma,"
    assert both in remedy(vms, replace(vms, namespace="gamma"))
    pools = Right("", "loadbalancer.harvesterhci.io", "ippools", "create")
    assert " --target-namespace gamma --create-ip-pools," in remedy(pools)


def test_a_rejected_token_is_replaced_and_an_unreachable_server_is_searched() -> None:
    assert "caphv identity rotate" in unanswered(90, rejected=True).remedy
    assert "Check address, firewall and proxy" in unanswered(90).remedy


def test_shared_credentials_are_named_with_their_secret() -> None:
    shared, secret = cluster_identity("shared"), Key("caphv-system", "shared-harvester")
    clusters = [{"metadata": {"name": "shop", "namespace": "team"}}]
    expired = Kubeconfig("https://h", token=token(days=-1))
    facts = HarvesterFacts(shared, expired, "refused", rejected=True, secret=secret, clusters=clusters)
    found = {check.id: check for check in harvester.checks(facts, NOW)}
    assert found["connection"].message.endswith("Secret of HarvesterClusterIdentity shared")
    facts.kubeconfig = Kubeconfig("https://h", token=token(days=90))
    check = one(harvester.checks(facts, NOW), "connection")
    assert "HarvesterClusters of Secret of HarvesterClusterIdentity shared: team/shop" in check.message
    assert "caphv identity rotate caphv-system/shared-harvester" in check.remedy

    facts = HarvesterFacts(shared, error="forbidden")
    check = one(harvester.checks(facts, NOW), "identity")
    assert (check.result, check.message) == (Result.ERROR, "forbidden")
    assert "that you may get harvesterclusteridentities" in check.remedy

    facts = HarvesterFacts(shared, objects=HarvesterObjects(), kubeconfig=expired, clusters=clusters)
    facts.recorded_owners = OWNERS
    facts.pools = (report(100, 50, entries=(LEAK,)),)
    check = one(harvester.checks(facts, NOW), "pools")
    assert check.remedy.endswith("-n team")


@pytest.mark.parametrize(
    ("minutes", "problem", "result", "words"),
    [
        (10, "", Result.OK, "ends at 2026-11-22 12:59 UTC, and the provider renews it by"),
        (55, "", Result.WARNING, "has not been renewed"),
        (10, "the token is in use until then", Result.WARNING, "is in use until then"),
    ],
)
def test_a_token_that_the_provider_renews_is_not_reported_as_expiring(
    minutes: int, problem: str, result: Result, words: str
) -> None:
    facts = HarvesterFacts(cluster_identity("shared"), Kubeconfig("https://h", token=token(days=0)), "refused")
    facts.renewed, facts.renewal_problem = issued_at(NOW, 3600, "source", "scope"), problem
    checks = harvester.checks(facts, NOW + timedelta(minutes=minutes))
    check = one(checks, "token-renewal")
    assert (check.result, words in check.message) == (result, True)
    assert not [check for check in checks if check.id == "credentials"]


def test_each_namespace_that_gets_no_credentials_is_an_error() -> None:
    refused = {"team-a": "does not allow namespace team-a", "team-b": "does not allow namespace team-b"}
    for kubeconfig in (None, Kubeconfig("https://h", token=token(days=90))):
        facts = HarvesterFacts(cluster_identity("shared"), kubeconfig, refused=refused, unknown={"team-c": "forbidden"})
        checks = found(harvester.checks(facts, NOW), "identity")
        assert [check.result for check in checks] == [Result.ERROR, Result.ERROR, Result.SKIPPED]
        for check, (namespace, why) in zip(checks, refused.items(), strict=False):
            assert check.message == f"HarvesterClusters of namespace {namespace} get no credentials: {why}"
            assert check.subject == "Secret of HarvesterClusterIdentity shared"


def test_each_namespace_that_the_owner_of_a_secret_does_not_allow_is_an_error() -> None:
    facts = HarvesterFacts(IDENTITY, not_allowed={"team-a": "Secret team/identity: is in another namespace"})
    check = one(harvester.checks(facts, NOW), "identity")
    expected = "HarvesterClusters of namespace team-a get no credentials: Secret team/identity: is in another namespace"
    assert (check.result, check.message) == (Result.ERROR, expected)


def test_clusters_of_a_harvester_that_does_not_answer_are_named() -> None:
    assert unanswered(90).message == "refused"
    clusters = [{"metadata": {"name": "shop", "namespace": "team"}}]
    expected = "refused; HarvesterClusters of Secret team/identity: team/shop"
    assert unanswered(90, clusters=clusters).message == expected


@pytest.mark.parametrize(
    ("left", "result"),
    [
        (timedelta(days=14), Result.OK),
        (timedelta(days=14, seconds=-1), Result.WARNING),
        (timedelta(seconds=1), Result.WARNING),
        (timedelta(), Result.ERROR),
    ],
)
def test_credentials_end_soon_within_fourteen_days(left: timedelta, result: Result) -> None:
    kubeconfig = Kubeconfig("https://h", token=token(seconds=left.total_seconds()))
    assert one(checked(kubeconfig=kubeconfig), "credentials").result is result


def test_credentials_without_an_end_are_valid() -> None:
    check = one(checked(kubeconfig=Kubeconfig("https://h", token="t")), "credentials")
    assert (check.result, "no expiry date" in check.message) == (Result.OK, True)


def test_what_may_not_be_read_is_skipped() -> None:
    checks = checked()
    assert one(checks, "rights").result is Result.SKIPPED
    assert one(checks, "harvester").result is Result.SKIPPED
    owners = OwnerObjects("", {}, None)
    check = one(checked(recorded_owners=owners), "orphans")
    assert (check.result, "kube-system" in check.message) == (Result.SKIPPED, True)


def test_nothing_is_reported_of_hosts_that_are_not_seen() -> None:
    checks = checked()
    assert found(checks, "hosts") == found(checks, "zones") == found(checks, "guest-agent") == []
    assert found(checked(HarvesterObjects(hosts=[host("a"), host("b")])), "zones") == []


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("rancher/harvester:v1.7.0", [(Result.OK, "Harvester v1.7")]),
        ("rancher/harvester:v1.2.0", [(Result.WARNING, "Harvester v1.2 is older than")]),
        ("rancher/harvester:latest", []),
    ],
)
def test_a_release_is_compared_with_those_that_are_supported(image: str, expected: list[tuple[Result, str]]) -> None:
    deployment = {"spec": {"template": {"spec": {"containers": [{"image": image}]}}}}
    checks = found(checked(deployment=deployment), "harvester-version")
    assert [
        (check.result, check.message.startswith(text)) for check, (_, text) in zip(checks, expected, strict=True)
    ] == [(result, True) for result, _ in expected]


@pytest.mark.parametrize(
    ("replicas", "ready", "wrong"),
    [("3", 2, True), ("2", 2, False), ("3", 0, False), ("many", 2, False), (None, 2, False)],
)
def test_a_class_may_have_as_many_replicas_as_hosts_are_ready(replicas: str | None, ready: int, wrong: bool) -> None:
    metadata, parameters = {"name": "longhorn"}, {"numberOfReplicas": replicas}
    used = {"metadata": metadata, "provisioner": "driver.longhorn.io", "parameters": parameters}
    unused = {**used, "metadata": {"name": "unused"}, "parameters": {"numberOfReplicas": "9"}}
    hosts = [host(f"h{n}", ready=n < ready) for n in range(3)]
    witness = host("witness")
    witness["metadata"]["labels"] = {"node-role.harvesterhci.io/witness": "true"}
    claim = {"metadata": {"name": "disk", "namespace": "vms"}, "spec": {"storageClassName": "longhorn"}}
    objects = HarvesterObjects(hosts=[*hosts, witness], claims=[claim])
    checks = found(checked(objects, storage=Storage([used, unused])), "longhorn-replicas")
    assert [check.message.split()[1] for check in checks] == ["longhorn"] * wrong


def pool_checks(report: PoolReport, *, used: bool = True) -> list[Check]:
    spec = {"vmNetworkConfig": {"ipPoolRef": "machines" if used else "other"}}
    machine = {"metadata": {"name": "m", "namespace": "team"}, "spec": spec}
    ranges = [{"subnet": "10.0.0.0/24"}]
    pools = [{"metadata": {"name": name}, "spec": {"ranges": ranges}} for name in ("machines", "other")]
    objects = HarvesterObjects(pools=pools)
    return found(checked(objects, machines=[machine], pools=(report,), recorded_owners=OWNERS), "pools")


def report(total: int, free: int, available: int | None = None, **fields: Any) -> PoolReport:
    return PoolReport(
        harvester="h",
        name="machines",
        total=total,
        available=free if available is None else available,
        expected=free,
        **fields,
    )


@pytest.mark.parametrize(
    ("free", "result"),
    [(-1, Result.ERROR), (0, Result.ERROR), (1, Result.WARNING), (9, Result.WARNING), (10, Result.OK)],
)
def test_a_pool_is_scarce_below_a_tenth(free: int, result: Result) -> None:
    (check,) = pool_checks(report(100, free))
    assert (check.result, f"{free} of 100 addresses are free" in check.message) == (result, True)


def test_a_pool_that_no_cluster_uses_is_reported_only_when_it_is_wrong() -> None:
    assert pool_checks(report(100, 0), used=False) == []
    (check,) = pool_checks(report(100, 50, available=40), used=False)
    assert check.result is Result.WARNING
    assert check.message.endswith("status.available is 40")
    (check,) = pool_checks(report(100, 50, entries=(LEAK,)), used=False)
    assert check.message.endswith("1 has leaked")


@pytest.mark.parametrize(
    ("identity", "namespaces", "expected"),
    [
        (IDENTITY, (), "team"),
        (IDENTITY, ("other",), "team"),
        (cluster_identity("shared"), (), "NAMESPACE"),
        (cluster_identity("shared"), ("other", "team"), "other"),
    ],
)
def test_addresses_are_released_from_a_namespace_that_finds_the_harvester(
    identity: Key, namespaces: tuple[str, ...], expected: str
) -> None:
    clusters = [{"metadata": {"name": "shop", "namespace": namespace}} for namespace in namespaces]
    kubeconfig = Kubeconfig("https://h", token=token(days=90))
    facts = HarvesterFacts(identity, kubeconfig, objects=HarvesterObjects(), clusters=clusters)
    facts.recorded_owners = OWNERS
    facts.pools = (report(100, 50, entries=(LEAK,)),)
    assert one(harvester.checks(facts, NOW), "pools").remedy.endswith(f" -n {expected}")


def test_a_pool_from_which_only_an_interface_has_an_address_is_in_use() -> None:
    source = {"apiGroup": resources.IP_POOLS.group, "kind": "IPPool", "name": "machines"}
    interfaces = [{"network": "vms/storage", "addressesFromPools": [source]}]
    spec = {"networks": ["vms/storage"], "networkInterfaces": interfaces}
    machine = {"metadata": {"name": "m", "namespace": "team"}, "spec": spec}
    objects = HarvesterObjects(pools=[{"metadata": {"name": "machines"}, "spec": {"ranges": []}}])
    reports = (report(100, 0),)
    (check,) = found(checked(objects, machines=[machine], pools=reports, recorded_owners=OWNERS), "pools")
    assert check.result is Result.ERROR


def test_addresses_whose_owners_may_not_be_read_are_not_checked() -> None:
    (check,) = found(checked(recorded_owners=None), "pools")
    assert check.result is Result.SKIPPED


def test_a_pool_with_wrong_ranges_is_an_error() -> None:
    (check,) = pool_checks(report(0, 0, error="IPPool machines: no range"))
    assert (check.result, check.message) == (Result.ERROR, "IPPool machines: no range")


def instance(phase: str = "Running", created: str | None = ago(minutes=11), **agent: str) -> Obj:
    metadata: Obj = {"name": "x", "namespace": "vms"}
    if created:
        metadata["creationTimestamp"] = created
    conditions = [condition("AgentConnected", status) for status in agent.values()]
    return {"metadata": metadata, "status": {"phase": phase, "conditions": conditions}}


@pytest.mark.parametrize(
    ("vm", "result"),
    [
        (instance(), Result.WARNING),
        (instance(agent="False"), Result.WARNING),
        (instance(agent="True"), Result.OK),
        (instance(created=ago(minutes=10)), Result.OK),
        (instance(created=None), Result.OK),
        (instance("Scheduling"), Result.OK),
    ],
)
def test_a_guest_agent_must_answer_ten_minutes_after_its_vm_was_created(vm: Obj, result: Result) -> None:
    machines = [{"metadata": {"name": "x", "namespace": "team"}, "spec": {}}]
    assert one(checked(HarvesterObjects(instances=[vm]), machines=machines), "guest-agent").result is result
    # VMs of others need no agent.
    assert found(checked(HarvesterObjects(instances=[vm])), "guest-agent") == []


def test_a_volume_is_an_orphan_only_where_the_vms_that_may_use_it_are_seen() -> None:
    owners = OwnerObjects("us", {}, None)
    annotations = record(Owner("HarvesterMachine", "team", "gone", "m-uid", "us"))
    claim = {"metadata": {"name": "gone-disk-0-abcde", "namespace": "vms", "annotations": annotations}}
    seen = HarvesterObjects(claims=[claim], namespaces=frozenset({"vms"}))
    assert "vms/gone-disk-0-abcde" in one(checked(seen, recorded_owners=owners), "orphans").message

    unseen = replace(seen, unseen=[Unseen("virtualmachines.kubevirt.io of namespace vms", "forbidden")])
    assert one(checked(unseen, recorded_owners=owners), "orphans").result is Result.OK


def test_a_leaked_address_is_no_orphan_because_its_pool_reports_it() -> None:
    checks = checked(recorded_owners=OwnerObjects("us", {}, None), pools=(report(100, 50, entries=(LEAK,)),))
    assert (one(checks, "orphans").result, one(checks, "pools").wrong) == (Result.OK, True)
