"""Reads Harvesters and workload clusters, with the credentials that the management cluster holds for them.

Deep reads cost requests to servers that may be slow or unreachable. Each server has a deadline of its own, so that one
that does not answer is reported and does not delay the others. Identities are untrusted input, here as in the provider:
kubeconfigs that run programs or read files are refused, and those that do not verify their server unless the user
allows it: who answers in its place would have a token that may create VMs.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from caphv.api import names, resources
from caphv.api.counting import counted
from caphv.api.object import NODES, PERSISTENT_VOLUME_CLAIMS, SECRETS, SERVICES, Key, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, NotFound, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig
from overview.objects import HarvesterObjects, Unseen
from overview.reader import list_all, unseen

# A server that answers nothing for so long is given up, and any after this many times as long: one with thousands of
# objects takes more than that for all of its pages.
HARVESTER_SECONDS = 15.0
WORKLOAD_SECONDS = 6.0
_LONGEST = 20
_SERVERS_AT_ONCE = 16
# Of a whole command, whatever it reads: a flag of the user, which no code on the way decides about.
_insecure_allowed = ContextVar("insecure_allowed", default=False)
_CLUSTER_WIDE: dict[str, Resource] = {"hosts": NODES, "pools": resources.IP_POOLS}
# What only checks of a whole Harvester need.
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


@dataclass(frozen=True, slots=True)
class Account:
    """Credentials of one identity Secret, and the target namespaces of the clusters that use it."""

    identity: Key
    access: Kubeconfig
    namespaces: frozenset[str] = frozenset()


@dataclass(slots=True)
class Harvesters:
    """What all Harvesters hold, by identity Secret; identities of one Harvester share it."""

    by_identity: dict[Key, HarvesterObjects] = field(default_factory=dict)
    accounts: dict[Key, Account] = field(default_factory=dict)
    unseen: list[Unseen] = field(default_factory=list)

    def all(self) -> list[HarvesterObjects]:
        """Each Harvester once."""
        return list({id(found): found for found in self.by_identity.values()}.values())

    def of(self, harvester_cluster: Obj) -> HarvesterObjects | None:
        """The Harvester of a HarvesterCluster; None where it could not be read."""
        return self.by_identity.get(identity_of(harvester_cluster))


def identity_of(harvester_cluster: Obj) -> Key:
    """Namespace and name of the identity Secret."""
    secret = (harvester_cluster.get("spec") or {}).get("identitySecret") or {}
    return Key(str(secret.get("namespace") or ""), str(secret.get("name") or ""))


@contextmanager
def insecure_allowed() -> Iterator[None]:
    """In this block, also read kubeconfigs that do not verify their server."""
    token = _insecure_allowed.set(True)
    try:
        yield
    finally:
        _insecure_allowed.reset(token)


async def read_harvesters(
    client: ApiClient, harvester_clusters: Iterable[Obj], step: Callable[[str], None] = lambda _text: None
) -> Harvesters:
    """Read the Harvesters of these HarvesterClusters. Never raises: what cannot be read is in the answer."""
    step("reading identities")
    accounts, hidden = await read_accounts(client, harvester_clusters)
    found = Harvesters(accounts={account.identity: account for account in accounts}, unseen=hidden)
    groups: dict[tuple[str, str], list[Account]] = {}
    for account in found.accounts.values():
        groups.setdefault((account.access.server, account.access.ca), []).append(account)
    step(f"reading {counted(len(groups), 'Harvester')}")
    limit = asyncio.Semaphore(_SERVERS_AT_ONCE)
    await asyncio.gather(*(_harvester(found, accounts, limit) for accounts in groups.values()))
    return found


async def read_accounts(
    client: ApiClient, harvester_clusters: Iterable[Obj], given: Mapping[Key, Obj] = MappingProxyType({})
) -> tuple[list[Account], list[Unseen]]:
    """Read the identities of HarvesterClusters, by namespace and name, and why some could not be read.

    Secrets that are `given` are taken in place of those of the management cluster.
    """
    namespaces: dict[Key, set[str]] = {}
    for obj in harvester_clusters:
        targets = namespaces.setdefault(identity_of(obj), set())
        if target := (obj.get("spec") or {}).get("targetNamespace"):
            targets.add(str(target))
    read = await asyncio.gather(
        *(_account(client, key, frozenset(namespaces[key]), given.get(key)) for key in sorted(namespaces))
    )
    accounts = [account for account in read if isinstance(account, Account)]
    return accounts, [each for each in read if isinstance(each, Unseen)]


async def sharing_token(client: ApiClient, secrets: Iterable[Key], token: str) -> tuple[list[str], list[str]]:
    """Return which identity Secrets hold a token, and which cannot be read. No Harvester is asked.

    A kubeconfig counts whose certificates or server cannot be used: it may be corrected, and its token is valid.
    """
    sharing, unread = [], []
    for secret in sorted(secrets):
        try:
            with insecure_allowed():
                access = await read_access(client, secret)
        except (NotFound, ValueError):
            continue  # no token that could be used; ValueError: of a kubeconfig, or of a name that is empty
        except (ApiError, Unreachable):
            unread.append(str(secret))
            continue
        if access.token == token:
            sharing.append(str(secret))
    return sharing, unread


async def read_nodes(client: ApiClient, clusters: Iterable[Key]) -> dict[Key, list[Obj] | Unseen]:
    """Read the Nodes of workload clusters; of each, why they could not be read."""
    limit = asyncio.Semaphore(_SERVERS_AT_ONCE)

    async def read(key: Key) -> tuple[Key, list[Obj] | Unseen]:
        what = f"Nodes of cluster {key}"
        try:
            async with limit:
                access = await read_access(client, Key(key.namespace, f"{key.name}-kubeconfig"), "value")
                return key, await nodes_of(access)
        except (ApiError, Unreachable) as error:
            return key, unseen(what, error)
        except (KubeconfigError, TimeoutError) as error:
            return key, Unseen(what, str(error) or f"no answer within {WORKLOAD_SECONDS:.0f} s")

    return dict(await asyncio.gather(*map(read, clusters)))


async def nodes_of(access: Kubeconfig) -> list[Obj]:
    """Read the Nodes of one workload cluster. Raises `ApiError`, `Unreachable`, `TimeoutError`, `KubeconfigError`."""
    async with answering_client(access, "workload", WORKLOAD_SECONDS) as client:
        return await list_all(client, NODES)


@asynccontextmanager
async def answering_client(access: Kubeconfig, name: str, seconds: float, **options: Any) -> AsyncIterator[ApiClient]:
    """Lend a client as long as its server answers: each answer grants `seconds` more, up to 20 times `seconds`.

    `options` are those of `ApiClient`. Raises `KubeconfigError`, and `TimeoutError` in the block.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + _LONGEST * seconds

    def answered(status: int, _duration: float | None) -> None:
        with suppress(RuntimeError):  # an answer that comes after the end
            if status:
                deadline.reschedule(min(end, loop.time() + seconds))

    client = access.client(name=name, user_agent="caphv-cli", timeout=seconds, on_response=answered, **options)
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield client
    finally:
        await client.close()


