"""Read the input of the doctor's checks: the management cluster, and Harvesters by identity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress

from caphv.api import names, resources
from caphv.api.clusterapi import cluster_name
from caphv.api.identities import identity_of, is_cluster_identity, not_allowed, owner_allows
from caphv.api.object import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    LEASES,
    NAMESPACES,
    SECRETS,
    SERVICES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Key,
    Obj,
    Resource,
    at,
    dict_at,
    key_of,
    labels_of,
    text_at,
)
from caphv.api.supported import release_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import (
    ApiError,
    Forbidden,
    NotFound,
    RequestError,
    Unauthorized,
    Unreachable,
)
from caphv.runtime.kubeconfig import KubeconfigError
from operations.capacity.poolreader import read_pools
from operations.doctor import rancher, rights
from operations.doctor.harvesterfacts import MALFORMED, HarvesterFacts, describe_malformed
from operations.doctor.management import ManagementFacts
from operations.doctor.sharedreading import read_shared
from operations.read.accounts import namespace_of, read_credentials, read_permission
from operations.read.harvester import read_harvester
from operations.read.harvesterclient import HarvesterClient
from operations.read.harvestersettings import read_deployment
from operations.read.management import list_all, text_without_server, unseen
from operations.read.objects import ManagementObjects, target_namespaces
from operations.read.owners import OwnerObjects, read_owners
from operations.read.servers import HARVESTER_SECONDS, answering_client
from operations.status.provider import newest_lease, sandbox_of

_WEBHOOK_CONFIGURATION = "caphv-validating-webhook-configuration"
_WEBHOOK_SERVICE = "caphv-webhook-service"
_CRDS = tuple(
    f"{kind}.{names.GROUP}"
    for kind in (
        "harvesterclusters",
        "harvesterclustertemplates",
        "harvestermachines",
        "harvestermachinetemplates",
        "harvesterclusteridentities",
    )
)
# Programs by component: namespace and Deployment. Turtles installs the add-on provider in another
# namespace (rancher/turtles v0.27.0-rc.7, `charts/rancher-turtles-providers/values.yaml`).
_FLEET_PROGRAMS = (
    ("fleet", "cattle-fleet-system", "fleet-controller"),
    ("caapf", "caapf-system", "caapf-controller-manager"),
    ("caapf", "fleet-addon-system", "caapf-controller-manager"),
    ("turtles", "cattle-turtles-system", "rancher-turtles-controller-manager"),
)
_CERT_MANAGER = "app.kubernetes.io/name in (cert-manager,cainjector,webhook)"
_INSTANCE = "app.kubernetes.io/instance"
_INGRESS = Key("kube-system", "ingress-expose")


async def read_management_facts(client: ApiClient, namespace: str) -> ManagementFacts:
    """Read the input of the checks of the management cluster.

    `unseen` of the answer names what may not be read. Raises `ApiError` and `Unreachable` if the
    server does not answer at all.
    """
    facts = ManagementFacts(namespace)
    facts.version = str((await client.request("GET", "/version")).get("gitVersion") or "")
    group = await client.request("GET", f"/apis/{resources.CLUSTER_API_GROUP}")
    facts.cluster_api = tuple(str(version["version"]) for version in group["versions"])

    lease_names = (names.LEASE, names.HEARTBEAT_LEASE)
    crds, facts.deployment, leases, configurations = await asyncio.gather(
        asyncio.gather(
            *(_get(client, facts, CUSTOM_RESOURCE_DEFINITIONS, "", name) for name in _CRDS)
        ),
        _get(client, facts, DEPLOYMENTS, namespace, "caphv-controller-manager"),
        asyncio.gather(*(_get(client, facts, LEASES, namespace, name) for name in lease_names)),
        _list(client, facts, VALIDATING_WEBHOOK_CONFIGURATIONS, ""),
    )
    _sort_webhooks(facts, configurations)
    facts.crds = [crd for crd in crds if crd]
    facts.absent_crds = [name for name, crd in zip(_CRDS, crds, strict=True) if crd is None]

    if facts.deployment is None:
        obj = await _get(client, facts, NAMESPACES, "", namespace)
        facts.has_namespace = bool(obj)
        facts.sandbox = sandbox_of(obj)

    # A provider with a filter prefixes the name of its Lease with its share. It may be alive where
    # a removed provider has left its Lease behind.
    with suppress(RequestError):
        leases += await list_all(client, LEASES, namespace)
    facts.lease = newest_lease(filter(None, leases))
    with suppress(RequestError):
        facts.other_leases = [
            lease
            for lease in await list_all(client, LEASES)
            if key_of(lease).name in lease_names and key_of(lease).namespace != namespace
        ]

    facts.extensions = await _list(client, facts, resources.EXTENSION_CONFIGS, "")
    if len(facts.extensions) > 1:
        facts.namespaces = await _list(client, facts, NAMESPACES, "")
    await _read_fleet(client, facts)
    await _read_rancher(client, facts)
    await _read_webhook_service(client, facts)
    return facts


async def _read_fleet(client: ApiClient, facts: ManagementFacts) -> None:
    """Fill in the clusters of Fleet, and the releases of its programs if it has clusters."""
    facts.fleet_clusters = await _list(client, facts, resources.FLEET_CLUSTERS, "")
    for component, namespace, name in _FLEET_PROGRAMS if facts.fleet_clusters else ():
        # A refusal hides a release. As an entry of `unseen` it would also hide whether the provider
        # runs, because that is a Deployment, too.
        with suppress(RequestError):
            deployment = await client.get(DEPLOYMENTS, name, namespace)
            if release := release_of(component, deployment):
                facts.releases[component] = release


async def _read_rancher(client: ApiClient, facts: ManagementFacts) -> None:
    """Fill in Rancher's settings, if it runs here."""
    settings = await asyncio.gather(
        *(_get(client, facts, resources.RANCHER_SETTINGS, "", name) for name in rancher.SETTINGS)
    )
    if any(settings):
        facts.rancher = dict(zip(rancher.SETTINGS, map(rancher.value_of, settings), strict=True))


