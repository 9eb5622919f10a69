"""Rules about the annotations of LoadBalancer Services for the Harvester cloud provider.

The rules come from the cloud provider's documentation. Addresses come from DHCP or a pool, or are
shared with a primary Service of the same namespace. Services that share an address must not have a
port in common, and a secondary Service must not be shared itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from caphv.api.object import Key, Obj, annotations_of, at, key_of, list_at
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rule, Rules

IPAM_ANNOTATION = "cloudprovider.harvesterhci.io/ipam"
PRIMARY_ANNOTATION = "cloudprovider.harvesterhci.io/primary-service"
_IPAM: FieldPath = ("metadata", "annotations", IPAM_ANNOTATION)
_PRIMARY: FieldPath = ("metadata", "annotations", PRIMARY_ANNOTATION)

RULES = Rules()


def _rule(name: str, description: str, *, advice: bool = False) -> Rule:
    return RULES.declare(name, description, kinds=("Service",), advice=advice)


IPAM = _rule("service-ipam", f"Annotation `{IPAM_ANNOTATION}` must be `dhcp` or `pool`.")
SHARED = _rule(
    "service-primary", "A Service must share the address of another Service in its namespace."
)
SHARED_ON = _rule(
    "service-primary-is-secondary", "A Service that shares an address must not be shared itself."
)
SHARED_PORT = _rule(
    "service-shared-port", "Services that share an address must not have a port in common."
)
TYPE = _rule(
    "service-type",
    "Annotations for load balancers must be on Services of type LoadBalancer.",
    advice=True,
)


def check_services(services: Iterable[Obj]) -> dict[Key, list[Finding]]:
    """Return findings by Service, without Services that have none.

    `services` are all known Services of the cluster, because rules concern several of them.
    """
    by_key = {key_of(service): service for service in services}
    findings = {key: list(_check(service, by_key)) for key, service in by_key.items()}
    return {key: problems for key, problems in findings.items() if problems}


def _check(service: Obj, services: Mapping[Key, Obj]) -> Iterator[Finding]:
    annotations = annotations_of(service)
    ipam = annotations.get(IPAM_ANNOTATION)
    primary = annotations.get(PRIMARY_ANNOTATION)
    if ipam is None and primary is None:
        return

    if at(service, "spec", "type") != "LoadBalancer":
        path = _IPAM if ipam is not None else _PRIMARY
        detail = (
            "has no effect, since spec.type is not LoadBalancer: remove the annotation, or change "
            "the type"
        )
        yield TYPE.finding(path, Fault.INVALID, detail)

    if ipam is not None and ipam not in ("dhcp", "pool"):
        yield IPAM.finding(_IPAM, Fault.UNSUPPORTED, 'must be "dhcp" or "pool"', ipam)
    if primary is not None:
        yield from _check_primary(service, primary, services)


def _check_primary(service: Obj, primary: str, services: Mapping[Key, Obj]) -> Iterator[Finding]:
    """Yield findings if a Service cannot share the address of its primary Service."""
    key = key_of(service)
    if primary == key.name:
        yield SHARED.finding(
            _PRIMARY, Fault.INVALID, "must not name the Service itself: name another", primary
        )
        return

    primary_service = services.get(Key(key.namespace, primary))
    if primary_service is None:
        detail = (
            f"namespace {key.namespace} has no Service {primary}: create it first, or correct the "
            "name"
        )
        yield SHARED.finding(_PRIMARY, Fault.INVALID, detail, primary, advice=True)
        return
    if PRIMARY_ANNOTATION in annotations_of(primary_service):
        detail = f"{primary} shares the address of another Service itself: name that other Service"
        yield SHARED_ON.finding(_PRIMARY, Fault.FORBIDDEN, detail, primary)

    # A load balancer distinguishes Services with one address by their ports. The address is shared
    # by the primary Service and all Services that name it.
    others = [
        other
        for other in services.values()
        if key_of(other) != key
        and key_of(other).namespace == key.namespace
        and primary in (key_of(other).name, annotations_of(other).get(PRIMARY_ANNOTATION))
    ]
    taken = {port: key_of(other).name for other in others for port in _ports(other)}
    for index, port in enumerate(_ports(service)):
        if port in taken:
            detail = (
                f"Service {taken[port]} has this port on the shared address: choose another port"
            )
            yield SHARED_PORT.finding(
                ("spec", "ports", index, "port"), Fault.DUPLICATE, detail, port
            )


def _ports(service: Obj) -> list[Any]:
    return [port.get("port") for port in list_at(service, "spec", "ports")]
