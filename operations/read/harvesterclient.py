"""Read kinds of a Harvester with all its accounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, RequestError, Unauthorized
from operations.read.management import list_all, unseen
from operations.read.objects import Unseen

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HarvesterClient:
    """A Harvester that can be asked, and the namespaces on it that clusters use."""

    client: ApiClient
    namespaces: frozenset[str]
    accounts: Mapping[str, ApiClient] = field(default_factory=dict)
    """By namespace, the client of another identity, whose clusters use that namespace."""
    others: tuple[ApiClient, ...] = ()
    """The clients of all other identities."""

    @property
    def server(self) -> str:
        """Return the address of the Harvester."""
        return self.client.server

    def of(self, namespace: str) -> ApiClient:
        """Return the client for a namespace; for an empty one, that for what is in none."""
        return self.accounts.get(namespace, self.client)

    def shares(self) -> list[tuple[ApiClient, frozenset[str]]]:
        """Return all clients, the first one first, each with the namespaces that it reads."""
        return [
            (client, frozenset(name for name in self.namespaces if self.of(name) is client))
            for client in (self.client, *self.others)
        ]


async def ask_accounts(
    harvester: HarvesterClient, request: Callable[[ApiClient], Awaitable[T]]
) -> T:
    """Return the answer to the first account that has the right.

    Raises the error of the first account if none has it. Raises `ApiError`, `Unreachable` at once
    when the Harvester does not answer.
    """
    try:
        return await request(harvester.client)
    except (Forbidden, Unauthorized) as error:
        refusal = error

    for client in harvester.others:
        with suppress(Forbidden, Unauthorized):
            return await request(client)
    raise refusal


class Listing(NamedTuple):
    """The objects of a kind, and the namespaces that were read; None for all."""

    objects: list[Obj]
    namespaces: frozenset[str] | None


async def list_everywhere(
    harvester: HarvesterClient,
    resource: Resource,
    hidden: list[Unseen],
    *,
    label_selector: str = "",
    metadata_only: bool = False,
) -> Listing:
    """Read a kind in all namespaces, else in those that clusters use.

    :param harvester: the Harvester
    :param resource: the kind
    :param hidden: gets what could not be read
    :param label_selector: restricts the objects
    :param metadata_only: read nothing but the metadata
    """

    async def read(client: ApiClient, namespace: str = "") -> list[Obj]:
        return await list_all(
            client,
            resource,
            namespace,
            label_selector=label_selector,
            metadata_only=metadata_only,
        )

    try:
        return Listing(await ask_accounts(harvester, read), None)
    except RequestError as error:
        where = "of all namespaces on Harvester" if resource.namespaced else "on Harvester"
        hidden.append(unseen(f"{resource} {where}", error))
        if not resource.namespaced:
            return Listing([], frozenset())

    objs: list[Obj] = []
    namespaces: set[str] = set()
    for namespace in sorted(harvester.namespaces):
        try:
            objs += await read(harvester.of(namespace), namespace)
            namespaces.add(namespace)
        except RequestError as error:
            what = f"{resource} of namespace {namespace} on Harvester"
            hidden.append(unseen(what, error))
    return Listing(objs, frozenset(namespaces))
