"""Names on which clusters, users and other controllers rely. They may be added, never changed.

They come from the Go provider (CAPHV v0.10), Cluster API (v1beta1 and v1beta2 contracts), Harvester
and Rancher. Names below `caphv.io` are our own.
"""

import hashlib
import re
from enum import StrEnum

from caphv.api.object import Obj

_MAX_LABEL = 63

GROUP = "infrastructure.cluster.x-k8s.io"
VERSIONS = ("v1alpha1", "v1beta1")
STORED_VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{STORED_VERSION}"

# The lease of the Go provider. We share it, so that both providers never run at once.
LEASE = "1e1658d6.cluster.x-k8s.io"
# A provider without leader election renews this Lease to show that it runs. It excludes no other.
HEARTBEAT_LEASE = f"heartbeat.{LEASE}"
PACKAGER_LEASE = "packager.caphv.io"

CLUSTER_FINALIZER = "harvester.infrastructure.cluster.x-k8s.io/finalizer"
MACHINE_FINALIZER = "harvestermachine.infrastructure.cluster.x-k8s.io/finalizer"
# Early releases of the Go provider wrote these. We replace them by the ones above.
LEGACY_CLUSTER_FINALIZER = "harvester.infrastructure.cluster.x-k8s.io"
LEGACY_MACHINE_FINALIZER = "harvestermachine.infrastructure.cluster.x-k8s.io"
# On identity Secrets while a HarvesterCluster uses them. Without it, a namespace could not be
# deleted. Deployments that share the load by a watch filter each have their own finalizer, with the
# name of the filter.
IDENTITY_FINALIZER_PREFIX = "identity.caphv.io/"
# On the Secret with a renewed token, until the token is revoked. `caphv identity remove-finalizers`
# finds it by the prefix.
RENEWED_TOKEN_FINALIZER = f"{IDENTITY_FINALIZER_PREFIX}renewed-token"

# On Harvester: the role of cloud providers, and its binding to the accounts of guests in a target
# namespace.
CLOUD_PROVIDER_ROLE = "harvesterhci.io:cloudprovider"
GUESTS_PREFIX = "caphv-guests:"

# Cluster API: labels
CLUSTER_NAME_LABEL = "cluster.x-k8s.io/cluster-name"
# Hook of CAPRKE2, which delays the deletion of a Machine until the etcd member is removed.
RKE2_HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/rke2-cleanup"
# Our hook, which delays the drain of the older of two control plane machines until the load
# balancer serves the newer one.
ENDPOINT_HOOK = "pre-drain.delete.hook.machine.cluster.x-k8s.io/caphv-endpoint"
CONTROL_PLANE_LABEL = "cluster.x-k8s.io/control-plane"
# The name of the control plane object. Pre-releases of Rancher 2.8 set this label only.
CONTROL_PLANE_NAME_LABEL = "cluster.x-k8s.io/control-plane-name"
# Rancher: roles of the machines of a pool, with value "true".
RANCHER_CONTROL_PLANE_LABEL = "rke.cattle.io/control-plane-role"
RANCHER_ETCD_LABEL = "rke.cattle.io/etcd-role"
RANCHER_WORKER_LABEL = "rke.cattle.io/worker-role"
# Hook of Rancher, which delays the deletion of a Machine until its etcd member is removed.
RANCHER_HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/rke-bootstrap-cleanup"
# On an RKEBootstrap, with value "true": Rancher removes its hook although the member may remain.
RANCHER_FORCE_REMOVE_ANNOTATION = "rke.cattle.io/etcd-force-remove"
# On Machines, the name of their MachineDeployment; on the objects of a topology, that of the pool.
DEPLOYMENT_LABEL = "cluster.x-k8s.io/deployment-name"
POOL_LABEL = "topology.cluster.x-k8s.io/deployment-name"
WATCH_FILTER_LABEL = "cluster.x-k8s.io/watch-filter"
# Cluster API: annotations
PAUSED_ANNOTATION = "cluster.x-k8s.io/paused"
CLONED_FROM_ANNOTATION = "cluster.x-k8s.io/cloned-from-name"
# On a Machine: no MachineHealthCheck replaces it. The value is free, and ours says that we set it.
SKIP_REMEDIATION_ANNOTATION = "cluster.x-k8s.io/skip-remediation"
SKIPPED_BY_US = "caphv.io/evacuate"
# On a Machine that a user wants to be replaced as a failed one.
REMEDIATE_ANNOTATION = "cluster.x-k8s.io/remediate-machine"
MANAGED_BY_ANNOTATION = "cluster.x-k8s.io/managed-by"
# On a Machine and its objects while a runtime extension updates them in place.
UPDATE_IN_PROGRESS_ANNOTATION = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress"

