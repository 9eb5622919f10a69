"""Connect to the Harvesters that options choose: by identities of clusters, or by a kubeconfig."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from commands.options.harvesters import HarvesterOptions, namespace_of

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from operations.read.harvesterclient import HarvesterClient
    from operations.read.objects import Unseen


@asynccontextmanager
async def harvester_clients(
    management: ApiClient, options: HarvesterOptions
) -> AsyncIterator[tuple[list[HarvesterClient], list[Unseen]]]:
    """Lend a client for each Harvester of clusters, or only for `--harvester-kubeconfig`."""
    if options.all_namespaces and options.namespace:
        raise click.UsageError("--all-namespaces and --namespace are mutually exclusive")
    from caphv.api import resources
    from caphv.runtime.errors import Forbidden
    from operations.read.accounts import read_accounts
    from operations.read.harvesterclient import HarvesterClient
    from operations.read.management import list_all
    from operations.read.objects import target_namespaces
    from operations.read.servers import HARVESTER_SECONDS

    # The account of a user may be limited to one namespace.
    try:
        clusters = await list_all(management, resources.HARVESTER_CLUSTERS, options.namespace)
    except Forbidden:
        clusters = await list_all(management, resources.HARVESTER_CLUSTERS, namespace_of(options))

    async with AsyncExitStack() as stack:
        if options.harvester_kubeconfig:
            targets = target_namespaces(clusters)
            lent = kubeconfig_client(options.harvester_kubeconfig, targets)
            yield [await stack.enter_async_context(lent)], []
            return

        identities, hidden = await read_accounts(management, clusters)
        harvesters: dict[tuple[str, str], HarvesterClient] = {}
        for account in identities:
            client = account.kubeconfig.client(
                name="harvester", user_agent="caphv-cli", timeout=HARVESTER_SECONDS
            )
            stack.push_async_callback(client.close)

            # Several identities may lead to one Harvester, each with rights in its namespaces.
            key = (account.kubeconfig.server, account.kubeconfig.ca)
            if key not in harvesters:
                accounts = dict.fromkeys(account.namespaces, client)
                harvesters[key] = HarvesterClient(client, account.namespaces, accounts)
                continue

            harvester = harvesters[key]
            harvesters[key] = replace(
                harvester,
                namespaces=harvester.namespaces | account.namespaces,
                accounts={**dict.fromkeys(account.namespaces, client), **harvester.accounts},
                others=(*harvester.others, client),
            )
        yield list(harvesters.values()), hidden


@asynccontextmanager
async def kubeconfig_client(
    kubeconfig: str, namespaces: frozenset[str]
) -> AsyncIterator[HarvesterClient]:
    """Lend a client for the Harvester of a kubeconfig, and the namespaces that clusters use."""
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import own_configuration
    from operations.read.harvesterclient import HarvesterClient

    client = ApiClient(await own_configuration(kubeconfig), name="harvester")
    try:
        yield HarvesterClient(client, namespaces)
    finally:
        await client.close()