async def _read_webhook_service(client: ApiClient, facts: ManagementFacts) -> None:
    """Fill in what the webhook needs: certificates, cert-manager, endpoints of its Service."""
    facts.certificates = await _list(client, facts, resources.CERTIFICATES, facts.namespace)
    with suppress(RequestError):
        found = await list_all(client, DEPLOYMENTS, label_selector=_CERT_MANAGER)
        facts.cert_manager = list(_of_cert_manager(found))

    entries = at(facts.webhooks, "webhooks")
    service = at(entries[0], "clientConfig", "service") if entries else None
    if service:
        selector = f"kubernetes.io/service-name={service['name']}"
        facts.endpoints = await _list(
            client, facts, ENDPOINT_SLICES, str(service["namespace"]), selector
        )


def _of_cert_manager(deployments: Iterable[Obj]) -> Iterator[Obj]:
    """Yield the Deployments of the same release as cert-manager's controller.

    Names of Helm releases differ, and other projects have a webhook, too (the chart's templates).
    """
    objs = list(deployments)
    releases = {
        labels.get(_INSTANCE)
        for labels in map(labels_of, objs)
        if labels.get("app.kubernetes.io/name") == "cert-manager"
    }
    return (obj for obj in objs if labels_of(obj).get(_INSTANCE) in releases)


