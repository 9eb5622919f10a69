"""What the Harvester cloud provider makes of the annotations of a LoadBalancer Service, checked before it is applied.

Rules are those of the cloud provider's document: addresses come from DHCP, from a pool, or are shared with a primary
Service of the same namespace. Services that share an address cannot have one port, and a secondary one cannot be
shared on. The way of an address cannot be changed later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from caphv.api.object import Key, annotations_of, key_of
from caphv.validation.finding import Fault, FieldPath, Finding
from packager.addons.merge import Obj

IPAM_ANNOTATION = "cloudprovider.harvesterhci.io/ipam"
PRIMARY_ANNOTATION = "cloudprovider.harvesterhci.io/primary-service"
_IPAM: FieldPath = ("metadata", "annotations", IPAM_ANNOTATION)
_PRIMARY: FieldPath = ("metadata", "annotations", PRIMARY_ANNOTATION)


def check_services(services: Iterable[Obj], before: Iterable[Obj] = ()) -> dict[Key, list[Finding]]:
    """Return findings by Service, for those that have any.

    `services` are all that are known of the cluster: limits concern several of them. `before` are the same Services
    as they are in the cluster, where somebody looked.
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
        detail = "has no effect: spec.type is not LoadBalancer"
        yield Finding(path, Fault.INVALID, detail, "service-type", advice=True)
    if ipam is not None and ipam not in ("dhcp", "pool"):
        yield Finding(_IPAM, Fault.UNSUPPORTED, 'must be "dhcp" or "pool"', "service-ipam", ipam)
    if before is not None:
        yield from _changed(ipam, primary, annotations_of(before))
    if primary is not None:
        yield from _shared(service, primary, known)


def _changed(ipam: str | None, primary: str | None, before: Mapping[str, str]) -> Iterator[Finding]:
    for path, name, now in ((_IPAM, IPAM_ANNOTATION, ipam), (_PRIMARY, PRIMARY_ANNOTATION, primary)):
        if before.get(name) is not None and before[name] != now:
            detail = f"was {before[name]!r} and cannot be changed: make a new Service"
            yield Finding(path, Fault.FORBIDDEN, detail, "service-ipam-changed", now)


def _shared(service: Obj, primary: str, known: Mapping[Key, Obj]) -> Iterator[Finding]:
    key = key_of(service)
    if primary == key.name:
        yield Finding(_PRIMARY, Fault.INVALID, "names the Service itself: name another", "service-primary", primary)
        return
    first = known.get(Key(key.namespace, primary))
    if first is None:
        detail = f"there is no Service {primary} beside it in namespace {key.namespace}: it must exist first"
        yield Finding(_PRIMARY, Fault.INVALID, detail, "service-primary", primary, advice=True)
        return
    if PRIMARY_ANNOTATION in annotations_of(first):
        detail = f"{primary} shares the address of another Service, and a shared one cannot be shared on: name that"
        yield Finding(_PRIMARY, Fault.FORBIDDEN, detail, "service-primary-is-secondary", primary)
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
            detail = f"Service {taken[port]} has this port on the shared address: take another"
            yield Finding(("spec", "ports", index, "port"), Fault.DUPLICATE, detail, "service-shared-port", port)


def _ports(service: Obj) -> list[Any]:
    return [port.get("port") for port in (service.get("spec") or {}).get("ports") or ()]
