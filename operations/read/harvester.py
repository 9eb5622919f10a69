"""Read each Harvester with all its accounts, because they may read different namespaces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from caphv.api import names, resources
from caphv.api.counting import counted
from caphv.api.identities import identity_of
from caphv.api.object import NODES, PERSISTENT_VOLUME_CLAIMS, SERVICES, Key, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, RequestError
from operations.read.accounts import Account, read_accounts
from operations.read.management import list_all, text_without_server, unseen
from operations.read.objects import HarvesterObjects, Unseen
from operations.read.servers import HARVESTER_SECONDS, SERVERS_AT_ONCE, answering_client, server_of

_CLUSTER_WIDE: dict[str, Resource] = {"hosts": NODES, "pools": resources.IP_POOLS}
# The keys are fields of `HarvesterObjects`. Only checks of a whole Harvester need these kinds.
_SURROUNDINGS: dict[str, Resource] = {
    "images": resources.IMAGES,
    "key_pairs": resources.KEY_PAIRS,
    "networks": resources.NETWORKS,
    "settings": resources.HARVESTER_SETTINGS,
}
_IN_NAMESPACE: dict[str, Resource] = {
    "vms": resources.VIRTUAL_MACHINES,
    "instances": resources.VIRTUAL_MACHINE_INSTANCES,
    "claims": PERSISTENT_VOLUME_CLAIMS,
    "load_balancers": resources.LOAD_BALANCERS,
}


@dataclass(slots=True)
class Harvesters:
    """The objects of all Harvesters, by identity Secret; identities of one Harvester share them."""

    by_identity: dict[Key, HarvesterObjects] = field(default_factory=dict)
    accounts: dict[Key, Account] = field(default_factory=dict)
    unseen: list[Unseen] = field(default_factory=list)

    def all(self) -> list[HarvesterObjects]:
        """Return each Harvester once."""
        return list({id(objects): objects for objects in self.by_identity.values()}.values())

    def of(self, harvester_cluster: Obj) -> HarvesterObjects | None:
        """Return the Harvester of a HarvesterCluster; None if it could not be read.

        Also None if the cluster may not use the identity that it names.
        """
        identity = identity_of(harvester_cluster)
        if identity in self.accounts and self.account_of(harvester_cluster) is None:
            return None
        return self.by_identity.get(identity)

    def account_of(self, harvester_cluster: Obj) -> Account | None:
        """Return the credentials of a HarvesterCluster; None if it may not use any."""
        account = self.accounts.get(identity_of(harvester_cluster))
        return account if account and account.serves(harvester_cluster) else None


async def read_harvesters(
    client: ApiClient,
    harvester_clusters: Iterable[Obj],
    step: Callable[[str], None] = lambda _text: None,
) -> Harvesters:
    """Read the Harvesters of these HarvesterClusters.

    Never raises. `unseen` of the answer names what cannot be read.
    """
    step("reading identities")
    accounts, hidden = await read_accounts(client, harvester_clusters)
    harvesters = Harvesters(
        accounts={account.identity: account for account in accounts}, unseen=hidden
    )

    # Identities of one Harvester share its objects.
    groups: dict[tuple[str, str], list[Account]] = {}
    for account in accounts:
        groups.setdefault(server_of(account.kubeconfig), []).append(account)

    step(f"reading {counted(len(groups), 'Harvester')}")
    limit = asyncio.Semaphore(SERVERS_AT_ONCE)
    await asyncio.gather(
        *(_read_by_accounts(harvesters, group, limit) for group in groups.values())
    )
    return harvesters


async def read_harvester(
    client: ApiClient, namespaces: Iterable[str], *, surroundings: bool = False
) -> HarvesterObjects:
    """Read one Harvester with one client.

    Raises `ApiError` or `Unreachable` if it does not answer at all.

    :param client: client of the Harvester
    :param namespaces: the namespaces whose VMs are read
    :param surroundings: whether to read also images, key pairs, networks and settings
    """
    objects = HarvesterObjects(server=client.server, namespaces=frozenset(namespaces))
    # The version comes first, because each list would wait for a server that does not answer.
    version = await client.request("GET", "/version")
    objects.version = str(version.get("gitVersion") or "")

    wide = _CLUSTER_WIDE | (_SURROUNDINGS if surroundings else {})
    await asyncio.gather(
        *(_list(client, objects, name, resource) for name, resource in wide.items()),
        _list_services(client, objects),
        *(
            _list(client, objects, name, resource, namespace)
            for name, resource in _IN_NAMESPACE.items()
            for namespace in sorted(objects.namespaces)
        ),
    )
    return objects


async def _read_by_accounts(
    harvesters: Harvesters, accounts: list[Account], limit: asyncio.Semaphore
) -> None:
    """Read one Harvester with all its accounts.

    Each account may read its own namespaces. Cluster-wide objects are taken from any account.
    """
    objects: HarvesterObjects | None = None
    answering = []
    async with limit:
        for account in sorted(accounts, key=lambda account: account.identity):
            server = account.kubeconfig.server
            access = f"Harvester {server} by identity {account.identity}"
            try:
                async with answering_client(
                    account.kubeconfig, "harvester", HARVESTER_SECONDS
                ) as client:
                    seen = await read_harvester(client, account.namespaces)
            except RequestError as error:
                why = text_without_server(error, server)
                harvesters.unseen.append(replace(unseen(access, error), why=why))
                continue
            except TimeoutError:
                reason = f"no answer within {HARVESTER_SECONDS:.0f} s"
                harvesters.unseen.append(Unseen(access, reason))
                continue

            objects = seen if objects is None else join(objects, seen)
            answering.append(account.identity)

    if objects is not None:
        harvesters.by_identity.update(dict.fromkeys(answering, objects))


def join(first: HarvesterObjects, second: HarvesterObjects) -> HarvesterObjects:
    """Return the objects of one Harvester that either of two accounts sees."""
    fields: dict[str, Any] = {}
    # Both accounts may see the same object.
    for name in (*_CLUSTER_WIDE, *_SURROUNDINGS, *_IN_NAMESPACE, "services"):
        objs = [*getattr(first, name), *getattr(second, name)]
        by_uid = {str(obj["metadata"].get("uid") or obj["metadata"]): obj for obj in objs}
        fields[name] = list(by_uid.values())

    # A cluster-wide kind is unseen only if neither account sees it.
    unseen_by_both = {item.what for item in first.unseen} & {item.what for item in second.unseen}
    items = {item.what: item for item in (*first.unseen, *second.unseen)}
    fields["unseen"] = [
        item for what, item in items.items() if what in unseen_by_both or " of namespace " in what
    ]
    fields["unserved"] = [kind for kind in first.unserved if kind in second.unserved]

    return HarvesterObjects(
        first.server,
        first.version or second.version,
        namespaces=first.namespaces | second.namespaces,
        **fields,
    )


async def _list(
    client: ApiClient,
    objects: HarvesterObjects,
    name: str,
    resource: Resource,
    namespace: str = "",
) -> None:
    """Read a kind into a field of the objects, and record why it cannot be read.

    :param client: client of the Harvester
    :param objects: gets the objects
    :param name: the name of the field
    :param resource: the kind
    :param namespace: the namespace to read; empty for all namespaces
    """
    try:
        objs = await list_all(client, resource, namespace)
    except NotFound:
        # A Harvester without the kind has no such object.
        objects.unserved.append(str(resource))
        return
    except RequestError as error:
        where = f" of namespace {namespace}" if namespace else ""
        objects.unseen.append(unseen(f"{resource}{where}", error))
        return
    getattr(objects, name).extend(objs)


async def _list_services(client: ApiClient, objects: HarvesterObjects) -> None:
    """Read the Services of all namespaces that may hold an address of a pool."""
    selector = f"{names.SERVICE_LB_LABEL}=true"
    try:
        objects.services = await list_all(client, SERVICES, label_selector=selector)
    except RequestError as error:
        objects.unseen.append(unseen(str(SERVICES), error))
