"""Say what an operator can do about each reason of a condition, often by a command."""

from __future__ import annotations

from dataclasses import dataclass

from caphv.api import parking, remedies
from caphv.api.identities import is_cluster_identity, secret_name
from caphv.api.names import (
    ADOPT_ANNOTATION,
    ETCD_RESTORE_ANNOTATION,
    PAUSED_ANNOTATION,
    RANCHER_FORCE_REMOVE_ANNOTATION,
    Reason,
)
from caphv.api.object import Key, Obj, annotations_of, at, being_deleted, key_of


@dataclass(frozen=True, slots=True)
class Subject:
    """The names that a sentence may contain: cluster, object with the condition, and identity.

    `machine` is the Machine of the object. An operator deletes the Machine, never the
    HarvesterMachine, whose name differs. `unowned` says that no such Machine exists: one that could
    not be read may. `deleting` says that the Machine is already being deleted,
    `topology` that the Cluster has a topology, so that templates are not edited by hand. `ran` says
    that its VM was ready once, `only` that no other machine has the etcd of the cluster.
    `unmarked` says that a MachineHealthCheck finds the Machine unhealthy, and that its owner is not
    to replace it.
    """

    namespace: str
    cluster: str
    kind: str
    name: str
    identity: str = ""
    target: str = ""
    machine: str = ""
    unowned: bool = False
    deleting: bool = False
    topology: bool = False
    ran: bool = False
    only: bool = False
    unmarked: bool = False

    @property
    def describe(self) -> str:
        """Command that shows the object with its Events."""
        return remedies.DESCRIBE(kind=self.kind.lower(), name=self.name, namespace=self.namespace)


# Placeholders of the identity have a prefix, because `namespace` is the namespace of the object.
_IDENTITY = {"target": "{target}", "namespace": "{identity_namespace}", "name": "{identity_name}"}
_ROTATE = f"Replace its token: {remedies.ROTATE_IDENTITY(**_IDENTITY)}"
_LOOK = "Read what it reports: {describe}"
_REPLACE = str(remedies.DELETE_MACHINE)
_DELETING = f"Its Machine is being deleted. See what that waits for: {remedies.DESCRIBE_MACHINE}"
_WITHOUT_MACHINE = f"No Machine owns it. Delete it: {remedies.DELETE_OBJECT}"
_CORRECT_TEMPLATE = (
    "Create a corrected HarvesterMachineTemplate under another name, reference it in the control "
    f"plane or MachineDeployment, then replace the machine: {_REPLACE}"
)
_CORRECT_VARIABLE = (
    f"Correct spec.topology.variables: {remedies.EDIT_CLUSTER}. Then replace the machine, which "
    f"keeps the former values: {_REPLACE}"
)
_ADD_ON_HARVESTER = "What Harvester lacks can be added there, and the machine continues. If not: "
# The spec of a machine whose VM was ready is not the cause, and another VM would wait like it.
_CORRECT_ON_HARVESTER = (
    "Correct it on Harvester: the VM keeps its disks, and the machine continues. Check hosts and "
    f"rights: {remedies.DOCTOR}"
)
_RESTORE_ONLY_VM = (
    "Keep the Machine: no other machine has the etcd of the cluster. Restore the VM on Harvester "
    "from a backup, then have it adopted: "
    + remedies.SET_ANNOTATION(
        kind="harvestermachine",
        name="{name}",
        namespace="{namespace}",
        annotation=ADOPT_ANNOTATION,
        value="true",
    )
)
_KEEP_ONLY_MACHINE = (
    "Keep the Machine: no other machine has the etcd of the cluster. Correct its VM on Harvester, "
    f"or scale the control plane to 3 machines before this one is replaced: {remedies.TREE}"
)
_POOLS = (
    f"Find leaked addresses: {remedies.AUDIT_POOLS}. Otherwise add a range to the pool, or another "
    "pool to ipPoolRefs"
)
# Harvester stops a running VM when its quota shrinks, and the provider starts only new VMs.
_START_AFTER_QUOTA = (
    "Raise the quota of namespace {target} on Harvester, or delete VMs there, and start the VM"
)
_UNMARKED = (
    "A MachineHealthCheck has found it unhealthy and does not mark it for its owner; condition "
    f"RemediationAllowed of the MachineHealthCheck says why. By hand: {_REPLACE}"
)
_LOGS = f"Check the provider's log: {remedies.LOGS(namespace='caphv-system')}"
_BOOTSTRAP_LOGS = remedies.LOGS_OF_BOOTSTRAP(
    namespace="{bootstrap_namespace}", provider="{bootstrap_provider}"
)
_CONNECTION = f"Check the connection to Harvester: {remedies.DOCTOR}"

