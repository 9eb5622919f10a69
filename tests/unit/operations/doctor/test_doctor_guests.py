"""Whether Services of guests get addresses, as `caphv doctor` and `caphv plan` say it."""

from __future__ import annotations

from typing import Any

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


def sized(name: str, network: str, first: str, last: str, priority: Any = 0) -> Obj:
    found = pool(name, network)
    found["spec"]["selector"]["priority"] = priority
    found["spec"]["ranges"] = [{"subnet": "10.0.0.0/24", "rangeStart": first, "rangeEnd": last}]
    return found


def network(name: str, pool_of_dhcp: str = "") -> Obj:
    namespace, _, bare = pool_of_dhcp.partition("/")
    labels = {"network.harvesterhci.io/ippool-namespace": namespace, "network.harvesterhci.io/ippool-name": bare}
    return {"metadata": {"namespace": "target", "name": name, "labels": labels if pool_of_dhcp else {}}}


def message(machines: list[Obj], **objects: list[Obj]) -> str:
    (check,) = checks(HarvesterObjects(**objects), [cluster()], machines, (1, 9))
    assert check.result is Result.OK
    return check.message


def on(*networks: str, name: str = "prod-a") -> Obj:
    return {**machine(name), "spec": {"networks": list(networks)}}


def test_each_network_that_all_machines_have_is_named_with_its_pool() -> None:
    pools = [pool("vlan", "target/vlan"), sized("low", "target/b", "10.0.0.10", "10.0.0.19", 1)]
    pools.append(sized("high", "target/b", "10.0.0.20", "10.0.0.29", 2))
    machines = [on("vlan", "b", "c", "e"), on("vlan", "target/b", "c", "d", name="prod-b")]
    text = message(machines, pools=pools)
    assert text == (
        "Services get addresses from IPPool vlan, or by DHCP if they ask for it; "
        "with annotation cloudprovider.harvesterhci.io/network: target/b from IPPool high; "
        "with annotation cloudprovider.harvesterhci.io/network: target/c from no IPPool; "
        "none on network target/e, which not all machines have at the same place; "
        "none on network target/d, which not all machines have at the same place"
    )
    (check,) = checks(HarvesterObjects(pools=pools), [cluster()], machines, (1, 8))
    assert check.message.endswith("annotation cloudprovider.harvesterhci.io/network has no effect before Harvester 1.9")


def test_chosen_network_of_a_guest_that_hides_its_networks_is_not_announced_there() -> None:
    text = message([on("vlan", "b")], pools=[pool("any", ""), pool("b", "target/b")])
    assert "network: target/b from IPPool b, but announced on another network, because only IPPools without" in text


def test_networks_of_vms_with_different_numbers_of_interfaces_are_compared() -> None:
    text = message([on("vlan", "b"), on("vlan", name="prod-b")], pools=[pool("any", "")])
    assert "from IPPool any" in text


def test_pool_with_one_address_gives_always_this_one() -> None:
    text = message([machine()], pools=[sized("one", "target/vlan", "10.0.0.10", "10.0.0.10")])
    assert "from IPPool one (always 10.0.0.10, which others share by annotation " in text
    assert "cloudprovider.harvesterhci.io/primary-service)" in text
    assert "always" not in message([machine()], pools=[sized("two", "target/vlan", "10.0.0.10", "10.0.0.11")])


@pytest.mark.parametrize("priority", ["high", None, 1e400, [1], {}])
def test_priority_of_another_type_counts_as_none(priority: Any) -> None:
    bounds = ("target/vlan", "10.0.0.1", "10.0.0.9")
    pools = [sized("odd", *bounds, priority), sized("even", *bounds, 1)]
    assert "from IPPool even" in message([machine()], pools=pools)


def test_managed_dhcp_gives_services_no_addresses() -> None:
    networks = [network("vlan", "kube-system/dhcp"), network("b"), network("unused", "kube-system/other")]
    text = message([on("vlan", "b")], pools=[pool("vlan", "target/vlan")], networks=networks)
    assert text.startswith("Services get addresses from IPPool vlan; with annotation")
    assert text.endswith(
        "none by DHCP on network target/vlan, because its managed DHCP (IPPool kube-system/dhcp) answers VMs only"
    )
    assert "unused" not in text

    (check,) = checks(HarvesterObjects(networks=networks), [cluster()], [machine()], (1, 9))
    assert (check.result, check.message) == (
        Result.WARNING,
        "Services get no addresses: no IPPool serves the guest, and the DHCP of network target/vlan is managed by "
        "Harvester, which answers VMs only",
    )
    assert check.remedy == "Create an IPPool with spec.selector.network target/vlan and a scope for namespace target"


def test_machines_on_one_network_each_have_that_of_the_first() -> None:
    text = message([on("vlan"), on("b", name="prod-b")], pools=[pool("vlan", "target/vlan")])
    assert text.startswith("Services get addresses from IPPool vlan")
    assert text.endswith("none on network target/b, which not all machines have at the same place")


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
