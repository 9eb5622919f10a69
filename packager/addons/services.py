"""Rules about the annotations of LoadBalancer Services for the Harvester cloud provider.

The rules are those of the cloud provider's documentation: addresses come from DHCP, from a pool, or are shared with a
primary Service of the same namespace. Services that share an address must not have a port in common, a secondary
Service must not be shared itself, and the source of an address must not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from caphv.api.object import Key, Obj, annotations_of, key_of
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
IPAM_CHANGED = _rule("service-ipam-changed", "The way in which a Service gets its address must not change.")
SHARED = _rule("service-primary", "A Service must share the address of another Service in its namespace.")
SHARED_ON = _rule("service-primary-is-secondary", "A Service that shares an address must not be shared itself.")
SHARED_PORT = _rule("service-shared-port", "Services that share an address must not have a port in common.")
TYPE = _rule("service-type", "Annotations for load balancers must be on Services of type LoadBalancer.", advice=True)


def check_services(services: Iterable[Obj], before: Iterable[Obj] = ()) -> dict[Key, list[Finding]]:
    """Return findings by Service, for those that have any.

    `services` are all that are known of the cluster: limits concern several of them. `before` are the same Services
    as they are in the cluster, where that is known.
    """
    known = {key_of(service): service for service in services}
    old = {key_of(service): service for service in before}
    found = {key: list(_check(service, known, old.get(key))) for key, service in known.items()}
    return {key: findings for key, findings in found.items() if findings}


def _check(service: Obj, known: Mapping[Key, Obj], before: Obj | None) -> Iterator[Finding]:
    notes = annotations_of(service)
    ipam, primary = notes.get(IPAM_ANNOTATION), notes.get(PRIMARY_ANNOTATION)
    if ipam is None and primary is None:
        return
    if (service.get("spec") or {}).get("type") != "LoadBalancer":
        path = _IPAM if ipam is not None else _PRIMARY
        detail = "has no effect, since spec.type is not LoadBalancer: remove the annotation, or change the type"
        yield TYPE.finding(path, Fault.INVALID, detail)
    if ipam is not None and ipam not in ("dhcp", "pool"):
        yield IPAM.finding(_IPAM, Fault.UNSUPPORTED, 'must be "dhcp" or "pool"', ipam)
    if before is not None:
        yield from _changed(ipam, primary, annotations_of(before))
    if primary is not None:
        yield from _shared(service, primary, known)


def _changed(ipam: str | None, primary: str | None, before: Mapping[str, str]) -> Iterator[Finding]:
    for path, name, now in ((_IPAM, IPAM_ANNOTATION, ipam), (_PRIMARY, PRIMARY_ANNOTATION, primary)):
        if before.get(name) is not None and before[name] != now:
            detail = f'was "{before[name]}" and must not change: create a new Service'
            yield IPAM_CHANGED.finding(path, Fault.FORBIDDEN, detail, now)


def _shared(service: Obj, primary: str, known: Mapping[Key, Obj]) -> Iterator[Finding]:
    key = key_of(service)
    if primary == key.name:
        yield SHARED.finding(_PRIMARY, Fault.INVALID, "must not name the Service itself: name another", primary)
        return
    first = known.get(Key(key.namespace, primary))
    if first is None:
        detail = f"namespace {key.namespace} has no Service {primary}: create it first, or correct the name"
        yield SHARED.finding(_PRIMARY, Fault.INVALID, detail, primary, advice=True)
        return
    if PRIMARY_ANNOTATION in annotations_of(first):
        detail = f"{primary} shares the address of another Service itself: name that other Service"
        yield SHARED_ON.finding(_PRIMARY, Fault.FORBIDDEN, detail, primary)
    others = [
        other
        for other in known.values()
        if key_of(other) != key
        and key_of(other).namespace == key.namespace
        and primary in (key_of(other).name, annotations_of(other).get(PRIMARY_ANNOTATION))
    ]
    taken = {port: key_of(other).name for other in others for port in _ports(other)}
    for index, port in enumerate(_ports(service)):
        if port in taken:
            detail = f"Service {taken[port]} has this port on the shared address: choose another port"
            yield SHARED_PORT.finding(("spec", "ports", index, "port"), Fault.DUPLICATE, detail, port)


def _ports(service: Obj) -> list[Any]:
    return [port.get("port") for port in (service.get("spec") or {}).get("ports") or ()]