_BY_REASON: dict[str, str] = {
    Reason.IDENTITY_EXPIRING: _ROTATE,
    Reason.IDENTITY_EXPIRED: _ROTATE,
    Reason.HARVESTER_AUTHENTICATION_FAILED: _ROTATE,
    Reason.HARVESTER_UNREACHABLE: (
        f"Machines keep the state in which they were last seen. {_CONNECTION}"
    ),
    Reason.HARVESTER_CONNECTION_FAILED: (
        f"Check Secret {{identity}} and the connection to Harvester: {remedies.DOCTOR}"
    ),
    Reason.HARVESTER_CONNECTION_IN_PROGRESS: _CONNECTION,
    Reason.ANOTHER_HARVESTER: (
        "Write the kubeconfig of the former Harvester into Secret {identity}"
    ),
    Reason.CLUSTER_NAME_TAKEN: "Recreate the cluster with another name or targetNamespace",
    Reason.TARGET_NAMESPACE_NOT_READY: (
        "Create namespace {target} on Harvester, or grant the account its rights there"
    ),
    Reason.VM_IP_POOL_CREATION_FAILED: (
        "Correct vmNetworkConfig of the cluster, or free the name on Harvester"
    ),
    Reason.VM_IP_POOL_NOT_FOUND: (
        f"Create the IPPool on Harvester, or correct spec.vmNetworkConfig: {remedies.EDIT_OBJECT}"
    ),
    Reason.CUSTOM_POOL_CREATION_FAILED: (
        "Correct loadBalancerConfig of the cluster, or free the name on Harvester"
    ),
    Reason.VM_IP_POOL_EXHAUSTED: _POOLS,
    Reason.DEVICES_EXHAUSTED: (
        "The VM takes a device as soon as one is free: stop a VM on Harvester that uses one, "
        "enable another one there, or scale the pool down"
    ),
    Reason.VM_IP_ALLOCATION_FAILED: f"Compare the pools with the machines: {remedies.AUDIT_POOLS}",
    Reason.MACHINE_NOT_FOUND: (
        f"Its owner replaces it once a MachineHealthCheck marks it. By hand: {_REPLACE}"
    ),
    Reason.VM_PROVISIONING_FAILED: _CORRECT_TEMPLATE,
    Reason.VM_PROVISIONING_IN_PROGRESS: _LOOK,
    Reason.VM_DIFFERS: f"Correct the VM on Harvester, or replace the machine: {_REPLACE}",
    Reason.VM_UPDATING: (
        "Free what the message names: a host with room for the VM, or its quota. Or replace the "
        f"machine: {_REPLACE}"
    ),
    Reason.CLOUD_PROVIDER_CONFIG_FAILED: _LOOK,
    Reason.CLOUD_PROVIDER_CONFIG_IN_PROGRESS: _LOOK,
    Reason.FLEET_INTEGRATION_FAILED: (
        "Check the provider's rights on management.cattle.io and fleet.cattle.io"
    ),
    Reason.FLEET_INTEGRATION_IN_PROGRESS: (
        f"Check Rancher's import: {remedies.GET_RANCHER_CLUSTERS}"
    ),
    Reason.ADDON_BUNDLES_INVALID: (
        f"Correct what it names. To check the add-on settings: {remedies.RENDER_BUNDLES}"
    ),
    Reason.ADDON_BUNDLES_NOT_PUSHED: (
        "Correct what it names: repository, credentials or branch. The packager retries by itself"
    ),
    Reason.ADDON_BUNDLES_NOT_APPLIED: f"Check Fleet: {remedies.GET_BUNDLES}",
    Reason.ADDON_BUNDLES_MISSING: (
        "Install them with caphv bundles push or caphv packager run. If none is wanted: "
        f"{remedies.SUSPEND_ADDONS}"
    ),
    Reason.CLOUD_PROVIDER_CONFIG_EXPIRING: _CONNECTION,
    Reason.INFRASTRUCTURE_PROVISIONING_FAILED: _LOOK,
    Reason.CONTROL_PLANE_UNREACHABLE: f"Check the control plane's machines: {remedies.TREE}",
    Reason.FAILURE_DOMAIN_UNAVAILABLE: (
        "Machines there keep running. End the maintenance or the evacuation of a host, uncordon "
        "it, or restore its label"
    ),
    Reason.LIMIT_REACHED: "Find out what answers at the URL in Secret {identity}",
    Reason.IP_POOL_IN_USE: (
        "Delete on Harvester what the message names, or give it addresses of another IPPool"
    ),
    Reason.REFERENCE_NOT_ALLOWED: (
        "Ask the owner of the object for annotation caphv.io/allowed-namespaces, or use one in "
        "namespace {namespace}"
    ),
    Reason.IMAGES_IMPORTING: f"No action needed; to follow it: {remedies.FOLLOW_ALL}",
    Reason.IMAGE_IMPORT_FAILED: (
        f"Correct spec.images, or do what the message says on Harvester: {remedies.EDIT_OBJECT}"
    ),
    Reason.BACKUPS_REFUSED: (
        "Do what it says on Harvester before the next upgrade, or remove "
        f"spec.controlPlaneBackups: {remedies.EDIT_OBJECT}"
    ),
    Reason.BACKUP_FAILED: (
        "Correct the reason before the next upgrade; the condition stays until the next backup"
    ),
    Reason.EVACUATING: f"No action needed; to follow it: {remedies.FOLLOW_ALL}",
    Reason.EVACUATION_BLOCKED: (
        "Do what it says, or remove annotation caphv.io/evacuate from the host"
    ),
    # Cluster API
    "TopologyReconcileFailed": f"Correct spec.topology as it says: {remedies.EDIT_CLUSTER}",
    "ClusterClassNotReconciled": f"Check the ClusterClass: {remedies.GET_CLASSES}",
    "ProbeFailed": f"Check the control plane's address and its load balancer: {remedies.TREE}",
    "NodeNotHealthy": f"Check the Node in the workload cluster: {remedies.TREE}",
    "NodeDeleted": f"Replace the machine: {_REPLACE}",
    # Reasons of `machineproblems`, which no condition of a provider has.
    "WaitingForBootstrapData": f"Its log says what it waits for: {_BOOTSTRAP_LOGS}",
    "NodeNotJoined": (
        "Read in the guest why it does not join, with cloud-init status --long and the log of its "
        f"rke2-server, rke2-agent, k3s or kubelet. Its address: {remedies.TREE}"
    ),
    "WebhookUnavailable": (
        "Check that the provider runs, and the certificate of its webhooks: "
        f"{remedies.LOGS(namespace='caphv-system')}"
    ),
    "EtcdMemberNotReleased": (
        f"Check that the member is removed, and end the wait: {remedies.REMOVE_MEMBERS}"
    ),
    "DeletionHeld": (
        "Have the controller of the finalizer run, or, if nothing will remove the finalizer, "
        "remove it from the object on Harvester"
    ),
    Reason.QUOTA_EXHAUSTED: (
        "Raise the quota of namespace {target} on Harvester, or delete VMs there: the machine then "
        "continues"
    ),
    "HeldByRancher": (
        "Check the workload API and the status of the RKEControlPlane; to give the member up, "
        f"set annotation {RANCHER_FORCE_REMOVE_ANNOTATION}=true on the machine's RKEBootstrap"
    ),
    "Deleting": f"See what the deletion waits for: {remedies.EXPLAIN_DELETION}",
}