async def read_access(client: ApiClient, secret: Key, field_name: str = "kubeconfig") -> Kubeconfig:
    """Read a kubeconfig in a Secret, which verifies its server unless in a block of `insecure_allowed`.

    Raises `ApiError`, `Unreachable`, `KubeconfigError`.
    """
    return access_of(secret, await client.get(SECRETS, secret.name, secret.namespace), field_name)


def access_of(name: Key, secret: Obj, field_name: str = "kubeconfig") -> Kubeconfig:
    """Return the kubeconfig in a Secret, also in one of a file that has it as text. Raises `KubeconfigError`."""
    text = (secret.get("stringData") or {}).get(field_name)
    content = (secret.get("data") or {}).get(field_name)
    if not (text or content):
        raise KubeconfigError(f"Secret {name} has no key {field_name}")
    try:
        decoded = str(text).encode() if text else base64.b64decode(content or "")
    except (ValueError, TypeError):
        raise KubeconfigError(f"Secret {name}: key {field_name} is not base64") from None

    access = parse_kubeconfig(decoded, allow_insecure=True)
    if access.insecure and not _insecure_allowed.get():
        raise KubeconfigError(
            f"insecure-skip-tls-verify: credentials are not sent to {access.server}, which this kubeconfig does not "
            "verify. Add certificate-authority-data, or, where the command has it, use --allow-insecure-identities"
        )
    return access


