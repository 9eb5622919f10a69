"""Whether Services of guests get addresses, as `caphv doctor` and `caphv plan` say it."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from operations.doctor.guests import checks
from operations.read.objects import HarvesterObjects
from operations.status.check import Result

pytestmark = pytest.mark.unit

EVERYWHERE = {"namespace": "*", "project": "*", "guestCluster": "*"}
LABEL = "cluster.x-k8s.io/cluster-name"


def pool(name: str, network: str) -> Obj:
    return {"metadata": {"name": name}, "spec": {"selector": {"network": network, "scope": [EVERYWHERE]}}}


def cluster(namespace: str = "clusters", name: str = "prod", target: str = "target") -> Obj:
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": {LABEL: name}},
        "spec": {"targetNamespace": target},
    }


def machine(name: str = "prod-a") -> Obj:
    metadata = {"namespace": "clusters", "name": name, "labels": {LABEL: "prod"}}
    return {"metadata": metadata, "spec": {"networks": ["vlan"]}}


@pytest.mark.parametrize(
    ("pools", "machines", "version", "result", "text"),
    [
        ([pool("vlan", "target/vlan")], [machine()], (1, 8), Result.OK, "addresses from IPPool vlan"),
        ([pool("any", "")], [machine()], (1, 8), Result.OK, "addresses from IPPool any"),
        ([pool("other", "target/other")], [machine()], (1, 8), Result.OK, "only if they ask for DHCP"),
        (
            [pool("vlan", "target/vlan")],
            [machine("x")],
            (1, 8),
            Result.WARNING,
            "names begin with prod, and there are x",
        ),
        ([pool("vlan", "target/vlan")], [machine("x")], None, Result.WARNING, "names begin with prod"),
        ([pool("vlan", "target/vlan")], [machine("x")], (1, 9), Result.OK, "addresses from IPPool vlan"),
        ([pool("any", "")], [machine("x")], (1, 8), Result.OK, "addresses from IPPool any"),
    ],
)
def test_a_guest(
    pools: list[Obj], machines: list[Obj], version: tuple[int, int] | None, result: Result, text: str
) -> None:
    (check,) = checks(HarvesterObjects(pools=pools), [cluster()], machines, version)
    assert (check.result, check.subject) == (result, "Guest clusters/prod")
    assert text in check.message


def test_guests_come_by_name_with_the_machines_of_their_own_cluster() -> None:
    other = machine("late-a")
    other["metadata"]["labels"] = {LABEL: "late"}
    # Its machines are those of a cluster of the same name in another namespace.
    stranger = machine("x")
    stranger["metadata"]["namespace"] = "elsewhere"
    pools = [pool("vlan", "target/vlan")]
    clusters = [cluster(), cluster(name="late")]
    found = list(checks(HarvesterObjects(pools=pools), clusters, [machine(), other, stranger], (1, 8)))
    assert [(check.subject, check.result) for check in found] == [
        ("Guest clusters/late", Result.OK),
        ("Guest clusters/prod", Result.OK),
    ]


@pytest.mark.parametrize(
    ("vms", "names"), [("ba", "there are a, b"), ("gfedcba", "there are a, b, c, d, e and 2 more")]
)
def test_names_that_harvester_does_not_find_are_listed(vms: str, names: str) -> None:
    (check,) = checks(HarvesterObjects(pools=[pool("vlan", "target/vlan")]), [cluster()], map(machine, vms), (1, 8))
    assert check.message.endswith(names)
    assert check.remedy


def test_a_cluster_is_known_by_its_label_or_else_by_its_name() -> None:
    bare = {"metadata": {"namespace": "clusters", "name": "prod"}, "spec": {}}
    (check,) = checks(HarvesterObjects(pools=[]), [bare], [], None)
    assert check.subject == "Guest clusters/prod"
    assert "None" not in check.message


def test_two_clusters_that_share_name_and_namespace_are_reported() -> None:
    clusters = [cluster(), cluster("elsewhere"), cluster("third", target="another")]
    other, shared, *others = checks(HarvesterObjects(), clusters, [machine()], (1, 8))
    assert (shared.result, shared.subject) == (Result.WARNING, "Guest prod")
    assert "clusters clusters/prod, elsewhere/prod share name and target namespace target" in shared.message
    assert [check.subject for check in (other, *others)] == [
        "Guest third/prod",
        "Guest clusters/prod",
        "Guest elsewhere/prod",
    ]