def _sort_webhooks(facts: ManagementFacts, configurations: Iterable[Obj]) -> None:
    """Tell the provider's configuration from those that another installation has left.

    The Go provider's manifests name it differently in some releases. Where it is the only one, it
    counts as the provider's.
    """
    service = Key(facts.namespace, _WEBHOOK_SERVICE)
    others = []
    for configuration in configurations:
        if key_of(configuration).name == _WEBHOOK_CONFIGURATION:
            facts.webhooks = configuration
        elif service in map(_service_of, configuration.get("webhooks") or ()):
            others.append(configuration)

    if facts.webhooks is None and others:
        facts.webhooks = others[0]
    else:
        facts.former_webhooks = others


def _service_of(webhook: Obj) -> Key:
    """Return the Service to which a webhook leads, empty for a URL."""
    service = dict_at(webhook, "clientConfig", "service")
    return Key(text_at(service, "namespace"), text_at(service, "name"))


async def read_harvester_facts(
    client: ApiClient,
    objects: ManagementObjects,
    identities: Iterable[Key],
    namespace: str,
    provider_namespace: str = "",
) -> list[HarvesterFacts]:
    """Read each Harvester by each identity. A Harvester that does not answer raises nothing.

    :param client: client of the management cluster
    :param objects: the objects of the management cluster
    :param identities: Secrets with credentials
    :param namespace: the namespace of owners of addresses if not all namespaces may be read
    :param provider_namespace: the only namespace whose Secrets a HarvesterClusterIdentity may name;
        empty if it is not known
    """
    # Without these, orphans and leaked addresses cannot be distinguished from objects of others.
    owners: OwnerObjects | None = None
    with suppress(RequestError):
        owners = await read_owners(client, namespace)
    harvesters = await asyncio.gather(
        *(
            _read_facts(client, objects, identity, owners, provider_namespace)
            for identity in sorted(identities)
        )
    )
    await read_shared(harvesters)
    return harvesters


async def _read_facts(
    client: ApiClient,
    objects: ManagementObjects,
    identity: Key,
    owners: OwnerObjects | None,
    provider_namespace: str,
) -> HarvesterFacts:
    """Read a Harvester by one identity; `error` of the answer says why it could not be read.

    :param client: client of the management cluster
    :param objects: the objects of the management cluster
    :param identity: the Secret with the credentials
    :param owners: owners of objects on Harvester, None if they may not be read
    :param provider_namespace: namespace of the provider, empty if it is not known
    """
    facts = HarvesterFacts(identity)
    facts.owners = {key_of(obj): obj for obj in objects.clusters}
    facts.recorded_owners = owners
    try:
        await _read_identity(client, objects, facts, provider_namespace)
    except (Forbidden, Unreachable) as error:
        facts.hidden = str(error)
    except (ApiError, KubeconfigError, ValueError) as error:
        facts.error = str(error)
    if facts.kubeconfig is None or facts.error:
        return facts

    try:
        async with answering_client(
            facts.kubeconfig, "harvester", HARVESTER_SECONDS, max_in_flight=16
        ) as harvester:
            await _fill_in(facts, harvester)
    except Unauthorized as error:
        facts.error = f"it rejects the credentials: {error}"
        facts.rejected = True
    except Unreachable as error:
        why = text_without_server(error, facts.kubeconfig.server)
        facts.error = f"it is unreachable: {why}"
    except (ApiError, KubeconfigError) as error:
        facts.error = f"it refuses requests: {error}"
    except TimeoutError:
        facts.error = f"no answer within {HARVESTER_SECONDS:.0f} s"
    except MALFORMED as error:
        facts.error = describe_malformed(error)
    return facts


