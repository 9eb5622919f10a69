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