# Our own annotations on HarvesterCluster and HarvesterMachine
ADOPT_ANNOTATION = "caphv.io/adopt"
FORCE_DELETE_ANNOTATION = "caphv.io/force-delete"
RECONCILE_AT_ANNOTATION = "caphv.io/reconcile-at"
# On a MachineDeployment or the machines of a control plane: how changes reach their machines.
IN_PLACE_ANNOTATION = "caphv.io/in-place-updates"
# On a HarvesterMachine whose providerID does not carry the uid of its VM: this uid.
VM_UID_ANNOTATION = "caphv.io/vm-uid"
# On a HarvesterMachine whose VM waits for its backup: since when, or that the wait was given up.
VM_BACKUP_ANNOTATION = "caphv.io/vm-backup"
# On every object that `caphv restore` created: the identity of the backup.
RESTORED_FROM_ANNOTATION = "caphv.io/restored-from"
# On restored objects that own objects on Harvester: their former identity, as
# `<uid of kube-system>/<uid>`.
FORMER_OWNER_ANNOTATION = "caphv.io/former-owner"
# On a Cluster that `caphv move` has paused: the uid of the target's namespace kube-system.
MOVING_ANNOTATION = "caphv.io/moving-to"
# On a Cluster that `caphv etcd restore` has paused: snapshot and machine, as JSON.
ETCD_RESTORE_ANNOTATION = "caphv.io/etcd-restore"
# On a Cluster: "true" parks it, "false" resumes it. Without it, a schedule decides if there is one.
# The other four record for the provider that the schedule parks it now, since when it is parked,
# that the provider has paused it, and which machine stops last.
PARK_ANNOTATION = "caphv.io/park"
PARK_SCHEDULE_ANNOTATION = "caphv.io/park-schedule"
PARKED_BY_SCHEDULE_ANNOTATION = "caphv.io/parked-by-schedule"
PARKED_SINCE_ANNOTATION = "caphv.io/parked-since"
PAUSED_BY_PARK_ANNOTATION = "caphv.io/paused-by-park"
STOPS_LAST_ANNOTATION = "caphv.io/parked-stops-last"
# On the VM of a machine that is parked: the run strategy that it had.
PARKED_STRATEGY_ANNOTATION = "caphv.io/parked-run-strategy"
# On a Node that is parked: uid of its VM's instance and boot id, which differ in a report after the
# next start, and that the provider has cordoned it.
PARKED_BOOT_ANNOTATION = "caphv.io/parked-boot"
CORDONED_BY_PARK_ANNOTATION = "caphv.io/cordoned-by-park"
# On a host of Harvester: "true" has the provider move guests away that Harvester cannot migrate,
# "force" also those whose Nodes cannot be drained.
EVACUATE_ANNOTATION = "caphv.io/evacuate"
# Records of that, until it ends. On the HarvesterMachine: the host that its VM leaves. On the VM:
# the run strategy that it had, and whether it was started again. On the Node: its boot id, and that
# the provider has cordoned it.
EVACUATED_FROM_ANNOTATION = "caphv.io/evacuated-from"
EVACUATED_STRATEGY_ANNOTATION = "caphv.io/evacuated-run-strategy"
EVACUATED_BOOT_ANNOTATION = "caphv.io/evacuated-boot"
EVACUATION_STARTED_ANNOTATION = "caphv.io/evacuated-started"
CORDONED_BY_EVACUATION_ANNOTATION = "caphv.io/cordoned-by-evacuation"
# On the VM: the hosts (comma-separated) on which it must not start while they are evacuated.
AVOIDED_HOSTS_ANNOTATION = "caphv.io/avoided-hosts"
# On an identity Secret while its token is rotated: the Secret on Harvester with the former token,
# which is deleted afterwards.
PREVIOUS_TOKEN_ANNOTATION = "caphv.io/previous-token"  # noqa: S105 - a name, not a token
# On identity Secrets and ConfigMaps: the namespaces (comma-separated, or `*`) whose
# HarvesterClusters may use the object.
ALLOWED_NAMESPACES_ANNOTATION = "caphv.io/allowed-namespaces"
# On the provider's namespace: folder of the sandbox that runs the provider without a Deployment.
SANDBOX_ANNOTATION = "caphv.io/sandbox"
# Our own annotations on objects on Harvester, which record the owner. Uids belong to the owner on
# the management cluster and to the kube-system namespace of that cluster.
OWNER_CLUSTER_ANNOTATION = "caphv.io/management-cluster"
OWNER_ANNOTATION = "caphv.io/owner"
OWNER_UID_ANNOTATION = "caphv.io/owner-uid"
# On load balancers and volumes that a guest created: the HarvesterClusters to which Harvester
# has shown that they belong, and the reclaim policy that a volume has in its workload cluster.
GUEST_OF_ANNOTATION = "caphv.io/guest-of"
# On a VM: uids of the management clusters from which its machine was moved, the last at the end.
FORMER_CLUSTERS_ANNOTATION = "caphv.io/former-management-clusters"
RECLAIM_POLICY_ANNOTATION = "caphv.io/reclaim-policy"
# Our own label on VMs: namespace and name of their Cluster.
CLUSTER_LABEL = "caphv.io/cluster"
# On VMs of machines to which Rancher gives the role etcd: they are spread over hosts.
ETCD_LABEL = "caphv.io/etcd"
# On backups of replaced machines that outlive their cluster, as its spec says.
RETAINED_ANNOTATION = "caphv.io/retained"
# Our own label on VirtualMachineImages that the provider has imported, for whatever cluster.
IMPORTED_LABEL = "caphv.io/imported"
# On the Secret with the cloud config in a workload cluster: hashes of its content and of the inputs
# of that content, and times of its token.
CONTENT_ANNOTATION = "caphv.io/content-hash"
INPUTS_ANNOTATION = "caphv.io/inputs-hash"
RENEW_AT_ANNOTATION = "caphv.io/renew-at"
EXPIRES_AT_ANNOTATION = "caphv.io/expires-at"

