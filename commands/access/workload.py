"""Lend a client of a workload cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from commands.access.management import management_client
from commands.errors import InputError

if TYPE_CHECKING:
    from caphv.api.object import Key
    from caphv.runtime.client import ApiClient
    from commands.options.management import ManagementOptions

_TIMEOUT_SECONDS = 10


@asynccontextmanager
async def workload_client(options: ManagementOptions, key: Key) -> AsyncIterator[ApiClient]:
    """Lend a client with the administrator's kubeconfig that Cluster API stores for a cluster.

    Raises `InputError`.
    """
    from caphv.api.object import Key as ObjectKey
    from caphv.runtime.errors import ApiError
    from caphv.runtime.kubeconfig import KubeconfigError
    from operations.read.accounts import read_kubeconfig

    async with management_client(options) as management:
        try:
            secret = ObjectKey(key.namespace, f"{key.name}-kubeconfig")
            access = await read_kubeconfig(management, secret, "value")
            client = access.client(
                name="workload", user_agent="caphv-cli", timeout=_TIMEOUT_SECONDS
            )
        except (ApiError, KubeconfigError) as error:
            raise InputError(f"the workload cluster cannot be read: {error}") from None

    try:
        yield client
    finally:
        await client.close()
