"""Calico's Installation in a workload cluster, and the others that write to it."""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from tests.support.packager.stand_in_charts import INSTALLATIONS

_NAME, _NAMESPACE = "default", "kube-system"
_POOL: dict[str, Any] = {
    "name": "default-ipv4-ippool",
    "blockSize": 26,
    "nodeSelector": "all()",
    "disableBGPExport": False,
    "disableNewAllocations": False,
    "allowedUses": ["Workload", "Tunnel"],
    "assignmentMode": "Automatic",
}
"""What Calico's operator adds to each pool."""


async def installation(client: ApiClient) -> Obj:
    """Return the Installation; empty if there is none."""
    page = await client.list(INSTALLATIONS)
    return next(iter(page["items"]), {})


async def play_operator(client: ApiClient) -> None:
    """Add defaults to the pools, as Calico's operator does, which owns the whole list from then on."""
    pools = (await installation(client))["spec"]["calicoNetwork"]["ipPools"]
    await _write(client, "operator", {"ipPools": [pool | _POOL for pool in pools]})


async def edit_mtu(client: ApiClient, mtu: int) -> None:
    """Change the MTU as a person does, who owns the field from then on."""
    await _write(client, "kubectl-edit", {"mtu": mtu})


async def _write(client: ApiClient, manager: str, network: Obj) -> None:
    head = {"apiVersion": INSTALLATIONS.api_version, "kind": INSTALLATIONS.kind}
    body = {**head, "metadata": {"name": _NAME, "namespace": _NAMESPACE}, "spec": {"calicoNetwork": network}}
    await client.apply(INSTALLATIONS, body, manager=manager)
