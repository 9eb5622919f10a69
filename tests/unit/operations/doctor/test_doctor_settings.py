"""The doctor's checks of Harvester's settings."""

from __future__ import annotations

import ipaddress
import json
import time
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import STORAGE_CLASSES, Obj
from caphv.api.resources import LONGHORN_NODES, LONGHORN_RECURRING_JOBS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from caphv.runtime.text import load_yaml_all
from operations.doctor import settings
from operations.doctor.settings import Exceptions
from operations.doctor.sharedreading import read_settings
from operations.read.harvestersettings import CHART_VERSIONS
from operations.read.objects import HarvesterObjects
from operations.status.check import Check, Result
from tests.support.clusters import NOW, ago
from tests.support.memoryserver import MemoryServer
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

PASSWORD = "hunter2"

INGRESS: Obj = {
    "metadata": {"name": "ingress-expose", "annotations": {"kube-vip.io/loadbalancerIPs": "0.0.0.0"}},
    "spec": {"clusterIP": "10.53.0.9"},
    "status": {"loadBalancer": {"ingress": [{"ip": "172.16.0.10"}]}},
}


def host(name: str, address: str, network: str = "10.52.0.0/24") -> Obj:
    addresses = [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}]
    return {"metadata": {"name": name}, "spec": {"podCIDRs": [network]}, "status": {"addresses": addresses}}


def setting(name: str, value: Any) -> Obj:
    return {
        "apiVersion": "harvesterhci.io/v1beta1",
        "kind": "Setting",
        "metadata": {"name": name},
        "value": json.dumps(value),
    }


def checked(*values: Obj, hosts: list[Obj] | None = None, ingress: Obj | None = INGRESS) -> list[Check]:
    hosts = hosts or [host("a", "172.16.0.1"), host("b", "172.16.0.2")]
    return list(settings.checks(HarvesterObjects(hosts=hosts, settings=list(values)), ingress, "Harvester x", NOW))


def proxy(exceptions: str = "", **fields: str) -> Obj:
    return setting("http-proxy", {"httpProxy": f"http://user:{PASSWORD}@proxy:3128", "noProxy": exceptions} | fields)


def test_settings_without_a_fault_have_no_finding() -> None:
    overcommit = setting("overcommit-config", {"cpu": 1600, "memory": 150, "storage": 200})
    rotation = setting("auto-rotate-rke2-certs", {"enable": True, "expiringInHours": 240})
    assert checked(overcommit, rotation, proxy("172.16.0.0/16")) == []


def test_nothing_is_found_where_no_setting_may_be_read() -> None:
    assert checked() == []


# The proxy


@pytest.mark.parametrize(
    "exceptions",
    ["172.16.0.0/24", "172.16.0.1,172.16.0.2, 172.16.0.10", "*", "example.com,172.16.0.0/12", "172.16.0.1/24"],
)
def test_a_proxy_with_exceptions_for_hosts_and_the_virtual_address_is_fine(exceptions: str) -> None:
    assert checked(proxy(exceptions)) == []


def test_hosts_behind_the_proxy_are_an_error_and_named() -> None:
    (only,) = checked(proxy("172.16.0.1,172.16.0.10,.example.com"))
    assert (only.id, only.result) == ("proxy", Result.ERROR)
    assert only.message == "noProxy of setting http-proxy does not cover addresses of hosts: 172.16.0.2"
    assert "http-proxy" in only.remedy


def test_the_virtual_address_and_networks_behind_the_proxy_are_a_warning() -> None:
    elsewhere = [host("a", "172.16.0.1", "192.168.0.0/24")]
    service = INGRESS | {"spec": {"clusterIP": "192.168.128.9"}}
    (only,) = checked(proxy("172.16.0.1"), hosts=elsewhere, ingress=service)
    assert only.result is Result.WARNING
    assert only.message.endswith(": 172.16.0.10, 192.168.0.0/24, 192.168.128.9")


def test_half_of_a_pod_network_is_not_enough() -> None:
    elsewhere = [host("a", "10.0.0.1", "192.168.0.0/24")]
    assert checked(proxy("192.168.0.0/25"), hosts=elsewhere, ingress=None) != []
    assert checked(proxy("192.168.0.0/25,192.168.0.128/25"), hosts=elsewhere, ingress=None) == []


def test_a_static_virtual_address_is_that_of_the_annotation() -> None:
    service = {"metadata": {"annotations": {"kube-vip.io/loadbalancerIPs": "172.16.0.99"}}}
    (only,) = checked(proxy("172.16.0.1,172.16.0.2"), ingress=service)
    assert only.message.endswith(": 172.16.0.99")


def test_without_addresses_a_proxy_needs_some_exception() -> None:
    (only,) = checked(proxy(), hosts=[{"metadata": {"name": "a"}}], ingress=None)
    assert "has no exceptions" in only.message
    assert checked(proxy("example.com"), hosts=[{"metadata": {"name": "a"}}], ingress=None) == []


@pytest.mark.parametrize("value", [{}, {"noProxy": "example.com"}, [], None, "x"])
def test_without_a_proxy_nothing_needs_an_exception(value: Any) -> None:
    assert checked(setting("http-proxy", value)) == []


def test_a_setting_that_cannot_be_parsed_is_passed_over() -> None:
    assert checked({"metadata": {"name": "http-proxy"}, "value": "{"}) == []


