"""Maintain the labels of existing VMs, including VMs that the Go provider created."""

import logging
from collections.abc import Mapping

from caphv.api import guestpools, names, resources
from caphv.api.labels import cluster_label
from caphv.api.object import Obj, dict_at, key_of, labels_of
from caphv.runtime.errors import ApiError, Conflict, NotFound, Unauthorized
from reconciler import triggers
from reconciler.harvester.watchedcollections import guest_of_cluster
from reconciler.machine import guestlabels
from reconciler.machine.guestlabels import guest_cluster_name
from reconciler.machine.images import split_reference
from reconciler.machine.placement import CLUSTER_LABEL
from reconciler.machine.scope import ProvisioningScope

log = logging.getLogger(__name__)

_RETRY_SECONDS = 300.0


def name_taken(scope: ProvisioningScope) -> bool:
    """Return whether another cluster in the target namespace uses the name of this cluster."""
    vms = scope.namespace().vms.store
    guest = guest_cluster_name(scope.cluster_key)
    own = guest_of_cluster(guest, cluster_label(scope.cluster_key))
    # Reading all VMs of the cluster in each reconcile would take long in large clusters.
    if vms.count("guest", guest) == vms.count("guest", own):
        return False
    return guestlabels.name_taken(vms.by_index("guest", guest), scope.cluster_key)


def machine_network(scope: ProvisioningScope) -> str:
    """Return the first network of the machine, as written in its VM; empty without one."""
    networks = scope.spec.get("networks") or ()
    return "/".join(split_reference(networks[0], scope.target_namespace)) if networks else ""


def check_announcement(scope: ProvisioningScope, network: str) -> bool:
    """Return whether the template has the labels of a guest.

    Requeues the machine when pools change.

    :param network: the first network of the VM
    """
    session = scope.session()
    # The subscription outlives this reconcile, because later changes of pools matter to a ready
    # machine, too.
    scope.subscribe(triggers.pools(session.fingerprint))
    name = guest_cluster_name(scope.cluster_key)
    return guestpools.announces_network(session.pools.store, network, scope.target_namespace, name)


def label_patch(scope: ProvisioningScope, vm: Obj) -> Obj:
    """Return the patch that labels a VM and its template, empty if both have the labels.

    Harvester copies labels of the template to the instance, and restarts nothing.
    """
    cluster = {CLUSTER_LABEL: cluster_label(scope.cluster_key)}
    guest = guestlabels.vm_labels(scope.cluster_key, name_taken=name_taken(scope))
    # The cache keeps no networks of a VM that is not ours yet.
    network = guestlabels.first_network(vm) or machine_network(scope)
    announced = check_announcement(scope, network)

    labels = {names.GUEST_CLUSTER_LABEL: None, **guest, **cluster}
    changes = guestlabels.template_labels(guest, announces_network=announced)
    template_labels = {**changes, **cluster}
    present = dict_at(vm, "spec", "template", "metadata", "labels")
    if _has(labels_of(vm), labels) and _has(present, template_labels):
        return {}
    return {
        "metadata": {"labels": labels},
        "spec": {"template": {"metadata": {"labels": template_labels}}},
    }


async def ensure_labels(scope: ProvisioningScope, vm: Obj) -> Obj:
    """Ensure the labels of a VM and of its template, and return the VM."""
    patch = label_patch(scope, vm)
    if not patch:
        return vm

    patch["metadata"]["resourceVersion"] = vm["metadata"]["resourceVersion"]
    client = scope.session().client
    try:
        labelled = await client.patch(
            resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace, patch
        )
    except (Conflict, NotFound, Unauthorized):
        raise
    except ApiError as error:
        # Harvester may refuse any update of a VM, for example while a quota is exceeded. That is no
        # fault of the machine, so the patch is sent again later.
        log.info("cannot label VirtualMachine %s for its cluster: %s", key_of(vm), error)
        scope.requeue_in(_RETRY_SECONDS)
        return vm
    scope.namespace().vms.observe(labelled)
    return labelled


def _has(labels: Mapping[str, str], expected: Mapping[str, str | None]) -> bool:
    return all(labels.get(name) == value for name, value in expected.items())
