"""Plans to park and to resume: what they write, what they refuse, and how far a cluster is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caphv.api import names
from caphv.api.object import Key, Obj
from caphv.runtime.kubeconfig import Kubeconfig
from operations.change.changes import ChangeError
from operations.change.parking import clusters_on, host_checklist, plan_park, plan_resume, progress_of
from operations.read.accounts import Account
from operations.read.objects import HarvesterObjects, ManagementObjects
from operations.status.assembly import parts_of
from operations.status.check import Result
from operations.status.parts import Parts
from tests.support.clusters import Builder, condition

pytestmark = pytest.mark.unit

READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def parts(builder: Builder) -> Parts:
    (found,) = parts_of(builder.objects())
    return found


def annotate(obj: Obj, **annotations: str) -> None:
    named = {f"caphv.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
    obj["metadata"].setdefault("annotations", {}).update(named)


def parked() -> Builder:
    builder = Builder()
    annotate(builder.cluster, park="true", parked_since="2026-11-27T10:00:00Z")
    builder.harvester_cluster["status"]["conditions"].append(condition("Parked", "True", message="3 VMs stopped"))
    return builder


def host(name: str, **spec: object) -> Obj:
    return {"metadata": {"name": name}, "spec": spec, "status": READY}


def test_the_annotation_is_the_only_change() -> None:
    plan = plan_park(parts(Builder()))
    (patch,) = plan.patches
    assert patch.body == {"metadata": {"annotations": {names.PARK_ANNOTATION: "true"}}}
    assert [(change.before, change.after) for change in patch.changes] == [("", "true")]
    assert [(check.id, check.result, check.message) for check in plan.checks] == [
        ("park", Result.OK, "3 machines will be stopped")
    ]

    plan = plan_resume(parts(parked()), HarvesterObjects(hosts=[host("a")]), "")
    (patch,) = plan.patches
    assert patch.body == {"metadata": {"annotations": {names.PARK_ANNOTATION: None}}}
    assert [(change.before, change.after) for change in patch.changes] == [("true", "(removed)")]
    assert [(check.id, check.result) for check in plan.checks] == [("hosts", Result.OK)]
    assert "1 host is ready" in plan.checks[0].message


def test_an_annotation_that_keeps_a_cluster_from_its_schedule_is_removed() -> None:
    builder = Builder()
    annotate(builder.cluster, park="false")
    (patch,) = plan_resume(parts(builder), HarvesterObjects(hosts=[host("a")]), "").patches
    assert patch.body == {"metadata": {"annotations": {names.PARK_ANNOTATION: None}}}


def test_a_cluster_that_is_being_deleted_in_its_window_needs_nothing_to_be_resumed() -> None:
    builder = Builder()
    annotate(builder.cluster, park_schedule="Sat-Sun", parked_by_schedule="true")
    builder.cluster["metadata"]["deletionTimestamp"] = "2026-11-27T10:00:00Z"
    assert plan_resume(parts(builder), HarvesterObjects(hosts=[host("a")]), "").patches == ()


def test_a_cluster_with_a_schedule_is_overridden_until_the_annotation_is_removed() -> None:
    builder = parked()
    annotations = builder.cluster["metadata"]["annotations"]
    annotations |= {names.PARK_SCHEDULE_ANNOTATION: "Sat-Sun", names.PARKED_BY_SCHEDULE_ANNOTATION: "true"}
    for by_hand in ("true", None):
        annotations.pop(names.PARK_ANNOTATION, None)
        if by_hand:
            annotations[names.PARK_ANNOTATION] = by_hand
        plan = plan_resume(parts(builder), HarvesterObjects(hosts=[host("a")]), "")
        (patch,) = plan.patches
        assert patch.body == {"metadata": {"annotations": {names.PARK_ANNOTATION: "false"}}}
        (check,) = [check for check in plan.checks if check.id == "schedule"]
        assert check.result is Result.WARNING
        assert "kubectl annotate cluster shop -n team caphv.io/park-" in check.remedy

    # By day, nothing keeps it from its schedule, as after maintenance of its Harvester.
    del annotations[names.PARKED_BY_SCHEDULE_ANNOTATION]
    annotations[names.PARK_ANNOTATION] = "true"
    plan = plan_resume(parts(builder), HarvesterObjects(hosts=[host("a")]), "")
    assert [patch.body for patch in plan.patches] == [{"metadata": {"annotations": {names.PARK_ANNOTATION: None}}}]
    assert not any(check.id == "schedule" for check in plan.checks)

    assert any(check.id == "schedule" for check in plan_park(parts(builder)).checks)
    assert not any(check.id == "schedule" for check in plan_park(parts(Builder())).checks)


def test_a_cluster_that_is_as_wanted_needs_nothing() -> None:
    assert plan_park(parts(parked())).patches == ()
    assert plan_resume(parts(Builder()), None, "").checks == ()


def _delete(builder: Builder) -> None:
    builder.cluster["metadata"]["deletionTimestamp"] = "2026-11-27T10:00:00Z"


def _move(builder: Builder) -> None:
    annotate(builder.cluster, moving_to="x")
    builder.cluster["spec"]["paused"] = True


def _restore(builder: Builder) -> None:
    annotate(builder.cluster, etcd_restore="{}")


def _pause(builder: Builder) -> None:
    builder.harvester_cluster["metadata"]["annotations"] = {names.PAUSED_ANNOTATION: ""}


def _manage(builder: Builder) -> None:
    builder.harvester_cluster["metadata"]["annotations"] = {"cluster.x-k8s.io/managed-by": "another"}


def _hide(builder: Builder) -> None:
    builder.cluster["spec"]["infrastructureRef"]["name"] = "elsewhere"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_delete, "being deleted"),
        (_move, "being moved"),
        (_restore, "being restored"),
        (_pause, "keeps the provider from it"),
        (_manage, "another controller manages"),
        (_hide, "no HarvesterCluster that you may read"),
    ],
)
def test_what_cannot_be_parked_is_refused(change: Callable[[Builder], None], message: str) -> None:
    builder = Builder()
    change(builder)
    plan = plan_park(parts(builder))
    (error,) = plan.checks
    assert error.result is Result.ERROR
    assert message in error.message
    assert error.remedy


def test_machines_that_are_being_deleted_are_named() -> None:
    builder = Builder()
    builder.machines["worker-1"]["metadata"]["deletionTimestamp"] = "2026-11-27T10:00:00Z"
    checks = {check.id: check for check in plan_park(parts(builder)).checks}
    assert (checks["machines"].result, "worker-1" in checks["machines"].message) == (Result.WARNING, True)


WITNESS = {"metadata": {"name": "w", "labels": {names.WITNESS_LABEL: "true"}}}
EVACUATED = {"metadata": {"name": "e", "annotations": {names.EVACUATE_ANNOTATION: "true"}}, "status": READY}
MAINTENANCE = {"metadata": {"name": "m", "annotations": {names.MAINTENANCE_ANNOTATION: "completed"}}, "status": READY}


@pytest.mark.parametrize(
    ("hosts", "away"),
    [
        ([host("a")], ""),
        ([host("a"), {"metadata": {"name": "b"}}], "b (not ready)"),
        ([host("c", unschedulable=True)], "c (cordoned)"),
        ([MAINTENANCE], "m (in maintenance)"),
        ([EVACUATED], "e (being evacuated)"),
        ([host("a"), {**WITNESS, "status": READY}], ""),
        ([host("a"), WITNESS], "w (not ready)"),
        ([host(name, unschedulable=True) for name in "gfedcba"], "a (cordoned), b (cordoned), c (cordoned), "),
        ([host(name, unschedulable=True) for name in "gfedcba"], "e (cordoned) and 2 more"),
    ],
)
def test_a_cluster_resumes_when_the_hosts_are_back(hosts: list[Obj], away: str) -> None:
    plan = plan_resume(parts(parked()), HarvesterObjects(hosts=hosts), "")
    assert [away in error.message for error in plan.errors] == ([True] if away else [])


def test_a_harvester_that_does_not_answer_is_no_harvester_that_is_back() -> None:
    for why, text in (("no answer within 10 s", "no answer within 10 s"), ("", "identity cannot be used")):
        plan = plan_resume(parts(parked()), None, why)
        (error,) = plan.errors
        assert text in error.message
        assert "caphv doctor team/shop" in error.remedy
        assert plan.checks == (error,)


@pytest.mark.parametrize(
    ("annotations", "reported", "park", "expected"),
    [
        ({}, None, True, (False, False, "waiting for the provider")),
        ({"park": "true"}, condition("Parked", "False", "Parking", "draining"), True, (False, False, "draining")),
        ({"park": "true"}, condition("Parked", "True", message="stopped"), True, (True, False, "stopped")),
        ({"parked_since": "x"}, condition("Parked", "True", message="stopped"), True, (False, False, "stopped")),
        ({"parked_since": "x"}, condition("Parked", "False", "ParkBlocked", "VM"), False, (False, True, "VM")),
        ({"park": "true"}, condition("Parked", "False", "ParkBlocked", "right"), True, (False, True, "right")),
        # The provider has not seen yet that it is to be resumed.
        (
            {"parked_since": "x"},
            condition("Parked", "True", message="s"),
            False,
            (False, False, "waiting for the provider"),
        ),
        ({"parked_since": "x"}, condition("Parked", "False", "Resuming", "Nodes"), False, (False, False, "Nodes")),
        ({}, None, False, (True, False, "resumed")),
        # A schedule that cannot be read does not keep it from being resumed.
        ({}, condition("Parked", "False", "ParkBlocked", "schedule"), False, (True, False, "resumed")),
    ],
)
def test_progress(
    annotations: dict[str, str], reported: Obj | None, park: bool, expected: tuple[bool, bool, str]
) -> None:
    builder = Builder()
    annotate(builder.cluster, **annotations)
    if reported:
        builder.harvester_cluster["status"]["conditions"].append(reported)
    found = progress_of(parts(builder), park=park)
    assert (found.done, found.blocked) == expected[:2]
    assert found.text.startswith(expected[2])


def account(name: str, server: str) -> Account:
    return Account(Key("team", name), Kubeconfig(server=server))


@pytest.mark.parametrize(
    "name",
    ["https://10.0.0.1:6443", "https://10.0.0.1:6443/", "10.0.0.1", "10.0.0.1:6443", "team/identity", "team/second"],
)
def test_a_harvester_has_several_names(name: str) -> None:
    accounts = [
        account("identity", "https://10.0.0.1:6443"),
        account("second", "https://10.0.0.1:6443"),
        account("other", "https://10.0.0.2:6443"),
    ]
    assert clusters_on(Builder().objects(), accounts, name) == [Key("team", "shop")]
    assert clusters_on(Builder().objects(), accounts, "10.0.0.2") == []
    with pytest.raises(ChangeError, match=r"10\.0\.0\.9; identities exist for https://10\.0\.0\.1:6443"):
        clusters_on(Builder().objects(), accounts, "10.0.0.9")


@pytest.mark.parametrize(
    ("server", "names"),
    [
        (
            "https://Site.example/k8s/clusters/local",
            ["site.example", "Site.example", "https://Site.example/k8s/clusters/local"],
        ),
        ("https://[fd00::1]", ["fd00::1", "[fd00::1]"]),
        ("https://[fd00::1]:6443", ["fd00::1", "[fd00::1]", "[fd00::1]:6443"]),
    ],
)
def test_a_harvester_is_named_by_its_host_with_or_without_a_port(server: str, names: list[str]) -> None:
    for name in names:
        assert clusters_on(Builder().objects(), [account("identity", server)], name) == [Key("team", "shop")]


def test_clusters_on_a_harvester_come_by_name_and_only_with_its_identities() -> None:
    objects = ManagementObjects(server="", uid="")
    for name, identity in (("shop", "identity"), ("blog", "second"), ("wiki", "elsewhere")):
        builder = Builder(name)
        builder.harvester_cluster["spec"]["identitySecret"]["name"] = identity
        objects.clusters.append(builder.cluster)
        objects.harvester_clusters.append(builder.harvester_cluster)
    objects.clusters.append({"kind": "Cluster", "metadata": {"name": "bare", "namespace": "team"}})
    accounts = [account("identity", "https://a:6443"), account("second", "https://a:6443")]
    accounts.append(account("elsewhere", "https://b:6443"))
    assert clusters_on(objects, accounts, "a") == [Key("team", "blog"), Key("team", "shop")]
    with pytest.raises(ChangeError, match="identities exist for https://a:6443, https://b:6443"):
        clusters_on(objects, accounts, "c")
    with pytest.raises(ChangeError, match=r"Harvester c$"):
        clusters_on(objects, [], "c")


def test_harvesters_of_one_address_differ_by_their_certificates() -> None:
    """As behind a tunnel to one site after the other."""
    objects = ManagementObjects(server="", uid="")
    accounts = []
    for name in ("shop", "blog"):
        builder = Builder(name)
        builder.harvester_cluster["spec"]["identitySecret"]["name"] = name
        objects.clusters.append(builder.cluster)
        objects.harvester_clusters.append(builder.harvester_cluster)
        accounts.append(Account(Key("team", name), Kubeconfig(server="https://a:6443", ca=name)))
    assert clusters_on(objects, accounts, "team/shop") == [Key("team", "shop")]


def test_the_checklist_ends_with_the_command_that_resumes() -> None:
    lines = host_checklist("h", [Key("team", "shop")], "caphv resume --all-on h")
    assert lines[0].startswith("1 cluster on h parked")
    assert lines[-1].endswith("caphv resume --all-on h")