async def _read_identity(
    client: ApiClient, objects: ManagementObjects, facts: HarvesterFacts, provider_namespace: str
) -> None:
    """Fill in who may use an identity, and its credentials if there are any.

    Raises `ApiError`, `Unreachable`, `KubeconfigError`, `ValueError`.
    """
    naming = [obj for obj in objects.harvester_clusters if identity_of(obj) == facts.identity]
    permission = await read_permission(
        client, facts.identity, map(namespace_of, naming), provider_namespace
    )
    facts.refused = permission.refused
    facts.unknown = permission.unread
    facts.clusters = [obj for obj in naming if namespace_of(obj) not in permission.denied]
    clusters = set(map(_cluster_of, facts.clusters))
    facts.machines = [obj for obj in objects.harvester_machines if _cluster_of(obj) in clusters]

    facts.secret = permission.secret
    facts.not_allowed = await _not_allowed(client, facts.identity, facts.clusters)
    if facts.secret is None:
        facts.error = "" if permission.denied else permission.why_none
        return
    facts.renewal_problem = permission.problem
    facts.kubeconfig, facts.renewed = await read_credentials(client, permission, facts.secret)


async def _not_allowed(
    client: ApiClient, identity: Key, harvester_clusters: Iterable[Obj]
) -> dict[str, str]:
    """Return by namespace why the owner of an identity Secret does not let its clusters use it.

    The provider refuses them. The Go provider does not know the annotation, and serves them.

    :param client: client of the management cluster
    :param identity: the key of the identity
    :param harvester_clusters: the HarvesterClusters that name it
    """
    others = {namespace_of(obj) for obj in harvester_clusters} - {identity.namespace}
    if is_cluster_identity(identity) or not others:
        return {}
    try:
        secret = await client.get(SECRETS, identity.name, identity.namespace)
    except NotFound:
        return {}
    return {
        namespace: not_allowed(f"Secret {identity}", namespace)
        for namespace in others
        if not owner_allows(secret, namespace)
    }


async def _fill_in(facts: HarvesterFacts, harvester: ApiClient) -> None:
    """Fill facts with what a Harvester answers; what it refuses stays empty."""
    namespaces = target_namespaces(facts.clusters)
    objects = await read_harvester(harvester, namespaces, surroundings=True)
    with suppress(ApiError):
        needed = [
            *rights.needed_rights(facts.clusters),
            *rights.import_rights(facts.clusters),
            *rights.backup_rights(facts.clusters),
            *rights.AHEAD,
        ]
        facts.denied = await rights.find_denied(harvester, needed)
    with suppress(ApiError):
        facts.deployment = await read_deployment(harvester)
    with suppress(ApiError):
        facts.ingress = await harvester.get(SERVICES, _INGRESS.name, _INGRESS.namespace)
    if facts.recorded_owners is not None:
        with suppress(ApiError):
            client = HarvesterClient(harvester, namespaces)
            facts.pools = (await read_pools(client, facts.recorded_owners)).reports()

    # Last, because checks of half of the answers would not say what they miss.
    facts.objects = objects


async def _get(
    client: ApiClient, facts: ManagementFacts, resource: Resource, namespace: str, name: str
) -> Obj | None:
    """Read an object; return None if it does not exist or cannot be read.

    :param client: client of the management cluster
    :param facts: its `unseen` gets the kind if it cannot be read
    :param resource: the kind
    :param namespace: the namespace of the object
    :param name: the name of the object
    """
    try:
        return await client.get(resource, name, namespace)
    except NotFound:
        return None
    except RequestError as error:
        facts.unseen.append(unseen(resource.plural, error))
        return None


async def _list(
    client: ApiClient,
    facts: ManagementFacts,
    resource: Resource,
    namespace: str,
    selector: str = "",
) -> list[Obj]:
    """Read a collection; return an empty list if the kind is absent or cannot be read.

    :param client: client of the management cluster
    :param facts: its `unseen` gets the kind if it cannot be read
    :param resource: the kind
    :param namespace: the namespace to read; empty for all namespaces
    :param selector: selects the objects by label
    """
    try:
        return await list_all(client, resource, namespace, label_selector=selector)
    except NotFound:
        return []
    except RequestError as error:
        facts.unseen.append(unseen(resource.plural, error))
        return []


def _cluster_of(obj: Obj) -> Key:
    """Return the Cluster of an object, by its label."""
    return Key(key_of(obj).namespace, cluster_name(obj))