@given(
    st.ip_addresses(v=4),
    st.lists(st.tuples(st.ip_addresses(v=4), st.integers(0, 32)), max_size=4),
)
def test_an_address_is_excepted_if_one_entry_holds_it(address: Any, entries: list[tuple[Any, int]]) -> None:
    networks = [ipaddress.ip_network(f"{base}/{length}", strict=False) for base, length in entries]
    exceptions = [f" {network}" for network in networks] + ["example.com", ""]
    network = ipaddress.ip_network(address)
    assert Exceptions(exceptions).cover(network) == any(address in other for other in networks)


def test_the_families_of_addresses_do_not_mix() -> None:
    address = ipaddress.ip_network("fd00::1")
    assert not Exceptions(["0.0.0.0/0"]).cover(address)
    assert Exceptions(["0.0.0.0/0", "fd00::/8"]).cover(address)


def test_a_long_list_of_exceptions_takes_no_minutes() -> None:
    """A setting may have 1.5 MiB, and many identities lead to its Harvester."""
    entries = [f"11.{number >> 8 & 255}.{number & 255}.{number >> 16}" for number in range(20_000)]
    hosts = [host(f"host-{number}", f"172.16.0.{number}") for number in range(100)]
    started = time.process_time()
    for _ in range(20):
        errors, _ = checked(proxy(",".join(entries)), hosts=hosts)
    assert time.process_time() - started < 5, "it takes one second; it took minutes"
    assert "172.16.0.9" in errors.message or "and 95 more" in errors.message


@pytest.mark.parametrize("exceptions", ["", "172.16.0.1", "x"])
def test_the_password_of_a_proxy_is_in_no_check(exceptions: str) -> None:
    checks = checked(proxy(exceptions))
    assert checks
    assert PASSWORD not in str(checks)


# What a server that is no Harvester may answer


@pytest.mark.parametrize("value", [5, "x", ["a"], [5], {"a": "b"}, [{}], [None]])
def test_values_of_other_types_end_nothing(value: Any) -> None:
    hosts = [{"metadata": {"name": "a"}, "spec": {"podCIDRs": value}, "status": {"addresses": value}}]
    ingress = {"metadata": {}, "status": {"loadBalancer": {"ingress": value}}}
    assert {check.id for check in checked(proxy("x"), hosts=hosts, ingress=ingress)} <= {"proxy"}


# Others


def control_plane(days: int, **labels: str) -> Obj:
    labels = labels or {"node-role.kubernetes.io/control-plane": "true"}
    return {"metadata": {"name": "a", "labels": labels, "creationTimestamp": ago(days=days)}}


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ({"enable": False, "expiringInHours": 240}, [Result.WARNING]),
        ({"expiringInHours": 240}, [Result.WARNING]),
        ({"enable": True}, []),
        (None, []),
    ],
)
def test_certificates_that_nothing_renews(value: Any, result: list[Result]) -> None:
    checks = checked(setting("auto-rotate-rke2-certs", value), hosts=[control_plane(10), control_plane(300)])
    assert [check.result for check in checks] == result
    assert all(check.id == "certificate-rotation" and check.remedy for check in checks)


@pytest.mark.parametrize(
    "hosts",
    [[control_plane(0)], [control_plane(200)], [control_plane(10), control_plane(900, worker="true")]],
    ids=["installed today", "months old", "an old worker"],
)
def test_the_default_is_no_finding_while_certificates_are_young(hosts: list[Obj]) -> None:
    default = {"metadata": {"name": "auto-rotate-rke2-certs"}, "default": '{"enable":false}'}
    (only,) = checked(default, hosts=hosts)
    assert (only.id, only.result) == ("certificate-rotation", Result.OK)


def test_more_than_the_default_overcommitment() -> None:
    (only,) = checked(setting("overcommit-config", {"storage": 400}))
    assert (only.id, only.result) == ("over-provisioning", Result.WARNING)
    assert "400 % of the existing storage" in only.message


@pytest.mark.parametrize(
    ("percents", "count"),
    [({"storage": 200}, 0), ({"storage": 201}, 1), ({"memory": 150}, 0), ({"memory": 151}, 1), ({"cpu": 9999}, 0)],
)
def test_overcommitment_up_to_the_default_is_no_finding(percents: dict[str, int], count: int) -> None:
    assert len(checked(setting("overcommit-config", percents))) == count


async def test_settings_are_read_one_by_one() -> None:
    server = MemoryServer()
    server.put(setting("http-proxy", {}))
    found, unread = await read_settings(cast("ApiClient", server), settings.READ)
    assert ([obj["metadata"]["name"] for obj in found], unread) == (["http-proxy"], [])

    server.errors["get Setting"] = Forbidden(403, "Forbidden", "cannot get")
    assert await read_settings(cast("ApiClient", server), settings.READ) == ([], list(settings.READ))


def test_the_documented_role_grants_what_the_checks_read() -> None:
    page = (CHECKOUT / "docs" / "tasks" / "doctor.md").read_text(encoding="utf-8")
    role, binding = load_yaml_all(page.partition("```yaml\n")[2].partition("```")[0])
    rights = {
        (group, resource): (set(rule["verbs"]), set(rule.get("resourceNames", ())))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    storage_kinds = (STORAGE_CLASSES, LONGHORN_NODES, LONGHORN_RECURRING_JOBS)
    listed = {(kind.group, kind.plural): ({"list"}, set[str]()) for kind in storage_kinds}
    # Harvester lets every account get this one: harvester v1.8.0, pkg/data/rbac.go.
    names = set(settings.READ) - {CHART_VERSIONS}
    assert rights == listed | {("harvesterhci.io", "settings"): ({"get"}, names)}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