# On IPPools, followed by an address: the management cluster that holds the address.
ADDRESS_HOLDER_PREFIX = "addresses.caphv.io/"
# On IPPools: the resourceVersion that a write without an answer requires. The write can no longer
# take effect.
SUPERSEDED_ANNOTATION = "caphv.io/superseded-version"

# On a Cluster: settings of its add-ons. The Go provider's generator wrote the `OLD_` ones below.
ADDON_VALUES_ANNOTATION = "addons.caphv.io/values"
ALLOW_NETWORK_CHANGE_ANNOTATION = "addons.caphv.io/allow-network-change"
# "true" keeps a cluster's bundles unchanged.
SUSPEND_ADDONS_ANNOTATION = "addons.caphv.io/suspend"
# "true" on a Cluster lets its definition, and so the cluster, go without another confirmation.
CONFIRM_REMOVAL_ANNOTATION = "caphv.io/confirm-removal"
ADDONS_VARIABLE = "addons"
# Variables of the ClusterClasses that we ship, as far as add-ons depend on them.
CNI_VARIABLE = "cni"
CLOUD_CONFIG_VARIABLE = "cloudConfigDelivery"
CNI_LABEL = "cni"
CSI_LABEL = "csi"
WAVE_LABEL = "caphv.io/wave"
"""On a Cluster: the wave in which its add-ons are upgraded."""
OLD_CNI_MTU_ANNOTATION = "caphv.io/cni-mtu"
OLD_CNI_ENCAPSULATION_ANNOTATION = "caphv.io/cni-encapsulation"
OLD_CNI_BGP_ANNOTATION = "caphv.io/cni-bgp"

