"""Which rights the provider's account needs on Harvester: those of the shipped roles, one by one."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from caphv import data
from caphv.api.names import GUESTS_PREFIX
from caphv.api.object import CLUSTER_ROLE_BINDINGS, SELF_SUBJECT_ACCESS_REVIEWS, Obj
from caphv.api.resources import IMAGES, STORAGE_PROFILES
from caphv.runtime.client import ApiClient
from caphv.runtime.text import load_yaml_all

_IN_NAMESPACES, _GUESTS, _POOLS = "caphv-account-namespace", "caphv-account-guests", "caphv-account-pools"


@dataclass(frozen=True, order=True, slots=True)
class Right:
    """A verb on a resource, in a namespace or in all."""

    namespace: str
    group: str
    resource: str
    verb: str
    name: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {resource}{f' {self.name}' if self.name else ''}"


AHEAD = frozenset({Right("", IMAGES.group, IMAGES.plural, "get")})
"""Rights that Harvester after 1.9 asks for when a VM is created, and no version before (harvester b86f33942:
pkg/webhook/resources/virtualmachine/validator.go, `checkVolumeClaimTemplateEntry`). Accounts made before lack them.
"""

OPTIONAL = frozenset({Right("", STORAGE_PROFILES.group, STORAGE_PROFILES.plural, "get")})
"""Rights without which the provider does with less: disks then have modes of the spec, or those of Longhorn."""


def needed(clusters: Iterable[Obj]) -> list[Right]:
    """Return the rights of the shipped roles that these HarvesterClusters need, without `AHEAD` and `OPTIONAL`."""
    namespaces: dict[str, set[str]] = {_IN_NAMESPACES: set(), _GUESTS: set(), _POOLS: set()}
    for cluster in clusters:
        spec = cluster["spec"]
        target = str(spec["targetNamespace"])
        namespaces[_IN_NAMESPACES].add(target)
        if spec.get("cloudConfig") or spec.get("updateCloudProviderConfig"):
            namespaces[_GUESTS].add(target)
        if any((spec.get(config) or {}).get("ipPool") for config in ("loadBalancerConfig", "vmNetworkConfig")):
            namespaces[_POOLS].add("")
    roles = load_yaml_all((data.folder("deploy/harvester") / "clusterroles.yaml").read_text(encoding="utf-8"))
    bindings = {
        Right("", CLUSTER_ROLE_BINDINGS.group, CLUSTER_ROLE_BINDINGS.plural, "patch", f"{GUESTS_PREFIX}{name}")
        for name in namespaces[_GUESTS]
    }
    return sorted((bindings | {right for role in roles for right in _of_role(role, namespaces)}) - AHEAD - OPTIONAL)


async def denied(client: ApiClient, rights: Iterable[Right]) -> list[Right]:
    """Ask Harvester which of these rights the client's account lacks. Raises `ApiError`, `Unreachable`."""
    wanted = list(rights)
    answers = await asyncio.gather(*(client.create(SELF_SUBJECT_ACCESS_REVIEWS, _review(right)) for right in wanted))
    return [right for right, answer in zip(wanted, answers, strict=True) if not answer["status"].get("allowed")]


def describe(rights: Iterable[Right]) -> Iterator[str]:
    """Say which rights these are, those of one namespace and resource together."""
    grouped: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for right in sorted(rights):
        grouped[right.namespace, f"{right.resource}.{right.group}".rstrip("."), right.name].append(right.verb)
    for (namespace, resource, name), verbs in grouped.items():
        where = f"in namespace {namespace}" if namespace else "in all namespaces"
        yield f"{', '.join(verbs)} {resource}{f' {name}' if name else ''} {where}"


def _of_role(role: Obj, namespaces: dict[str, set[str]]) -> Iterator[Right]:
    metadata = role["metadata"]
    places = {metadata["namespace"]} if role["kind"] == "Role" else namespaces.get(metadata["name"], {""})
    for rule in role["rules"]:
        for place in places:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames") or [""]:
                            yield Right(place, group, resource, verb, name)


def _review(right: Right) -> Obj:
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
        "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
    }