# Cluster API reverts changes of the objects that it creates from a topology, so that users must
# correct the variables of the topology.
_IN_TOPOLOGY: dict[str, str] = {
    Reason.INFRASTRUCTURE_PROVISIONING_FAILED: (
        f"Do what it says. Variables of the Cluster set its spec: {remedies.EDIT_CLUSTER}"
    ),
    Reason.IMAGE_IMPORT_FAILED: (
        "Correct variable images, or do what the message says on Harvester: "
        f"{remedies.EDIT_CLUSTER}"
    ),
    Reason.BACKUPS_REFUSED: (
        "Do what it says on Harvester before the next upgrade, or remove variable "
        f"controlPlaneBackups: {remedies.EDIT_CLUSTER}"
    ),
    Reason.VM_IP_POOL_CREATION_FAILED: (
        "Correct the variables of the addresses of machines, or free the name on "
        f"Harvester: {remedies.EDIT_CLUSTER}"
    ),
    Reason.VM_IP_POOL_NOT_FOUND: (
        "Create the IPPool on Harvester, or correct variable ipPoolRef or ipPoolRefs: "
        f"{remedies.EDIT_CLUSTER}"
    ),
    Reason.CUSTOM_POOL_CREATION_FAILED: (
        "Correct the variables of the load balancer, or free the name on Harvester: "
        f"{remedies.EDIT_CLUSTER}"
    ),
}