# Harvester
CREATOR_LABEL = "harvesterhci.io/creator"
# The creator by which Harvester recognizes VMs of guest clusters, as its node driver sets it.
GUEST_CREATOR = "docker-machine-driver-harvester"
GUEST_CLUSTER_LABEL = "guestcluster.harvesterhci.io/name"
# Of the cloud provider of guests, on LoadBalancers: the guest and its Service.
BALANCER_CLUSTER_LABEL = "cloudprovider.harvesterhci.io/cluster"
BALANCER_SERVICE_NAMESPACE_LABEL = "cloudprovider.harvesterhci.io/serviceNamespace"
BALANCER_SERVICE_LABEL = "cloudprovider.harvesterhci.io/serviceName"
VM_NAME_LABEL = "harvesterhci.io/vmName"
VM_NAME_PREFIX_LABEL = "harvesterhci.io/vmNamePrefix"
MACHINE_TYPE_LABEL = "harvestercluster/machinetype"
SERVICE_LB_LABEL = "loadbalancer.harvesterhci.io/servicelb"
VIP_ANNOTATION = "kube-vip.io/loadbalancerIPs"
VOLUME_CLAIM_TEMPLATES_ANNOTATION = "harvesterhci.io/volumeClaimTemplates"
REMOVED_VOLUMES_ANNOTATION = "harvesterhci.io/removedPersistentVolumeClaims"
NETWORK_IPS_ANNOTATION = "networks.harvesterhci.io/ips"
DISK_NAMES_ANNOTATION = "harvesterhci.io/diskNames"
SSH_NAMES_ANNOTATION = "harvesterhci.io/sshNames"
IMAGE_ID_ANNOTATION = "harvesterhci.io/imageId"
# Of Harvester's UI, on images: `iso` or `raw_qcow2`.
IMAGE_TYPE_LABEL = "harvesterhci.io/image-type"
# Name of the CSI driver of Longhorn, also as provisioner of StorageClasses.
LONGHORN_DRIVER = "driver.longhorn.io"
WITNESS_LABEL = "node-role.harvesterhci.io/witness"
MAINTENANCE_ANNOTATION = "harvesterhci.io/maintain-status"
# On a host that Harvester is asked to drain for maintenance, or to drain by force, and the taint of
# a host that it drains for an upgrade.
DRAIN_REQUESTED_ANNOTATION = "harvesterhci.io/drain-requested"
DRAIN_FORCED_ANNOTATION = "harvesterhci.io/drain-forced"
DRAIN_TAINT = "kubevirt.io/drain"
# On a VM: Harvester stops it for the maintenance of its host, because its user wants that.
MAINTENANCE_STRATEGY_LABEL = "harvesterhci.io/maintain-mode-strategy"
# On a VM that Harvester has stopped because of this label: the host, after whose maintenance it may
# start the VM again.
MAINTENANCE_HOST_ANNOTATION = "harvesterhci.io/maintain-mode-strategy-node-name"
POD_REQUESTS_ANNOTATION = "management.cattle.io/pod-requests"
# The reason why Harvester stopped a VM because of the quota of its namespace.
INSUFFICIENT_QUOTA_ANNOTATION = "harvesterhci.io/insufficient-resource-quota"
RUN_STRATEGY_ANNOTATION = "harvesterhci.io/vmRunStrategy"
# "true" on a VM lets Harvester keep its maxima of CPU and memory, up to which it can grow.
HOTPLUG_ANNOTATION = "harvesterhci.io/enableCPUAndMemoryHotplug"
# On what Harvester restored from a backup: the VirtualMachineRestore.
RESTORE_ANNOTATION = "restore.harvesterhci.io/name"

