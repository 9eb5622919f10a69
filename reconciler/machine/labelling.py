"""Keeps the labels of VMs that exist, also of those that the Go provider or an earlier version created."""

import logging
from collections.abc import Mapping

from caphv.api import guestpools, names, resources
from caphv.api.object import Obj, key_of, labels_of
from caphv.runtime.errors import ApiError, Conflict, NotFound, Unauthorized
from reconciler import triggers
from reconciler.machine import guestlabels
from reconciler.machine.guestlabels import guest_cluster_name
from reconciler.machine.images import qualified
from reconciler.machine.placement import CLUSTER_LABEL, cluster_label
from reconciler.machine.scope import MachineScope

log = logging.getLogger(__name__)

_RETRY_SECONDS = 300.0


def name_taken(scope: MachineScope) -> bool:
    """Return whether another cluster in the target namespace has the name of the machine's cluster."""
    assert scope.cluster_key is not None  # noqa: S101 - the caller checked
    vms = scope.namespace().vms.store.by_index("guest", guest_cluster_name(scope.cluster_key))
    return guestlabels.name_taken(vms, scope.cluster_key)


def machine_network(scope: MachineScope) -> str:
    """Return the first network of the machine, as its VM names it; empty without one."""
    networks = scope.spec.get("networks") or ()
    return "/".join(qualified(networks[0], scope.target_namespace)) if networks else ""


def announces_network(scope: MachineScope, network: str) -> bool:
    """Return whether the template has the labels of a guest, and requeue the machine when pools change.

    :param network: the first network of the VM
    """
    assert scope.cluster_key is not None  # noqa: S101 - the caller checked
    session = scope.session()
    # Not as a context manager: later changes of pools matter to a machine that is ready, too.
    scope.subscribe(triggers.pools(session.fingerprint))
    name = guest_cluster_name(scope.cluster_key)
    return guestpools.announces_network(session.pools.store, network, scope.target_namespace, name)


def label_patch(scope: MachineScope, vm: Obj) -> Obj:
    """Return the patch that labels a VM and its template, empty if they have the labels.

    Harvester copies labels of the template to the instance; neither restarts.
    """
    assert scope.cluster_key is not None  # noqa: S101 - the caller checked
    ours = {CLUSTER_LABEL: cluster_label(scope.cluster_key)}
    guest = guestlabels.vm_labels(scope.cluster_key, name_taken=name_taken(scope))
    # Of a VM that is not ours yet, the cache has no networks.
    network = guestlabels.first_network(vm) or machine_network(scope)
    announced = announces_network(scope, network)
    labels = {names.GUEST_CLUSTER_LABEL: None, **guest, **ours}
    template = {**guestlabels.template_labels(guest, announces_network=announced), **ours}

    metadata = (vm["spec"].get("template") or {}).get("metadata") or {}
    if _has(labels_of(vm), labels) and _has(metadata.get("labels") or {}, template):
        return {}
    return {"metadata": {"labels": labels}, "spec": {"template": {"metadata": {"labels": template}}}}


async def ensure_labels(scope: MachineScope, vm: Obj) -> Obj:
    """Ensure the labels of a VM and of its template, and return the VM.

    Harvester may refuse any change of a VM, for example while a quota is exceeded. That is no fault of the machine, so
    it is tried again later.
    """
    patch = label_patch(scope, vm)
    if not patch:
        return vm

    patch["metadata"]["resourceVersion"] = vm["metadata"]["resourceVersion"]
    client = scope.session().client
    try:
        labelled = await client.patch(resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, patch)
    except (Conflict, NotFound, Unauthorized):
        raise
    except ApiError as error:
        log.info("cannot label VirtualMachine %s for its cluster: %s", key_of(vm), error)
        scope.requeue_after = min(filter(None, (scope.requeue_after, _RETRY_SECONDS)))
        return vm
    scope.namespace().vms.observe(labelled)
    return labelled


def _has(labels: Mapping[str, str], wanted: Mapping[str, str | None]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())
