"""Set the providerID of the machine's Node in the workload cluster, and remove its taint.

A new Node has the taint until a cloud provider removes it. This provider initializes Nodes from
outside, because the cloud controller manager cannot run until the taint has been removed from some
Node (a deadlock on the first one), and because the providerID must name the VM even without a cloud
provider.
"""

from __future__ import annotations

import logging
import time

from caphv.api import names
from caphv.api.conditions import seconds_since
from caphv.api.object import NODES, Obj, labels_of, text_at, uid_of
from caphv.runtime.errors import (
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    RequestError,
    ServerFault,
    TooManyRequests,
    Unreachable,
)
from reconciler import metrics
from reconciler.machine.adoption import vm_proof
from reconciler.machine.scope import MachineScope, ProvisioningScope

log = logging.getLogger(__name__)

UNREACHABLE_SECONDS = 60.0
"""A workload API may be silent for so many seconds before a Warning.

It is silent, for example, during a migration of its only machine.
"""
# Seconds until a refused change of the machine's providerID is tried again.
_REFUSED_SECONDS = 300.0


def initialization(node: Obj, provider_id: str) -> list[dict[str, object]]:
    """Return the JSON patch that initializes a Node, empty if nothing is left to do."""
    patch: list[dict[str, object]] = []
    # Nothing can change the providerID of a Node that has one.
    if not node["spec"].get("providerID"):
        patch.append({"op": "add", "path": "/spec/providerID", "value": provider_id})

    # Other clients write the list of taints, too, so the patch first tests that the index still
    # leads to the right taint.
    for index, taint in enumerate(node["spec"].get("taints") or ()):
        if taint.get("key") == names.UNINITIALIZED_TAINT:
            path = f"/spec/taints/{index}"
            patch += [{"op": "test", "path": path, "value": taint}, {"op": "remove", "path": path}]
            break
    return patch


def is_guest_of(node: Obj, vmi: Obj) -> bool | None:
    """Return whether a Node is the guest of an instance, None if one of the UUIDs is not known.

    A Node may outlive its machine, and a later machine may have the same name.
    """
    # The kubelet reports the UUID of the firmware. Creation times cannot tell two guests apart,
    # because they come from the clocks of two clusters.
    guest = text_at(node, "status", "nodeInfo", "systemUUID")
    firmware = text_at(vmi, "spec", "domain", "firmware", "uuid")
    return guest.lower() == firmware.lower() if guest and firmware else None


def topology(host: Obj) -> dict[str, str]:
    """Return region and zone of a host of Harvester, from its labels."""
    return {
        name: value
        for name, value in labels_of(host).items()
        if name in (names.REGION_LABEL, names.ZONE_LABEL)
    }


def labelling(node: Obj, labels: dict[str, str]) -> list[dict[str, object]]:
    """Return the JSON patch that adds these labels to a Node, empty if the Node has them."""
    present = labels_of(node)
    missing = {name: value for name, value in labels.items() if present.get(name) != value}
    if missing and not present:
        return [{"op": "add", "path": "/metadata/labels", "value": missing}]
    return [
        {"op": "add", "path": f"/metadata/labels/{name.replace('/', '~1')}", "value": value}
        for name, value in missing.items()
    ]


async def set_provider_id(scope: ProvisioningScope, vm: Obj, vmi: Obj) -> str:
    """Set `spec.providerID` of the HarvesterMachine, and return it.

    Also writes an annotation that proves which VM the machine has. A refused change is reported,
    and the machine keeps its present providerID: no other step depends on the new one.

    :param vmi: the instance of the VM, empty if there is none
    """
    node = scope.context.workloads.node(scope.cluster_key, scope.name)
    # The Node of an earlier machine with the same name may still exist.
    is_former = node is not None and is_guest_of(node, vmi) is False
    node_id = node["spec"].get("providerID") if node and not is_former else None

    # A Node's own providerID comes first, because another cloud provider may set it and nothing can
    # change it (contract). The machine's present providerID comes second, and a providerID with the
    # uid of the VM last.
    machine_id = scope.spec.get("providerID")
    provider_id = str(node_id or machine_id or f"{names.PROVIDER_ID_PREFIX}{uid_of(vm)}")
    if machine_id != provider_id:
        annotations = vm_proof(provider_id, vm)
        metadata = {"annotations": annotations}
        try:
            await scope.patch({"metadata": metadata, "spec": {"providerID": provider_id}})
        except (Forbidden, Invalid) as error:
            if not machine_id:
                raise
            scope.requeue_in(_REFUSED_SECONDS)
            message = f"cannot write providerID {provider_id} of Node {scope.name}: {error}"
            scope.warning_event("NodeInitializationFailed", message)
            return str(machine_id)
    return provider_id


async def initialize_node(scope: ProvisioningScope, provider_id: str) -> None:
    """Initialize the Node, and copy zone and region of the VM's host to it, in one patch.

    Does nothing while the Node is not in the cache. Its appearance requeues the machine. Raises
    `ApiError`, `Unreachable`.
    """
    workloads = scope.context.workloads
    await workloads.ensure(scope.cluster_key)
    node = workloads.node(scope.cluster_key, scope.name)
    client = workloads.client(scope.cluster_key)
    if node is None or client is None:
        return
    vmi = scope.instance()
    if vmi is not None and is_guest_of(node, vmi) is False:
        return  # an earlier machine had this Node; the kubelet of the new machine takes it over

    host = scope.host_of(vmi) if vmi else None
    initialization_patch = initialization(node, provider_id)
    patch = initialization_patch + labelling(node, topology(host) if host else {})
    if not patch:
        return

    # Metrics and log report only initializations, because zone and region change with each
    # migration.
    is_new = bool(initialization_patch)
    if is_new:
        metrics.NODE_INIT.inc()
    try:
        patched = await client.patch(NODES, scope.name, "", patch, patch_type="json")
    except NotFound:
        return
    except RequestError as error:
        if isinstance(error, Invalid) and error.status == 422:
            # The test in the patch failed, because another client changed the taints. Retry.
            raise Conflict(error.status, error.reason, error.message) from None
        metrics.NODE_INIT_ERRORS.inc(is_new)
        _report_failure(scope, error, is_new=is_new)
        raise

    scope.memory.node_unreached_since = None
    workloads.cache_node(scope.cluster_key, patched)
    if is_new:
        log.info("initialized Node %s with providerID %s", scope.name, provider_id)
        metrics.NODE_INIT_SECONDS.observe(seconds_since(node["metadata"]["creationTimestamp"]))


def _report_failure(scope: MachineScope, error: RequestError, *, is_new: bool) -> None:
    """Emit an Event about a failed patch, unless the workload API is only silent for a while."""
    if _note_silence(scope, error):
        return

    action = "initialize" if is_new else "update the zone and region of"
    message = f"cannot {action} Node {scope.name}: {error}"
    scope.warning_event("NodeInitializationFailed", message)


def _note_silence(scope: MachineScope, error: RequestError) -> bool:
    """Note since when a workload API is silent, and return whether that is a short time."""
    memory = scope.memory
    if not isinstance(error, (ServerFault, TooManyRequests, Unreachable)):
        memory.node_unreached_since = None
        return False

    if memory.node_unreached_since is None:
        memory.node_unreached_since = time.monotonic()
        return True
    return time.monotonic() - memory.node_unreached_since < UNREACHABLE_SECONDS