# ServiceAccounts
SERVICE_ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"
SERVICE_ACCOUNT_TOKEN_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 - a type

# Workload cluster
UNINITIALIZED_TAINT = "node.cloudprovider.kubernetes.io/uninitialized"
PROVIDER_ID_PREFIX = "harvester://"
HOSTNAME_LABEL = "kubernetes.io/hostname"
CPU_MANAGER_LABEL = "cpumanager"
"""Label of hosts for VMs with dedicated CPUs. Harvester requires it for such VMs."""
NETWORK_LABELS_PREFIX = "network.harvesterhci.io"
"""Prefix of labels of hosts with a cluster network. Harvester requires them for a VM's networks."""
ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"

# Rancher
AUTO_IMPORT_LABEL = "cluster-api.cattle.io/rancher-auto-import"
CAPI_OWNER_LABEL = "cluster-api.cattle.io/capi-cluster-owner"
AUTOSCALER_MIN_SIZE = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
AUTOSCALER_MAX_SIZE = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
CAPI_OWNER_NAMESPACE_LABEL = "cluster-api.cattle.io/capi-cluster-owner-ns"
# With Turtles' feature `use-caapf`, Rancher imports the cluster, but CAAPF integrates it into
# Fleet.
EXTERNALLY_MANAGED_ANNOTATION = "provisioning.cattle.io/externally-managed"
# Labels of a Cluster by which bundles are chosen, copied to its Fleet Cluster.
FLEET_LABELS = ("cni", "csi", "cloud-config")


class ConditionType(StrEnum):
    """Types of the conditions of the kinds of this provider."""

    READY = "Ready"
    PAUSED = "Paused"
    INFRASTRUCTURE_READY = "InfrastructureReady"
    # HarvesterCluster
    IDENTITY_UP_TO_DATE = "IdentityUpToDate"
    REFERENCES_ALLOWED = "ReferencesAllowed"
    HARVESTER_CONNECTION_READY = "HarvesterConnectionReady"
    WITHIN_LIMITS = "WithinLimits"
    TARGET_NAMESPACE_READY = "TargetNamespaceReady"
    FAILURE_DOMAINS_AVAILABLE = "FailureDomainsAvailable"
    VM_IP_POOL_READY = "VMIPPoolReady"
    VM_IP_POOL_CREATED = "VMIPPoolCreatedByController"
    CUSTOM_IP_POOL_CREATED = "CustomIPPoolCreated"
    CLOUD_PROVIDER_CONFIG_READY = "CloudProviderConfigReady"
    LOAD_BALANCER_READY = "LoadBalancerReady"
    INIT_MACHINE_CREATED = "InitMachineCreated"
    FLEET_INTEGRATION_READY = "FleetIntegrationReady"
    ADDON_BUNDLES_READY = "AddonBundlesReady"
    IMAGES_READY = "ImagesReady"
    CONTROL_PLANE_BACKUPS_READY = "ControlPlaneBackupsReady"
    PARKED = "Parked"
    HOSTS_EVACUATED = "HostsEvacuated"
    # HarvesterClusterIdentity
    TOKEN_RENEWED = "TokenRenewed"  # noqa: S105 - a type
    # HarvesterMachine
    VM_IP_ALLOCATED = "VMIPAllocated"
    VM_PROVISIONING_READY = "VMProvisioningReady"
    MACHINE_CREATED = "MachineCreated"
    VM_UP_TO_DATE = "VMUpToDate"
    VM_CAN_GROW = "VMCanGrow"
    DISKS_CAN_GROW = "DisksCanGrow"
    DISKS_CAN_BE_ADDED = "DisksCanBeAdded"
    GUEST_AGENT_CONNECTED = "GuestAgentConnected"


