"""Reads what the doctor's checks need: the management cluster, and each Harvester by each identity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from caphv.api import names, resources
from caphv.api.object import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    LEASES,
    STORAGE_CLASSES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Key,
    Obj,
    Resource,
    key_of,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, Unauthorized, Unreachable
from caphv.runtime.kubeconfig import KubeconfigError
from overview.doctor import rights
from overview.doctor.harvester import HarvesterFacts
from overview.doctor.management import ManagementFacts
from overview.harvester import HARVESTER_SECONDS, answering_client, identity_of, read_access, read_harvester
from overview.objects import ManagementObjects
from overview.poolreader import Machines, read_machines, read_pools
from overview.provider import renewed_at
from overview.reader import list_all, unseen

_WEBHOOK_CONFIGURATION = "caphv-validating-webhook-configuration"
_CERT_MANAGER = "app.kubernetes.io/instance=cert-manager"
_HARVESTER = Key("harvester-system", "harvester")


async def read_management_facts(client: ApiClient, namespace: str) -> ManagementFacts:
    """Read what the checks of the management cluster need. Never raises for a single missing right."""
    facts = ManagementFacts(namespace)
    facts.version = str((await client.request("GET", "/version")).get("gitVersion") or "")
    group = await client.request("GET", f"/apis/{resources.CLUSTER_API_GROUP}")
    facts.cluster_api = tuple(str(version["version"]) for version in group["versions"])
    kinds = (resources.HARVESTER_CLUSTERS, resources.HARVESTER_MACHINES)
    crds, facts.deployment, leases, facts.webhooks = await asyncio.gather(
        asyncio.gather(*(_get(client, facts, CUSTOM_RESOURCE_DEFINITIONS, "", str(kind)) for kind in kinds)),
        _get(client, facts, DEPLOYMENTS, namespace, "caphv-controller-manager"),
        asyncio.gather(
            *(_get(client, facts, LEASES, namespace, name) for name in (names.LEASE, names.HEARTBEAT_LEASE))
        ),
        _get(client, facts, VALIDATING_WEBHOOK_CONFIGURATIONS, "", _WEBHOOK_CONFIGURATION),
    )
    facts.crds = [crd for crd in crds if crd]
    facts.lease = max(filter(None, leases), key=renewed_at, default=None)
    facts.certificates = await _list(client, facts, resources.CERTIFICATES, namespace)
    facts.fleet_clusters = await _list(client, facts, resources.FLEET_CLUSTERS, "")
    if facts.fleet_clusters:
        facts.fleet = await _get(client, facts, DEPLOYMENTS, "cattle-fleet-system", "fleet-controller")
    with suppress(ApiError):
        facts.cert_manager = await list_all(client, DEPLOYMENTS, label_selector=_CERT_MANAGER)
    entries = (facts.webhooks or {}).get("webhooks") or []
    service = next(((entry.get("clientConfig") or {}).get("service") for entry in entries), None)
    if service:
        selector = f"kubernetes.io/service-name={service['name']}"
        facts.endpoints = await _list(client, facts, ENDPOINT_SLICES, str(service["namespace"]), selector)
    return facts


async def read_harvester_facts(
    client: ApiClient, objects: ManagementObjects, identities: Iterable[Key], namespace: str
) -> list[HarvesterFacts]:
    """Read each Harvester by each of these identities. Never raises for one that does not answer."""
    machines: Machines | None = None
    clusters: frozenset[Key] | None = None
    with suppress(ApiError):
        machines = await read_machines(client, namespace)
        clusters = frozenset(map(key_of, await list_all(client, resources.HARVESTER_CLUSTERS)))
    found = await asyncio.gather(*(_facts(client, objects, identity, machines) for identity in sorted(identities)))
    for facts in found:
        facts.all_clusters = clusters
    return found


async def _facts(
    client: ApiClient, objects: ManagementObjects, identity: Key, machines: Machines | None
) -> HarvesterFacts:
    facts = HarvesterFacts(identity)
    facts.clusters = [obj for obj in objects.harvester_clusters if identity_of(obj) == identity]
    clusters = {(key_of(obj).namespace, _cluster_name(obj)) for obj in facts.clusters}
    facts.machines = [
        obj for obj in objects.harvester_machines if (key_of(obj).namespace, _cluster_name(obj)) in clusters
    ]
    facts.owners = {key_of(obj): obj for obj in objects.clusters}
    if machines is not None:
        facts.management_cluster = machines.management_cluster
        facts.all_machines = frozenset(machines.objects) if machines.namespaces is None else None
    try:
        facts.access = await read_access(client, identity)
    except (ApiError, Unreachable, KubeconfigError, ValueError) as error:
        facts.error = str(error)
        return facts
    try:
        async with answering_client(facts.access, "harvester", HARVESTER_SECONDS, max_in_flight=16) as harvester:
            await _ask(facts, harvester, machines)
    except Unauthorized as error:
        facts.error, facts.rejected = f"it rejects the credentials: {error}", True
    except Unreachable as error:
        facts.error = f"it is unreachable: {error}"
    except (ApiError, KubeconfigError) as error:
        facts.error = f"it refuses requests: {error}"
    except TimeoutError:
        facts.error = f"no answer within {HARVESTER_SECONDS:.0f} s"
    return facts


async def _ask(facts: HarvesterFacts, harvester: ApiClient, machines: Machines | None) -> None:
    namespaces = frozenset(str(obj["spec"]["targetNamespace"]) for obj in facts.clusters)
    facts.objects = await read_harvester(harvester, namespaces, surroundings=True)
    with suppress(ApiError):
        facts.denied = await rights.denied(harvester, [*rights.needed(facts.clusters), *rights.AHEAD])
    with suppress(ApiError):
        # As the provider does, whose role allows it to list this one name.
        listed = await harvester.list(
            DEPLOYMENTS, _HARVESTER.namespace, field_selector=f"metadata.name={_HARVESTER.name}"
        )
        facts.deployment = next(iter(listed["items"]), None)
    with suppress(ApiError):
        facts.storage_classes = await list_all(harvester, STORAGE_CLASSES)
    if machines is not None:
        with suppress(ApiError):
            facts.pools = (await read_pools(harvester, machines, namespaces)).reports()


async def _get(client: ApiClient, facts: ManagementFacts, resource: Resource, namespace: str, name: str) -> Obj | None:
    try:
        return await client.get(resource, name, namespace)
    except NotFound:
        return None
    except (ApiError, Unreachable) as error:
        facts.unseen.append(unseen(resource.plural, error))
        return None


async def _list(
    client: ApiClient, facts: ManagementFacts, resource: Resource, namespace: str, selector: str = ""
) -> list[Obj]:
    try:
        return await list_all(client, resource, namespace, label_selector=selector)
    except NotFound:
        return []
    except (ApiError, Unreachable) as error:
        facts.unseen.append(unseen(resource.plural, error))
        return []


def _cluster_name(obj: Obj) -> str:
    return str((obj["metadata"].get("labels") or {}).get(names.CLUSTER_NAME_LABEL, ""))
