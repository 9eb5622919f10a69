"""Check the objects that clusters and machines name on Harvester, by `capacity.requirements`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from caphv.api import clusterapi, remedies
from caphv.api.counting import name_some
from caphv.api.object import Key, Obj, key_of, list_at
from caphv.validation.finding import Finding
from operations.capacity import requirements
from operations.capacity.free import CapacityObjects
from operations.capacity.requirements import (
    Requirements,
    cluster_requirements,
    imports_of,
    machine_requirements,
    place_of,
    shortcomings,
)
from operations.capacity.surroundings import Surroundings
from operations.read.objects import HarvesterObjects
from operations.status.check import Check, Result, ok, skipped

# Name of the check, label of the kind, kind on Harvester, and field of `Requirements`.
_KINDS = (
    (requirements.IMAGES, "VM image", "virtualmachineimages.harvesterhci.io", "images"),
    (
        requirements.NETWORKS,
        "VM network",
        "network-attachment-definitions.k8s.cni.cncf.io",
        "networks",
    ),
    (requirements.KEY_PAIRS, "KeyPair", "keypairs.harvesterhci.io", "key_pairs"),
)


@dataclass(frozen=True, slots=True)
class References:
    """Objects of one identity, with their Clusters, and the StorageClasses on Harvester."""

    clusters: list[Obj] = field(default_factory=list)
    machines: list[Obj] = field(default_factory=list)
    owners: Mapping[Key, Obj] = field(default_factory=dict)
    """Clusters by namespace and name."""
    storage_classes: list[Obj] = field(default_factory=list)


class _Use(NamedTuple):
    """An object that names something on Harvester, and the finding about it."""

    obj: Obj
    finding: Finding


def checks(references: References, harvester: HarvesterObjects, subject: str) -> Iterator[Check]:
    """Yield an error for each absent or unfit object, and a success for each complete kind."""
    required = list(_requirements_of(references))
    # Each Harvester has a StorageClass. An empty list means that they could not be listed.
    classes = sorted(str(obj["metadata"]["name"]) for obj in references.storage_classes) or None
    surroundings = Surroundings(CapacityObjects(harvester), storage_classes=classes)

    # Many machines name the same image, and share one check.
    groups: dict[tuple[str, str, str], list[_Use]] = {}
    for obj, requirement in required:
        for finding in shortcomings(requirement, surroundings):
            key = (finding.rule, str(finding.value), finding.detail)
            groups.setdefault(key, []).append(_Use(obj, finding))
    for uses in groups.values():
        yield _check(references, uses, subject)

    wrong = {rule for rule, _, _ in groups}
    yield from _check_kinds(harvester, [requirement for _, requirement in required], wrong, subject)


def _requirements_of(references: References) -> Iterator[tuple[Obj, Requirements]]:
    """Yield each HarvesterCluster and HarvesterMachine with its requirements."""
    # A pool of a cluster must serve the networks of its machines.
    networks: dict[Key, set[str]] = {}
    for obj in references.machines:
        names = list_at(obj, "spec", "networks")
        networks.setdefault(_cluster_of(obj), set()).update(map(str, names))

    targets = {}
    imported = {}
    for obj in references.clusters:
        spec = obj.get("spec") or {}
        cluster = _cluster_of(obj)
        requirement = cluster_requirements(spec, networks.get(cluster, ()), ("spec",))
        targets[cluster] = requirement.target_namespace
        imported[cluster] = imports_of(spec)
        yield obj, requirement

    for obj in references.machines:
        cluster = _cluster_of(obj)
        yield (
            obj,
            machine_requirements(
                obj.get("spec") or {},
                targets.get(cluster, ""),
                ("spec",),
                imported=imported.get(cluster, ()),
            ),
        )


def _cluster_of(obj: Obj) -> Key:
    return Key(key_of(obj).namespace, clusterapi.cluster_name(obj))


def _check(references: References, uses: list[_Use], subject: str) -> Check:
    """Return the check of a name that several objects have in common."""
    obj, finding = uses[0]
    kind = "HarvesterCluster" if obj in references.clusters else "HarvesterMachine"
    names = list(dict.fromkeys(str(key_of(use.obj)) for use in uses))
    message = f"{finding.value}: {finding.detail} ({kind} {name_some(names)}, {finding.field})"
    result = Result.WARNING if finding.advice else Result.ERROR
    return Check(
        finding.rule,
        subject,
        result,
        message=message,
        remedy=_remedy(references, obj, kind, finding),
    )


def _remedy(references: References, obj: Obj, kind: str, finding: Finding) -> str:
    """Say where to name another object: in the topology if it set the value, else in the object.

    :param references: the objects of an identity
    :param obj: the object with the reference
    :param kind: the kind of the object
    :param finding: the finding about the reference
    """
    key = key_of(obj)
    cluster = _cluster_of(obj)
    # Cluster API reverts changes of the objects that it created from a topology.
    if variable := place_of(references.owners.get(cluster), str(finding.value)):
        command = remedies.EDIT_CLUSTER(cluster=cluster.name, namespace=cluster.namespace)
        return f"To name another, correct {variable}: {command}"

    if kind == "HarvesterCluster":
        command = remedies.EDIT_OBJECT(
            kind="harvestercluster", name=key.name, namespace=key.namespace
        )
        return f"To name another: {command}"
    return (
        "To name another, create a HarvesterMachineTemplate under another name and reference that"
    )


def _check_kinds(
    harvester: HarvesterObjects, required: list[Requirements], wrong: set[str], subject: str
) -> Iterator[Check]:
    """Say which kinds are complete, and which could not be checked.

    :param harvester: the objects of the Harvester
    :param required: the requirements of all objects
    :param wrong: the rules of kinds with findings
    :param subject: the Harvester
    """
    for rule, label, kind, attribute in _KINDS:
        if not harvester.sees(kind):
            reason = next(item.why for item in harvester.unseen if item.what == kind)
            yield skipped(rule, subject, reason)
            continue
        names = sorted({value.text for entry in required for value in getattr(entry, attribute)})
        if names and rule not in wrong:
            yield ok(rule, subject, f"{label}s of all machines exist: {', '.join(names)}")