class Reason(StrEnum):
    """Reasons of conditions. For the reason of a true condition, see `reason_when_true`."""

    CLOUD_PROVIDER_CONFIG_GENERATED = "CloudProviderConfigGeneratedSuccessfully"
    CUSTOM_IP_POOL_CREATED = "CustomIPPoolCreatedSuccessfully"
    # When false or unknown
    NOT_PAUSED = "NotPaused"
    INFRASTRUCTURE_PROVISIONING_IN_PROGRESS = "InfrastructureProvisioningInProgress"
    INFRASTRUCTURE_PROVISIONING_FAILED = "InfrastructureProvisioningFailed"
    IDENTITY_EXPIRING = "IdentityExpiring"
    IDENTITY_EXPIRED = "IdentityExpired"
    # Of a HarvesterClusterIdentity
    TOKEN_NOT_EXCHANGED = "TokenNotExchanged"  # noqa: S105 - a reason
    TOKEN_NOT_RENEWED = "TokenNotRenewed"  # noqa: S105 - a reason
    REFERENCE_NOT_ALLOWED = "ReferenceNotAllowed"
    REFERENCES_CHECKING = "ReferencesChecking"
    ANOTHER_HARVESTER = "AnotherHarvester"
    HARVESTER_CONNECTION_IN_PROGRESS = "HarvesterConnectionInProgress"
    HARVESTER_CONNECTION_FAILED = "HarvesterConnectionFailed"
    HARVESTER_UNREACHABLE = "HarvesterUnreachable"
    HARVESTER_AUTHENTICATION_FAILED = "HarvesterAuthenticationFailed"
    LIMIT_REACHED = "LimitReached"
    TARGET_NAMESPACE_CHECKING = "TargetNamespaceChecking"
    TARGET_NAMESPACE_NOT_READY = "TargetNamespaceNotReady"
    CLUSTER_NAME_TAKEN = "ClusterNameTaken"
    FAILURE_DOMAIN_UNAVAILABLE = "FailureDomainUnavailable"
    VM_IP_POOL_CREATION_FAILED = "VMIPPoolCreationFailed"
    VM_IP_POOL_NOT_FOUND = "VMIPPoolNotFound"
    IP_POOL_IN_USE = "IPPoolInUse"
    CUSTOM_POOL_CREATION_FAILED = "CustomPoolCreationInHarvesterFailed"
    CLOUD_PROVIDER_CONFIG_IN_PROGRESS = "CloudProviderConfigGenerationInProgress"
    CLOUD_PROVIDER_CONFIG_FAILED = "CloudProviderConfigGenerationFailed"
    CLOUD_PROVIDER_CONFIG_EXPIRING = "CloudProviderConfigExpiring"
    FLEET_INTEGRATION_NOT_APPLICABLE = "FleetIntegrationNotApplicable"
    FLEET_INTEGRATION_IN_PROGRESS = "FleetIntegrationInProgress"
    FLEET_INTEGRATION_FAILED = "FleetIntegrationFailed"
    ADDON_BUNDLES_IN_PROGRESS = "AddonBundlesInProgress"
    ADDON_BUNDLES_SUSPENDED = "AddonBundlesSuspended"
    ADDON_BUNDLES_INVALID = "AddonBundlesInvalid"
    ADDON_BUNDLES_NOT_PUSHED = "AddonBundlesNotPushed"
    ADDON_BUNDLES_NOT_APPLIED = "AddonBundlesNotApplied"
    ADDON_BUNDLES_MISSING = "AddonBundlesMissing"
    IMAGES_IMPORTING = "ImagesImporting"
    IMAGE_IMPORT_FAILED = "ImageImportFailed"
    BACKUPS_REFUSED = "BackupsRefused"
    BACKUP_FAILED = "BackupFailed"
    PARKING = "Parking"
    RESUMING = "Resuming"
    PARK_BLOCKED = "ParkBlocked"
    EVACUATING = "Evacuating"
    EVACUATION_BLOCKED = "EvacuationBlocked"
    VM_PROVISIONING_IN_PROGRESS = "VMProvisioningInProgress"
    VM_PROVISIONING_FAILED = "VMProvisioningFailed"
    VM_IP_ALLOCATION_FAILED = "VMIPAllocationFailed"
    VM_IP_POOL_EXHAUSTED = "VMIPPoolExhausted"
    VM_IP_CLAIM_PENDING = "VMIPClaimPending"
    IPAM_NOT_AVAILABLE = "IPAMNotAvailable"
    DEVICES_EXHAUSTED = "DevicesExhausted"
    QUOTA_EXHAUSTED = "QuotaExhausted"
    MACHINE_NOT_FOUND = "MachineNotFound"
    GUEST_AGENT_SILENT = "GuestAgentSilent"
    CONTROL_PLANE_UNREACHABLE = "ControlPlaneUnreachable"
    VM_DIFFERS = "VMDiffers"
    VM_UPDATING = "VMUpdating"
    VM_CANNOT_GROW = "VMCannotGrow"
    DISKS_CANNOT_GROW = "DisksCannotGrow"
    DISKS_CANNOT_BE_ADDED = "DisksCannotBeAdded"


