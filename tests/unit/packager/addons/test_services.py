"""Annotations of Services: ways of an address, and the two limits of a shared one."""

from typing import Any

import pytest

from packager.addons.services import IPAM_ANNOTATION, PRIMARY_ANNOTATION, check_services

pytestmark = pytest.mark.unit


def service(name: str, *ports: int, kind: str = "LoadBalancer", **notes: str) -> dict[str, Any]:
    known = {"ipam": IPAM_ANNOTATION, "primary": PRIMARY_ANNOTATION}
    annotations = {known[key]: value for key, value in notes.items()}
    spec = {"type": kind, "ports": [{"port": port} for port in ports]}
    return {"metadata": {"name": name, "namespace": "ns", "annotations": annotations}, "spec": spec}


def rules(*services: dict[str, Any]) -> dict[str, list[str]]:
    found = check_services(services)
    return {key.name: [finding.rule for finding in findings] for key, findings in found.items()}


def test_what_is_right_is_silent() -> None:
    assert (
        rules(
            service("a", 80, ipam="pool"),
            service("b", 81, primary="a"),
            service("c", 80),
            service("d", 82, primary="a"),
        )
        == {}
    )


@pytest.mark.parametrize(
    ("services", "wanted"),
    [
        ([service("a", ipam="static")], {"a": ["service-ipam"]}),
        ([service("a", ipam="dhcp", kind="ClusterIP")], {"a": ["service-type"]}),
        ([service("a", primary="a")], {"a": ["service-primary"]}),
        ([service("a", primary="b")], {"a": ["service-primary"]}),
        ([service("a", 80), service("b", 80, primary="a")], {"b": ["service-shared-port"]}),
        (
            [service("a", 1), service("b", 80, primary="a"), service("c", 80, primary="a")],
            {"b": ["service-shared-port"], "c": ["service-shared-port"]},
        ),
        (
            [service("a", 1), service("b", 2, primary="a"), service("c", 3, primary="b")],
            {"c": ["service-primary-is-secondary"]},
        ),
    ],
)
def test_faults(services: list[dict[str, Any]], wanted: dict[str, list[str]]) -> None:
    assert rules(*services) == wanted
