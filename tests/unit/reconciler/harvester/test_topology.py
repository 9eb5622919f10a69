"""Failure domains: zones or hosts, which of them take machines, and why not."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api import names
from caphv.api.hosts import accepts_machines
from caphv.api.object import Obj
from reconciler.harvester.topology import (
    MAX_DOMAINS,
    domain_of_host,
    has_single_host,
    unpublished_domains,
    why_unavailable,
)
from tests.support.reconciler.failuredomains import failure_domains

pytestmark = pytest.mark.unit


def host(name: str, zone: str = "", *, cordoned: bool = False, maintenance: bool = False, witness: bool = False) -> Obj:
    labels = {names.HOSTNAME_LABEL: f"{name}.local"}
    labels |= {names.ZONE_LABEL: zone} if zone else {}
    labels |= {names.WITNESS_LABEL: "true"} if witness else {}
    annotations = {names.MAINTENANCE_ANNOTATION: "completed"} if maintenance else {}
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"unschedulable": cordoned},
    }


def ready(obj: Obj, status: str = "True") -> Obj:
    return {**obj, "status": {"conditions": [{"type": "Ready", "status": status}]}}


def evacuated(name: str, value: str = "true") -> Obj:
    obj = host(name)
    obj["metadata"]["annotations"][names.EVACUATE_ANNOTATION] = value
    return obj


def domains(*hosts: Obj, **options: Any) -> dict[str, bool]:
    """Return whether each domain takes control plane machines."""
    return {each["name"]: each["controlPlane"] for each in failure_domains(hosts, **options)}


def keys(*hosts: Obj, **options: Any) -> set[str]:
    return {each["attributes"]["topologyKey"] for each in failure_domains(hosts, **options)}


def test_zones_are_domains_when_all_hosts_have_one() -> None:
    assert domains(host("b", "y"), host("a", "x"), host("c", "x")) == {"x": True, "y": True}
    assert keys(host("a", "x")) == {names.ZONE_LABEL}
    assert list(domains(host("b", "y"), host("a", "x"))) == ["x", "y"]


def test_hosts_are_domains_when_one_has_no_zone() -> None:
    assert domains(host("a", "x"), host("b")) == {"a.local": True, "b.local": True}
    assert keys(host("a", "x"), host("b")) == {names.HOSTNAME_LABEL}
    assert domains() == {}


def test_zones_stay_zones_when_a_host_without_one_joins() -> None:
    published = failure_domains([host("a", "x")])
    assert domains(host("a", "x"), host("b"), published=published) == {"x": True}
    by_host = failure_domains([host("a")])
    assert domains(host("a", "x"), host("b"), published=by_host) == {"a.local": True, "b.local": True}


def test_witness_is_no_domain() -> None:
    assert domains(host("a", "x"), host("w", witness=True)) == {"x": True}
    assert [each["name"] for each in unpublished_domains([host("a"), host("w", witness=True)])] == ["a.local"]


@pytest.mark.parametrize("state", [{"cordoned": True}, {"maintenance": True}])
def test_domain_whose_hosts_are_all_out_takes_no_control_plane(state: dict[str, bool]) -> None:
    assert domains(host("a", "x", **state), host("b", "y")) == {"x": False, "y": True}
    assert domains(host("a", "x", **state), host("c", "x"), host("b", "y")) == {"x": True, "y": True}
    assert not accepts_machines(host("a", **state))


def test_only_named_domains_take_the_control_plane() -> None:
    assert domains(host("a", "x"), host("b", "y"), control_plane=["y"]) == {"x": False, "y": True}


def test_domain_with_machines_stays_published_without_its_hosts() -> None:
    published = failure_domains([host("a", "x"), host("b", "y")])
    assert domains(host("a", "x"), published=published, used=["y"]) == {"x": True, "y": False}
    assert domains(host("a", "x"), published=published) == {"x": True}
    assert domains(host("a", "x"), published=published, used=["x"]) == {"x": True}


def test_no_more_domains_are_published_than_the_core_accepts() -> None:
    hosts = [host(f"m{number:03}") for number in range(MAX_DOMAINS)]
    published = failure_domains(hosts)
    assert len(published) == MAX_DOMAINS

    # Hosts that join displace none, unless they are selected or have machines.
    more = [host("a"), host("b"), host("c"), *hosts]
    assert failure_domains(more, published=published) == published
    found = list(domains(*more, control_plane=["c.local"], used=["b.local"], published=published))
    assert found == ["b.local", "c.local", *(domain["name"] for domain in published[:-2])]


def test_old_core_knows_zones_and_hosts() -> None:
    found = unpublished_domains([host("b", "y"), host("a")])
    assert [each["name"] for each in found] == ["y", "a.local", "b.local"]
    assert {each["controlPlane"] for each in found} == {True}


def test_vm_in_a_domain_of_one_host_cannot_migrate() -> None:
    hosts = [host("a", "x"), host("b", "y"), host("c", "y")]
    published = failure_domains(hosts)
    assert has_single_host("x", published, hosts)
    assert not has_single_host("y", published, hosts)
    out = [host("a", "x"), host("b", "y"), host("c", "y", cordoned=True)]
    assert has_single_host("y", published, out)
    assert has_single_host("a.local", published, hosts)
    assert not has_single_host("mistake", published, hosts)


def test_reason_names_each_host() -> None:
    domain = failure_domains([host("a", "x")])[0]
    assert why_unavailable(domain, [host("a", "x"), host("b", "x", cordoned=True)]) == ""
    out = [
        host("a", "x", cordoned=True),
        host("b", "x", maintenance=True),
        host("c", "x", witness=True),
        host("d", "y"),
    ]
    why = why_unavailable(domain, out)
    assert [word in why for word in ("host a is cordoned", "host b is in maintenance", "host c is a witness")] == [
        True
    ] * 3
    assert "host d" not in why
    assert names.ZONE_LABEL in why_unavailable(domain, [host("d", "y")])


def test_host_belongs_to_the_domain_of_its_label() -> None:
    zones, hosts = failure_domains([host("a", "x")]), failure_domains([host("a")])
    assert domain_of_host(zones, host("b", "x")) == "x"
    assert domain_of_host(zones, host("b", "y")) == domain_of_host([], host("a")) == ""
    assert domain_of_host(hosts, host("a")) == "a.local"
    bare = {"metadata": {"name": "a.local"}}
    assert domain_of_host(hosts, bare) == "a.local"
    assert accepts_machines(bare)
    assert domain_of_host([{"name": "x"}, *zones], host("b", "x")) == "x"


@pytest.mark.parametrize(("value", "accepts"), [("true", False), ("force", False), ("false", True), ("yes", True)])
def test_a_host_that_is_evacuated_takes_no_machines(value: str, accepts: bool) -> None:
    leaving = evacuated("a", value)
    assert accepts_machines(leaving) is accepts
    assert domains(leaving, host("b")) == {"a.local": accepts, "b.local": True}
    (domain, _) = failure_domains([leaving, host("b")])
    assert why_unavailable(domain, [leaving]) == ("" if accepts else "host a is being evacuated")


def test_a_domain_whose_hosts_are_all_down_takes_no_machines() -> None:
    """A machine that replaces one of a zone that is down would wait there."""
    down = ready(host("c", "y"), "Unknown")
    hosts = (ready(host("a", "x")), ready(host("b", "x"), "False"), down)
    assert domains(*hosts) == {"x": True, "y": False}
    domain = {"name": "y", "attributes": {"topologyKey": names.ZONE_LABEL}}
    assert why_unavailable(domain, hosts) == "host c is not ready"
    assert why_unavailable({**domain, "name": "x"}, hosts) == ""


def test_an_outage_of_all_hosts_closes_no_domain() -> None:
    assert domains(ready(host("a", "x"), "Unknown"), ready(host("b", "y"), "False")) == {"x": True, "y": True}


def test_a_ready_host_that_is_cordoned_opens_nothing() -> None:
    """Whether others are ready is asked of those that take machines."""
    hosts = (ready(host("a", "x", cordoned=True)), ready(host("b", "y"), "Unknown"))
    assert domains(*hosts) == {"x": False, "y": True}
