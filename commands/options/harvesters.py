"""Which Harvesters a command asks: those of the identities of clusters, or the one of a kubeconfig."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.options.management import context_namespace, namespace_option

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from overview.objects import Unseen

_Command = TypeVar("_Command", bound=Callable[..., Any])


def harvester_option(command: _Command) -> _Command:
    """Add the option `harvester_kubeconfig`."""
    return click.option(
        "--harvester-kubeconfig",
        default="",
        metavar="FILE",
        help="Ask Harvester with this kubeconfig, in place of the identities of clusters.",
    )(command)


def harvester_namespace_options(command: _Command) -> _Command:
    """Add the options `namespace` and `all_namespaces`, which is the default."""
    for add in (
        click.option("-A", "--all-namespaces", is_flag=True, help="Of clusters in all namespaces, the default."),
        namespace_option("Only Harvesters of clusters in this namespace.  [default: of all]"),
    ):
        command = add(command)
    return command


def insecure_option(command: _Command) -> _Command:
    """Add the option that lets a command connect to servers that kubeconfigs in Secrets do not verify."""
    return click.option(
        "--allow-insecure-identities",
        is_flag=True,
        expose_value=False,
        callback=_allow_insecure,
        help="Also use kubeconfigs that set insecure-skip-tls-verify; this exposes their credentials to "
        "man-in-the-middle attacks.",
    )(command)


def _allow_insecure(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        from overview.harvester import insecure_allowed

        context.with_resource(insecure_allowed())


@dataclass(frozen=True, slots=True)
class HarvesterClient:
    """A Harvester that can be asked, and the namespaces on it that clusters use."""

    client: ApiClient
    namespaces: frozenset[str]


@asynccontextmanager
async def harvester_clients(
    management: ApiClient, flags: dict[str, Any]
) -> AsyncIterator[tuple[list[HarvesterClient], list[Unseen]]]:
    """Lend a client for each Harvester that clusters use, or for the one of `--harvester-kubeconfig`."""
    if flags["all_namespaces"] and flags["namespace"]:
        raise click.UsageError("--all-namespaces and --namespace exclude each other")
    from caphv.api import resources
    from caphv.runtime.client import ApiClient
    from caphv.runtime.errors import Forbidden
    from caphv.runtime.kubeconfig import own_configuration
    from overview.harvester import HARVESTER_SECONDS, read_accounts
    from overview.reader import list_all

    try:
        clusters = await list_all(management, resources.HARVESTER_CLUSTERS, flags["namespace"])
    except Forbidden:
        clusters = await list_all(management, resources.HARVESTER_CLUSTERS, namespace_of(flags))
    async with AsyncExitStack() as stack:
        if flags["harvester_kubeconfig"]:
            targets = frozenset(str(obj["spec"]["targetNamespace"]) for obj in clusters)
            client = ApiClient(await own_configuration(flags["harvester_kubeconfig"]), name="harvester")
            stack.push_async_callback(client.close)
            yield [HarvesterClient(client, targets)], []
            return
        accounts, hidden = await read_accounts(management, clusters)
        found = {}
        for account in accounts:
            key = (account.access.server, account.access.ca)
            if key not in found:
                client = account.access.client(name="harvester", user_agent="caphv-cli", timeout=HARVESTER_SECONDS)
                stack.push_async_callback(client.close)
                found[key] = HarvesterClient(client, account.namespaces)
            else:
                found[key] = HarvesterClient(found[key].client, found[key].namespaces | account.namespaces)
        yield list(found.values()), hidden


def namespace_of(flags: dict[str, Any]) -> str:
    """The namespace of `--namespace`, else that of the context."""
    return str(flags["namespace"] or context_namespace(flags["kubeconfig"], flags["context"]))
