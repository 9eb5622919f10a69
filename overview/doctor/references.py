"""Checks of what clusters and machines name on their Harvester, by the shared `overview.requirements`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from caphv.api import clusterapi, remedies
from caphv.api.object import Key, Obj, key_of
from caphv.validation.finding import Finding
from overview import requirements
from overview.capacity import CapacityObjects
from overview.doctor.model import Check, Result, ok, skipped
from overview.objects import HarvesterObjects
from overview.requirements import Requirements, cluster_requirements, machine_requirements, place_of, shortcomings
from overview.surroundings import Surroundings

_SHOWN = 3
# By name of the check: what it is called, its kind on Harvester, and the field of `Requirements`.
_KINDS = (
    (requirements.IMAGES, "VM image", "virtualmachineimages.harvesterhci.io", "images"),
    (requirements.NETWORKS, "VM network", "network-attachment-definitions.k8s.cni.cncf.io", "networks"),
    (requirements.KEY_PAIRS, "KeyPair", "keypairs.harvesterhci.io", "key_pairs"),
)


@dataclass(frozen=True, slots=True)
class References:
    """HarvesterClusters and HarvesterMachines of one identity, with their Clusters, and the classes for disks."""

    clusters: list[Obj] = field(default_factory=list)
    machines: list[Obj] = field(default_factory=list)
    owners: Mapping[Key, Obj] = field(default_factory=dict)
    """Clusters by namespace and name."""
    storage_classes: list[Obj] = field(default_factory=list)

    def owner_of(self, obj: Obj) -> Obj | None:
        """The Cluster of an object."""
        return self.owners.get(_cluster_of(obj))


def checks(references: References, harvester: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Yield what is absent on Harvester or contradicts it, each once, and that the rest exists."""
    required = list(_required(references))
    # Without any class they could not be listed: each Harvester has one.
    classes = sorted(str(obj["metadata"]["name"]) for obj in references.storage_classes) or None
    surroundings = Surroundings(CapacityObjects(harvester), storage_classes=classes)

    found: dict[tuple[str, str, str], list[tuple[Obj, Finding]]] = {}
    for obj, each in required:
        for finding in shortcomings(each, surroundings):
            found.setdefault((finding.rule, str(finding.value), finding.detail), []).append((obj, finding))
    for places in found.values():
        yield _check(references, places, subject)

    yield from _complete(harvester, [each for _, each in required], {rule for rule, _, _ in found}, subject)


def _required(references: References) -> Iterator[tuple[Obj, Requirements]]:
    networks: dict[Key, set[str]] = {}
    for obj in references.machines:
        names = (obj.get("spec") or {}).get("networks") or ()
        networks.setdefault(_cluster_of(obj), set()).update(map(str, names))

    targets = {}
    for obj in references.clusters:
        spec, cluster = obj.get("spec") or {}, _cluster_of(obj)
        targets[cluster] = str(spec.get("targetNamespace") or "")
        yield obj, cluster_requirements(spec, networks.get(cluster, ()), ("spec",))

    for obj in references.machines:
        yield obj, machine_requirements(obj.get("spec") or {}, targets.get(_cluster_of(obj), ""), ("spec",))


def _cluster_of(obj: Obj) -> Key:
    return Key(key_of(obj).namespace, clusterapi.cluster_name(obj))


def _check(references: References, places: list[tuple[Obj, Finding]], subject: str) -> Check:
    obj, finding = places[0]
    key = key_of(obj)
    kind = str(obj.get("kind") or ("HarvesterCluster" if obj in references.clusters else "HarvesterMachine"))
    names = list(dict.fromkeys(str(key_of(each)) for each, _ in places))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    message = f"{finding.value}: {finding.detail} ({kind} {', '.join(names[:_SHOWN])}{more}, {finding.field})"

    owner = references.owner_of(obj)
    if place := place_of(owner, str(finding.value)):
        command = remedies.EDIT_CLUSTER(cluster=key_of(owner or obj).name, namespace=key.namespace)
        remedy = f"To name another, correct {place}: {command}"
    elif kind == "HarvesterCluster":
        command = remedies.EDIT_OBJECT(kind="harvestercluster", name=key.name, namespace=key.namespace)
        remedy = f"To name another: {command}"
    else:
        remedy = "To name another, create a HarvesterMachineTemplate under another name and reference that"
    return Check(finding.rule, subject, Result.WARNING if finding.advice else Result.ERROR, message, remedy)


def _complete(
    harvester: HarvesterObjects, required: list[Requirements], wrong: set[str], subject: str
) -> Iterator[Check]:
    """Say which kinds are complete, and which could not be checked."""
    for rule, what, kind, attribute in _KINDS:
        names = sorted({value.text for each in required for value in getattr(each, attribute)})
        if not harvester.sees(kind):
            yield skipped(rule, subject, next(each.why for each in harvester.unseen if each.what == kind))
        elif names and rule not in wrong:
            yield ok(rule, subject, f"{what}s of all machines exist: {', '.join(names)}")