# Namespace and label of the provider by the kind of the bootstrap object, as clusterctl and the
# Cluster API operator install it.
_BOOTSTRAP_PROVIDERS = {
    "RKE2Config": ("rke2-bootstrap-system", "bootstrap-rke2"),
    "KThreesConfig": ("capi-k3s-bootstrap-system", "bootstrap-k3s"),
    "KubeadmConfig": ("capi-kubeadm-bootstrap-system", "bootstrap-kubeadm"),
    "TalosConfig": ("cabpt-system", "bootstrap-talos"),
}


def next_step(reason: str, subject: Subject, bootstrap: str = "") -> str:
    """Return the next step for a reason; for an unknown reason, the command that shows more.

    :param reason: the reason of a condition
    :param subject: the object that reports it
    :param bootstrap: the kind of the bootstrap object, if the reason is about such an object
    """
    template = _template(reason, subject)
    namespace, provider = _BOOTSTRAP_PROVIDERS.get(bootstrap, ("NAMESPACE", "PROVIDER"))
    identity_namespace, _, identity_name = subject.identity.rpartition("/")
    if is_cluster_identity(Key(identity_namespace, identity_name)):
        # Only its owner knows the Secret.
        identity_namespace = "NAMESPACE"
        identity_name = "NAME"

    return template.format(
        namespace=subject.namespace,
        cluster=subject.cluster,
        ref=f"{subject.namespace}/{subject.cluster}",
        identity=secret_name(subject.identity) or "with the identity",
        identity_namespace=identity_namespace or subject.namespace,
        identity_name=identity_name or "NAME",
        target=subject.target or "NAMESPACE",
        kind=subject.kind.lower(),
        name=subject.name,
        machine=subject.machine,
        describe=subject.describe,
        bootstrap_namespace=namespace,
        bootstrap_provider=provider,
    )


def _template(reason: str, subject: Subject) -> str:
    """Return the sentence for a reason, with the placeholders that `next_step` fills."""
    template = _BY_REASON.get(reason, _LOOK if subject.kind else _LOGS)
    if subject.topology:
        template = _IN_TOPOLOGY.get(reason, template)
    if reason == Reason.QUOTA_EXHAUSTED and subject.ran:
        return _START_AFTER_QUOTA
    if _REPLACE not in template:
        return template

    # A Machine can be replaced only if it exists and is not being deleted.
    if not subject.machine:
        is_orphan = subject.kind == "HarvesterMachine" and subject.unowned
        return _WITHOUT_MACHINE if is_orphan else _LOOK
    return _DELETING if subject.deleting else _machine_template(reason, subject, template)


def _machine_template(reason: str, subject: Subject, template: str) -> str:
    """Return `template`, or another sentence for a Machine that must not be replaced.

    :param template: the sentence that advises to replace the Machine
    """
    if template == _CORRECT_TEMPLATE and subject.ran:
        return _CORRECT_ON_HARVESTER
    if subject.only:
        is_lost = reason == Reason.MACHINE_NOT_FOUND and subject.kind == "HarvesterMachine"
        return _RESTORE_ONLY_VM if is_lost else _KEEP_ONLY_MACHINE

    if reason == Reason.MACHINE_NOT_FOUND and subject.unmarked:
        return _UNMARKED
    # The core creates the templates of a topology from its variables.
    if template == _CORRECT_TEMPLATE:
        return _ADD_ON_HARVESTER + (_CORRECT_VARIABLE if subject.topology else template)
    return template


def resume_command(obj: Obj) -> str:
    """Return the command that ends the pause of an object; empty if it is not marked as paused."""
    kind = str(obj["kind"]).lower()
    metadata = obj["metadata"]
    place = {"kind": kind, "name": metadata["name"], "namespace": metadata["namespace"]}
    # The provider would pause a parked cluster again.
    if kind == "cluster" and parking.concerns(obj) and not being_deleted(obj):
        return remedies.RESUME_PARKED(ref=key_of(obj))

    # A Cluster may be paused in both ways at once.
    commands = []
    if kind == "cluster" and at(obj, "spec", "paused"):
        # Without this pause, machines would be replaced while their servers are stopped.
        if ETCD_RESTORE_ANNOTATION in annotations_of(obj):
            commands.append(remedies.FINISH_RESTORE(ref=key_of(obj)))
        else:
            commands.append(remedies.RESUME_CLUSTER(**place))
    if PAUSED_ANNOTATION in annotations_of(obj):
        commands.append(remedies.REMOVE_ANNOTATION(**place, annotation=PAUSED_ANNOTATION))
    return " && ".join(commands)