def reason_when_true(condition_type: ConditionType) -> str:
    """Return the reason that a true condition of this type has by contract."""
    exceptions: dict[ConditionType, Reason] = {
        ConditionType.CLOUD_PROVIDER_CONFIG_READY: Reason.CLOUD_PROVIDER_CONFIG_GENERATED,
        ConditionType.CUSTOM_IP_POOL_CREATED: Reason.CUSTOM_IP_POOL_CREATED,
    }
    return str(exceptions.get(condition_type, condition_type))


def identity_finalizer(watch_filter: str = "") -> str:
    """Return the finalizer that a provider with this watch filter sets on identity Secrets."""
    return f"{IDENTITY_FINALIZER_PREFIX}{watch_filter or 'in-use'}"


def rfc1035(text: str) -> str:
    """Convert a text to a name on Harvester.

    Letters become lower case, and other characters become `-`, which is removed at both ends. `a-`
    is put before a leading digit.
    """
    name = re.sub(r"[^a-z0-9-]", "-", text.lower()).strip("-")
    return f"a-{name}" if name[:1].isdigit() else name


LOAD_BALANCER_SUFFIX = "lb"
# Of the IPPools of load balancers and of VMs.
POOL_SUFFIX = "ippool"
VM_POOL_SUFFIX = "vm-ippool"


def generated_names(obj: Obj, suffix: str) -> tuple[str, ...]:
    """Return the names that a cluster's object on Harvester may have, the one to use first.

    The contract requires `<ns>-<HarvesterCluster>-<suffix>` in the form of RFC 1035. The Go
    provider cut names at 63 characters, so that two long names could be the same. Our long names
    end in a hash, and the name of the Go provider comes second.
    """
    metadata = obj["metadata"]
    owner = f"{metadata['namespace']}-{metadata['name']}"
    full = rfc1035(f"{owner}-{suffix}")
    cut = full[:_MAX_LABEL].rstrip("-")
    if full == cut:
        return (full,)
    digest = hashlib.sha256(f"{metadata['namespace']}/{metadata['name']}".encode()).hexdigest()[:8]
    start = rfc1035(owner)[: _MAX_LABEL - len(suffix) - len(digest) - 2].rstrip("-")
    return f"{start}-{digest}-{suffix}", cut
