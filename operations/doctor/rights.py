"""Find the rights of the shipped roles that the provider's account lacks on Harvester."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import product, starmap

from caphv import data
from caphv.api.bootimage import imports
from caphv.api.names import GUESTS_PREFIX
from caphv.api.object import (
    CLUSTER_ROLE_BINDINGS,
    SELF_SUBJECT_ACCESS_REVIEWS,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
    Obj,
    at,
    dict_at,
)
from caphv.api.resources import IMAGES, IP_POOLS, STORAGE_PROFILES, VM_BACKUPS
from caphv.runtime.client import ApiClient
from caphv.runtime.text import load_yaml_all
from operations.read.objects import target_namespaces

_IN_NAMESPACES = "caphv-account-namespace"
_GUESTS = "caphv-account-guests"
_POOLS = "caphv-account-pools"
_IMAGES = "caphv-account-images"
_BACKUPS = "caphv-account-backups"


@dataclass(frozen=True, order=True, slots=True)
class Right:
    """A verb on a resource, in a namespace or in all namespaces."""

    namespace: str
    group: str
    resource: str
    verb: str
    name: str = ""


AHEAD = frozenset({Right("", IMAGES.group, IMAGES.plural, "get")})
"""Rights that Harvester after 1.9 needs when a VM is created, and no version before.

See harvester b86f33942: pkg/webhook/resources/virtualmachine/validator.go,
`checkVolumeClaimTemplateEntry`. Older accounts lack them.
"""

OPTIONAL = frozenset(
    {
        Right("", STORAGE_CLASSES.group, STORAGE_CLASSES.plural, "get"),
        Right("", STORAGE_PROFILES.group, STORAGE_PROFILES.plural, "get"),
        Right("", VOLUME_ATTACHMENTS.group, VOLUME_ATTACHMENTS.plural, "list"),
    }
)
"""Rights that the provider can do without.

Disks then have the spec's modes, or Longhorn's, larger ones replace their machines, and volumes of
parked clusters are not checked.
"""


def needed_rights(clusters: Iterable[Obj]) -> list[Right]:
    """Return the rights of the shipped roles that these HarvesterClusters need.

    `AHEAD`, `OPTIONAL`, `import_rights` and `backup_rights` are not among them.
    """
    # The namespaces in which an account has a role, by the name of the role.
    namespaces: dict[str, set[str]] = {
        role: set() for role in (_IN_NAMESPACES, _GUESTS, _POOLS, _IMAGES, _BACKUPS)
    }
    for cluster in clusters:
        spec = cluster.get("spec") or {}
        targets = target_namespaces([cluster])
        namespaces[_IN_NAMESPACES] |= targets
        if spec.get("cloudConfig") or spec.get("updateCloudProviderConfig"):
            namespaces[_GUESTS] |= targets
        # Pools that the provider creates have no namespace.
        configs = ("loadBalancerConfig", "vmNetworkConfig")
        if any(at(spec, config, "ipPool") for config in configs):
            namespaces[_POOLS].add("")

    group = CLUSTER_ROLE_BINDINGS.group
    bindings = CLUSTER_ROLE_BINDINGS.plural
    rights = {
        Right(
            namespace="",
            group=group,
            resource=bindings,
            verb="patch",
            name=f"{GUESTS_PREFIX}{name}",
        )
        for name in namespaces[_GUESTS]
    }

    for role in _shipped_roles():
        rights.update(_role_rights(role, namespaces))
    return sorted(rights - AHEAD - OPTIONAL)


def import_rights(clusters: Iterable[Obj]) -> list[Right]:
    """Return the rights to import the images that these HarvesterClusters declare.

    An account can do without: Harvester may have the images, or get them by hand.
    """
    declared = (imports(dict_at(cluster, "spec")) for cluster in clusters)
    namespaces = {image.namespace for images in declared for image in images.values()}
    roles = (role for role in _shipped_roles() if role["metadata"]["name"] == _IMAGES)
    return sorted(right for role in roles for right in _role_rights(role, {_IMAGES: namespaces}))


def backup_rights(clusters: Iterable[Obj]) -> list[Right]:
    """Return the rights to back up replaced control plane machines of these HarvesterClusters.

    An account can do without: upgrades then make no backups.
    """
    backed_up = [cluster for cluster in clusters if at(cluster, "spec", "controlPlaneBackups")]
    namespaces = set(target_namespaces(backed_up))
    roles = (role for role in _shipped_roles() if role["metadata"]["name"] == _BACKUPS)
    return sorted(right for role in roles for right in _role_rights(role, {_BACKUPS: namespaces}))


def optional_flags(rights: Collection[Right]) -> str:
    """Return the arguments of `caphv identity create` that grant those rights that need one."""
    creates_pools = any(
        right.resource == IP_POOLS.plural and right.verb in ("create", "delete") for right in rights
    )
    flags = " --create-ip-pools" if creates_pools else ""
    namespaces = sorted({right.namespace for right in rights if right.resource == IMAGES.plural})
    flags += "".join(f" --import-images {namespace}" for namespace in namespaces)
    has_backups = any(right.resource == VM_BACKUPS.plural for right in rights)
    return f"{flags} --back-up-vms" if has_backups else flags


def _shipped_roles() -> list[Obj]:
    """Read the roles for accounts on Harvester."""
    path = data.folder("deploy/harvester") / "clusterroles.yaml"
    return load_yaml_all(path.read_text(encoding="utf-8"))


async def find_denied(client: ApiClient, rights: Collection[Right]) -> list[Right]:
    """Ask Harvester which of these rights the client's account lacks.

    Raises `ApiError`, `Unreachable`.
    """
    answers = await asyncio.gather(
        *(client.create(SELF_SUBJECT_ACCESS_REVIEWS, _review(right)) for right in rights)
    )
    return [
        right
        for right, answer in zip(rights, answers, strict=True)
        if not answer["status"].get("allowed")
    ]


def describe(rights: Iterable[Right]) -> Iterator[str]:
    """Describe rights, with one text for all verbs on one resource in one namespace."""
    verbs_by_object: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for right in sorted(rights):
        resource = f"{right.resource}.{right.group}".rstrip(".")
        verbs_by_object[right.namespace, resource, right.name].append(right.verb)

    for (namespace, resource, name), verbs in verbs_by_object.items():
        where = f"in namespace {namespace}" if namespace else "in all namespaces"
        yield f"{', '.join(verbs)} {resource}{f' {name}' if name else ''} {where}"


def _role_rights(role: Obj, namespaces: dict[str, set[str]]) -> Iterator[Right]:
    """Yield the rights of a role, in each namespace where an account has it.

    :param role: a Role or a ClusterRole
    :param namespaces: namespaces by name of a ClusterRole; others hold in all namespaces
    """
    metadata = role["metadata"]
    places = namespaces.get(metadata["name"], {""})
    if role["kind"] == "Role":
        places = {metadata["namespace"]}

    for rule in role["rules"]:
        rule_names = rule.get("resourceNames") or [""]
        rights = product(places, rule["apiGroups"], rule["resources"], rule["verbs"], rule_names)
        yield from starmap(Right, rights)


def _review(right: Right) -> Obj:
    """Return the request that asks whether an account has a right."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "namespace": right.namespace,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "verb": right.verb,
        "name": right.name,
    }

    return {
        "apiVersion": SELF_SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SELF_SUBJECT_ACCESS_REVIEWS.kind,
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
