"""Read a management cluster, and turn errors of requests into messages and exit status."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from caphv.api.object import key_of
from commands.errors import InputError
from commands.options.management import ManagementOptions, Selection
from commands.output.progress import Step

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from operations.status.query import Answer

_T = TypeVar("_T")


@contextlib.asynccontextmanager
async def management_client(management: ManagementOptions) -> AsyncIterator[ApiClient]:
    """Lend a client for the management cluster that the options name."""
    from caphv.runtime.client import ApiClient
    from caphv.runtime.clientconfig import own_configuration

    connection = await own_configuration(management.kubeconfig, management.context)
    client = ApiClient(connection, name="management", user_agent="caphv-cli", timeout=60.0)
    try:
        yield client
    finally:
        await client.close()


def read_overview(
    management: ManagementOptions, chosen: Selection, step: Step, *, deep: bool
) -> Answer:
    """Read the selected clusters.

    Raises `InputError` if they cannot be read, or one does not exist.

    :param management: the management cluster
    :param chosen: the clusters to read
    :param step: called with a description of each step
    :param deep: whether to ask also Harvesters and workload clusters
    """
    import gc

    from operations.status.query import ask

    async def read() -> Answer:
        async with management_client(management) as client:
            return await ask(client, chosen.query(deep=deep), step)

    # The answer has hundreds of thousands of values without cycles. Searching them repeatedly for
    # garbage would take a third of the time.
    gc.disable()
    try:
        answer = run(read())
    finally:
        gc.enable()
    chosen.require(
        {cluster.key for cluster in answer.overview.clusters}, map(key_of, answer.objects.clusters)
    )
    return answer


def run(work: Coroutine[Any, Any, _T], interrupted: str = "") -> _T:
    """Run a coroutine; a request that fails becomes a message and exit status 2.

    When the user interrupts it, writes `interrupted` and exits with status 130.
    """
    from caphv.runtime.errors import Forbidden, RequestError
    from caphv.runtime.kubeconfig import KubeconfigError
    from operations.read.management import NoClusterApiError

    results: list[_T] = []

    async def keep() -> None:
        # The result is not returned, because asyncio.run formats the finished task with its result,
        # and nothing uses this text.
        results.append(await work)

    try:
        asyncio.run(keep())
        return results[0]
    except Forbidden as error:
        hint = ""
        if "cluster scope" in str(error):
            hint = "; name a namespace that you may read with -n"
        raise InputError(f"your account may not do that: {error}{hint}") from None
    except KubeconfigError as error:
        raise InputError(f"the kubeconfig cannot be used: {error}") from None
    except RequestError as error:
        raise InputError(f"a request failed: {error}") from None
    except NoClusterApiError as error:
        raise InputError(str(error)) from None
    except KeyboardInterrupt:
        if interrupted:
            click.echo(f"\n{interrupted}", err=True)
        sys.exit(130)