async def read_harvester(
    client: ApiClient, namespaces: Iterable[str], *, surroundings: bool = False
) -> HarvesterObjects:
    """Read one Harvester with one client; with `surroundings` also images, keys, networks and settings.

    Raises `ApiError` and `Unreachable` when it does not answer at all.
    """
    found = HarvesterObjects(server=client.server, namespaces=frozenset(namespaces))
    wide = _CLUSTER_WIDE | (_SURROUNDINGS if surroundings else {})
    await _probe(client, found)
    await asyncio.gather(
        *(_list(client, found, name, resource) for name, resource in wide.items()),
        _list_services(client, found),
        *(
            _list(client, found, name, resource, namespace)
            for name, resource in _IN_NAMESPACE.items()
            for namespace in sorted(found.namespaces)
        ),
    )
    return found


async def _account(
    client: ApiClient, key: Key, namespaces: frozenset[str], given: Obj | None = None
) -> Account | Unseen:
    try:
        access = access_of(key, given) if given else await read_access(client, key)
        access.connection()  # raises for certificate data that cannot be used, here where the Secret is known
        return Account(key, access, namespaces)
    except (ApiError, Unreachable) as error:
        return unseen(f"identity Secret {key}", error)
    except ValueError as error:  # of a kubeconfig, or of a name that is empty
        return Unseen(f"identity Secret {key}", str(error))


async def _harvester(found: Harvesters, accounts: list[Account], limit: asyncio.Semaphore) -> None:
    """Read one Harvester by all accounts that lead to it: each sees its own namespaces, the first one the rest."""
    whole: HarvesterObjects | None = None
    async with limit:
        for account in sorted(accounts, key=lambda account: account.identity):
            what = f"Harvester {account.access.server} by identity {account.identity}"
            try:
                async with answering_client(account.access, "harvester", HARVESTER_SECONDS) as client:
                    part = await read_harvester(client, account.namespaces)
            except (ApiError, Unreachable) as error:
                found.unseen.append(unseen(what, error))
                continue
            except TimeoutError:
                found.unseen.append(Unseen(what, f"no answer within {HARVESTER_SECONDS:.0f} s"))
                continue
            whole = part if whole is None else _joined(whole, part)
            found.by_identity[account.identity] = whole
    for account in accounts:
        if whole is not None and account.identity in found.by_identity:
            found.by_identity[account.identity] = whole


def _joined(one: HarvesterObjects, other: HarvesterObjects) -> HarvesterObjects:
    """What two accounts see of one Harvester."""
    fields: dict[str, Any] = {}
    for name in (*_CLUSTER_WIDE, *_SURROUNDINGS, *_IN_NAMESPACE, "services"):
        objs = {str(obj["metadata"].get("uid") or obj["metadata"]): obj for obj in getattr(one, name)}
        objs |= {str(obj["metadata"].get("uid") or obj["metadata"]): obj for obj in getattr(other, name)}
        fields[name] = list(objs.values())
    hidden = {str(each.what) for each in one.unseen} & {str(each.what) for each in other.unseen}
    missing = {each.what: each for each in (*one.unseen, *other.unseen)}
    kept = [each for what, each in missing.items() if what in hidden or " of namespace " in what]
    namespaces = one.namespaces | other.namespaces
    fields |= {"unseen": kept, "unserved": [each for each in one.unserved if each in other.unserved]}
    return HarvesterObjects(one.server, one.version or other.version, namespaces=namespaces, **fields)


async def _probe(client: ApiClient, found: HarvesterObjects) -> None:
    """Ask for the version first: a server that does not answer would cost the deadline of each list."""
    answer = await client.request("GET", "/version")
    found.version = str(answer.get("gitVersion") or "")


async def _list(client: ApiClient, found: HarvesterObjects, name: str, resource: Resource, namespace: str = "") -> None:
    try:
        objs = await list_all(client, resource, namespace)
    except NotFound:
        found.unserved.append(str(resource))  # a Harvester without the kind has no such object
        return
    except (ApiError, Unreachable) as error:
        found.unseen.append(unseen(f"{resource}{f' of namespace {namespace}' if namespace else ''}", error))
        return
    getattr(found, name).extend(objs)


async def _list_services(client: ApiClient, found: HarvesterObjects) -> None:
    try:
        found.services = await list_all(client, SERVICES, label_selector=f"{names.SERVICE_LB_LABEL}=true")
    except (ApiError, Unreachable) as error:
        found.unseen.append(unseen(str(SERVICES), error))
