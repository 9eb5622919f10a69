"""The machine's Node in the workload cluster: its providerID, and the taint that waits for a cloud provider.

The provider does this from outside, because the cloud controller manager cannot run until the taint has been removed
from some node (a deadlock on the first one), and because the providerID must be that of the VM even without a cloud
provider.
"""

from __future__ import annotations

import logging
import time

from caphv.api import names
from caphv.api.object import NODES, Obj, labels_of
from caphv.runtime.errors import (
    ApiError,
    Conflict,
    Invalid,
    NotFound,
    ServerFault,
    TooManyRequests,
    Unreachable,
)
from reconciler import metrics
from reconciler.machine.scope import MachineScope

log = logging.getLogger(__name__)

UNREACHABLE_SECONDS = 60.0
"""Seconds that a workload API may not answer before a Warning: a migration of its only machine takes it away, too."""


def initialization(node: Obj, provider_id: str) -> list[dict[str, object]]:
    """JSON patch that initializes a Node, empty when nothing is left to do.

    A Node's own providerID cannot be changed and is left alone; of the taints only the one is removed. Taints are one
    atomic list that others write too, so the patch tests that the entry is still the one it removes.
    """
    patch: list[dict[str, object]] = []
    if not node["spec"].get("providerID"):
        patch.append({"op": "add", "path": "/spec/providerID", "value": provider_id})
    for index, taint in enumerate(node["spec"].get("taints") or ()):
        if taint.get("key") == names.UNINITIALIZED_TAINT:
            path = f"/spec/taints/{index}"
            patch += [{"op": "test", "path": path, "value": taint}, {"op": "remove", "path": path}]
            break
    return patch


def is_guest_of(node: Obj, vmi: Obj) -> bool | None:
    """Whether a Node is the guest of an instance: its kubelet reports the firmware's UUID. None if one is not known.

    A Node may outlive its machine, and another machine of the name comes. Ages do not tell them apart: they are by the
    clocks of two clusters.
    """
    guest = str(((node.get("status") or {}).get("nodeInfo") or {}).get("systemUUID") or "")
    firmware = ((vmi.get("spec") or {}).get("domain") or {}).get("firmware") or {}
    uuid = str(firmware.get("uuid") or "")
    return guest.lower() == uuid.lower() if guest and uuid else None


def topology(host: Obj) -> dict[str, str]:
    """Region and zone of a host of Harvester, from its labels."""
    return {name: value for name, value in labels_of(host).items() if name in (names.REGION_LABEL, names.ZONE_LABEL)}


def labelling(node: Obj, wanted: dict[str, str]) -> list[dict[str, object]]:
    """JSON patch that gives a Node these labels, empty when it has them; other labels stay."""
    present = labels_of(node)
    missing = {name: value for name, value in wanted.items() if present.get(name) != value}
    if missing and not present:
        return [{"op": "add", "path": "/metadata/labels", "value": missing}]
    return [
        {"op": "add", "path": f"/metadata/labels/{name.replace('/', '~1')}", "value": value}
        for name, value in missing.items()
    ]


async def initialize_node(scope: MachineScope, provider_id: str) -> None:
    """Initialize the Node if it is there, and have its zone and region follow the VM's host, in one patch.

    Does nothing while the Node is not in the cache; its event requeues the machine. Raises `ApiError`, `Unreachable`.
    """
    if scope.cluster_key is None:
        return
    workloads = scope.context.workloads
    await workloads.ensure(scope.cluster_key)
    node, client = workloads.node(scope.cluster_key, scope.name), workloads.client(scope.cluster_key)
    if node is None or client is None:
        return
    vmi = scope.instance()
    if vmi is not None and is_guest_of(node, vmi) is False:
        return  # of an earlier machine of the name; the kubelet of this one takes it over
    host = scope.host_of(vmi) if vmi else None
    initializes = initialization(node, provider_id)
    patch = initializes + labelling(node, topology(host) if host else {})
    if not patch:
        return
    if initializes:
        metrics.NODE_INIT.inc()
    try:
        answer = await client.patch(NODES, scope.name, "", patch, patch_type="json")
    except NotFound:
        return
    except (ApiError, Unreachable) as error:
        if isinstance(error, Invalid) and error.status == 422:
            # The test in the patch failed: the taints were modified concurrently; retry.
            raise Conflict(error.status, error.reason, error.message) from None
        metrics.NODE_INIT_ERRORS.inc(bool(initializes))
        if not _is_passing(scope, error):
            what = "initialize" if initializes else "update the zone and region of"
            scope.warning_event("NodeInitializationFailed", f"cannot {what} Node {scope.name}: {error}")
        raise
    scope.memory.node_unreached_since = None
    workloads.observe(scope.cluster_key, answer)
    if initializes:
        log.info("initialized Node %s with providerID %s", scope.name, provider_id)
        metrics.NODE_INIT_SECONDS.observe(metrics.age(node["metadata"]["creationTimestamp"]))


def _is_passing(scope: MachineScope, error: ApiError | Unreachable) -> bool:
    """Whether a workload API does not answer, and not for so long that a user should know."""
    if not isinstance(error, (ServerFault, TooManyRequests, Unreachable)):
        scope.memory.node_unreached_since = None
        return False

    now = time.monotonic()
    if scope.memory.node_unreached_since is None:
        scope.memory.node_unreached_since = now
    return now - scope.memory.node_unreached_since < UNREACHABLE_SECONDS
