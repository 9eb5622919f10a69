"""Names that existing clusters, users and other controllers rely on: none may change, more may be added.

They are the Go provider's (CAPHV v0.10), Cluster API's (v1beta1 and v1beta2 contracts), Harvester's and Rancher's;
those below `caphv.io` are our own.
"""

import hashlib
import re
from enum import StrEnum
from typing import Any

_MAX_LABEL = 63

GROUP = "infrastructure.cluster.x-k8s.io"
VERSIONS = ("v1alpha1", "v1beta1")
STORED_VERSION = "v1beta1"
API_VERSION = f"{GROUP}/{STORED_VERSION}"

# The lease of the Go provider: sharing it keeps old and new from running at once.
LEASE = "1e1658d6.cluster.x-k8s.io"
# Renewed by a provider without leader election: it holds nothing, and says that the provider runs.
HEARTBEAT_LEASE = f"heartbeat.{LEASE}"
PACKAGER_LEASE = "packager.caphv.io"

CLUSTER_FINALIZER = "harvester.infrastructure.cluster.x-k8s.io/finalizer"
MACHINE_FINALIZER = "harvestermachine.infrastructure.cluster.x-k8s.io/finalizer"
# Written by early releases of the Go provider; swapped for the ones above on sight.
LEGACY_CLUSTER_FINALIZER = "harvester.infrastructure.cluster.x-k8s.io"
LEGACY_MACHINE_FINALIZER = "harvestermachine.infrastructure.cluster.x-k8s.io"
# On identity Secrets while a HarvesterCluster uses them: without it, a namespace could not be deleted. Deployments that
# share the load by a watch filter each have a finalizer, of the filter's name.
IDENTITY_FINALIZER_PREFIX = "identity.caphv.io/"

# On Harvester: the role of cloud providers, and its binding to the accounts of guests in a target namespace.
CLOUD_PROVIDER_ROLE = "harvesterhci.io:cloudprovider"
GUESTS_PREFIX = "caphv-guests:"

# Cluster API: labels
CLUSTER_NAME_LABEL = "cluster.x-k8s.io/cluster-name"
# Of CAPRKE2: the deletion of a Machine waits for it until the etcd member is removed.
RKE2_HOOK = "pre-terminate.delete.hook.machine.cluster.x-k8s.io/rke2-cleanup"
# Ours: Cluster API drains the older of two control plane machines only after the load balancer serves the newer one.
ENDPOINT_HOOK = "pre-drain.delete.hook.machine.cluster.x-k8s.io/caphv-endpoint"
CONTROL_PLANE_LABEL = "cluster.x-k8s.io/control-plane"
WATCH_FILTER_LABEL = "cluster.x-k8s.io/watch-filter"
# Cluster API: annotations
PAUSED_ANNOTATION = "cluster.x-k8s.io/paused"
CLONED_FROM_ANNOTATION = "cluster.x-k8s.io/cloned-from-name"
MANAGED_BY_ANNOTATION = "cluster.x-k8s.io/managed-by"

# Our own annotations on HarvesterCluster and HarvesterMachine
ADOPT_ANNOTATION = "caphv.io/adopt"
FORCE_DELETE_ANNOTATION = "caphv.io/force-delete"
RECONCILE_AT_ANNOTATION = "caphv.io/reconcile-at"
# On a HarvesterMachine whose providerID has another form than the provider's: the uid of its VM.
VM_UID_ANNOTATION = "caphv.io/vm-uid"
# On every object that `caphv restore` created: the identity of the backup.
RESTORED_FROM_ANNOTATION = "caphv.io/restored-from"
# On those of them that own objects on Harvester: who they were, `<uid of kube-system>/<uid>`.
FORMER_OWNER_ANNOTATION = "caphv.io/former-owner"
# On a Cluster that `caphv move` has paused: the uid of the target's namespace kube-system.
MOVING_ANNOTATION = "caphv.io/moving-to"
# On an identity Secret, while its token is rotated: the Secret on Harvester with the former token, to be deleted.
PREVIOUS_TOKEN_ANNOTATION = "caphv.io/previous-token"  # noqa: S105 - a name, not a token
# On identity Secrets and ConfigMaps: namespaces, comma-separated, or `*`, whose HarvesterClusters may use the object.
ALLOWED_NAMESPACES_ANNOTATION = "caphv.io/allowed-namespaces"
# Our own annotations on objects on Harvester: whom they belong to. Uids are those of the owner on the management
# cluster and of that cluster's kube-system namespace.
OWNER_CLUSTER_ANNOTATION = "caphv.io/management-cluster"
OWNER_ANNOTATION = "caphv.io/owner"
OWNER_UID_ANNOTATION = "caphv.io/owner-uid"
# And on the Secret with the cloud config in a workload cluster: hashes of its content and of what that was made from.
CONTENT_ANNOTATION = "caphv.io/content-hash"
INPUTS_ANNOTATION = "caphv.io/inputs-hash"
RENEW_AT_ANNOTATION = "caphv.io/renew-at"
EXPIRES_AT_ANNOTATION = "caphv.io/expires-at"

# And on IPPools, with an address behind it: which management cluster holds that address.
ADDRESS_HOLDER_PREFIX = "addresses.caphv.io/"
# And on IPPools: a resourceVersion that a write without an answer required. It can no longer take effect.
SUPERSEDED_ANNOTATION = "caphv.io/superseded-version"

# Settings of a cluster's add-ons, on the Cluster: ours, and those that the Go provider's generator wrote.
ADDON_VALUES_ANNOTATION = "addons.caphv.io/values"
ALLOW_NETWORK_CHANGE_ANNOTATION = "addons.caphv.io/allow-network-change"
# "true" leaves a cluster's bundles as they are.
SUSPEND_ADDONS_ANNOTATION = "addons.caphv.io/suspend"
# On the packager's Lease: upgrade all bundles in waves.
UPGRADE_ANNOTATION = "addons.caphv.io/upgrade"
# "true" on a Cluster lets its definition, and so the cluster, go without another confirmation.
CONFIRM_REMOVAL_ANNOTATION = "caphv.io/confirm-removal"
ADDONS_VARIABLE = "addons"
# Variables of the ClusterClasses that we ship, as far as add-ons depend on them.
CNI_VARIABLE = "cni"
CLOUD_CONFIG_VARIABLE = "cloudConfigDelivery"
CNI_LABEL = "cni"
CSI_LABEL = "csi"
WAVE_LABEL = "caphv.io/wave"
"""On a Cluster: in which wave its add-ons are upgraded."""
OLD_CNI_MTU_ANNOTATION = "caphv.io/cni-mtu"
OLD_CNI_ENCAPSULATION_ANNOTATION = "caphv.io/cni-encapsulation"
OLD_CNI_BGP_ANNOTATION = "caphv.io/cni-bgp"

# Harvester
CREATOR_LABEL = "harvesterhci.io/creator"
# Harvester's node driver: by this creator Harvester knows the VMs of guest clusters.
GUEST_CREATOR = "docker-machine-driver-harvester"
GUEST_CLUSTER_LABEL = "guestcluster.harvesterhci.io/name"
VM_NAME_LABEL = "harvesterhci.io/vmName"
VM_NAME_PREFIX_LABEL = "harvesterhci.io/vmNamePrefix"
MACHINE_TYPE_LABEL = "harvestercluster/machinetype"
SERVICE_LB_LABEL = "loadbalancer.harvesterhci.io/servicelb"
VOLUME_CLAIM_TEMPLATES_ANNOTATION = "harvesterhci.io/volumeClaimTemplates"
REMOVED_VOLUMES_ANNOTATION = "harvesterhci.io/removedPersistentVolumeClaims"
NETWORK_IPS_ANNOTATION = "networks.harvesterhci.io/ips"
DISK_NAMES_ANNOTATION = "harvesterhci.io/diskNames"
SSH_NAMES_ANNOTATION = "harvesterhci.io/sshNames"
IMAGE_ID_ANNOTATION = "harvesterhci.io/imageId"
WITNESS_LABEL = "node-role.harvesterhci.io/witness"
MAINTENANCE_ANNOTATION = "harvesterhci.io/maintain-status"
POD_REQUESTS_ANNOTATION = "management.cattle.io/pod-requests"
# Harvester stopped the VM because of the quota of its namespace, and says why.
INSUFFICIENT_QUOTA_ANNOTATION = "harvesterhci.io/insufficient-resource-quota"
RUN_STRATEGY_ANNOTATION = "harvesterhci.io/vmRunStrategy"

# ServiceAccounts
SERVICE_ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"
SERVICE_ACCOUNT_TOKEN_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 - a type, not a token

# Workload cluster
UNINITIALIZED_TAINT = "node.cloudprovider.kubernetes.io/uninitialized"
PROVIDER_ID_PREFIX = "harvester://"
HOSTNAME_LABEL = "kubernetes.io/hostname"
CPU_MANAGER_LABEL = "cpumanager"
"""Label of hosts for VMs with dedicated CPUs, which Harvester demands itself where a VM needs it."""
NETWORK_LABELS_PREFIX = "network.harvesterhci.io"
"""Prefix of labels of hosts that have a cluster network, which Harvester demands itself for the networks of a VM."""
ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"

# Rancher
AUTO_IMPORT_LABEL = "cluster-api.cattle.io/rancher-auto-import"
CAPI_OWNER_LABEL = "cluster-api.cattle.io/capi-cluster-owner"
AUTOSCALER_MIN_SIZE = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size"
AUTOSCALER_MAX_SIZE = "cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size"
CAPI_OWNER_NAMESPACE_LABEL = "cluster-api.cattle.io/capi-cluster-owner-ns"
# Turtles with feature `use-caapf`: Rancher imports the cluster, and leaves Fleet to CAAPF.
EXTERNALLY_MANAGED_ANNOTATION = "provisioning.cattle.io/externally-managed"
# Labels of a Cluster by which bundles are chosen, copied to its Fleet Cluster.
FLEET_LABELS = ("cni", "csi", "cloud-config")


class ConditionType(StrEnum):
    """Types of the conditions of HarvesterCluster and HarvesterMachine."""

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
    # HarvesterMachine
    VM_IP_ALLOCATED = "VMIPAllocated"
    VM_PROVISIONING_READY = "VMProvisioningReady"
    MACHINE_CREATED = "MachineCreated"
    VM_UP_TO_DATE = "VMUpToDate"
    GUEST_AGENT_CONNECTED = "GuestAgentConnected"


class Reason(StrEnum):
    """Reasons of conditions; of a true one it is the type's name with two exceptions, see `reason_when_true`."""

    CLOUD_PROVIDER_CONFIG_GENERATED = "CloudProviderConfigGeneratedSuccessfully"
    CUSTOM_IP_POOL_CREATED = "CustomIPPoolCreatedSuccessfully"
    # When false or unknown
    NOT_PAUSED = "NotPaused"
    INFRASTRUCTURE_PROVISIONING_IN_PROGRESS = "InfrastructureProvisioningInProgress"
    INFRASTRUCTURE_PROVISIONING_FAILED = "InfrastructureProvisioningFailed"
    IDENTITY_EXPIRING = "IdentityExpiring"
    IDENTITY_EXPIRED = "IdentityExpired"
    CROSS_NAMESPACE_REFERENCE = "CrossNamespaceReference"
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
    VM_PROVISIONING_IN_PROGRESS = "VMProvisioningInProgress"
    VM_PROVISIONING_FAILED = "VMProvisioningFailed"
    VM_IP_ALLOCATION_FAILED = "VMIPAllocationFailed"
    VM_IP_POOL_EXHAUSTED = "VMIPPoolExhausted"
    MACHINE_NOT_FOUND = "MachineNotFound"
    GUEST_AGENT_SILENT = "GuestAgentSilent"
    CONTROL_PLANE_UNREACHABLE = "ControlPlaneUnreachable"
    VM_DIFFERS = "VMDiffers"


def reason_when_true(condition_type: ConditionType) -> str:
    """Return the reason that the contract gives to a true condition of this type."""
    exceptions: dict[ConditionType, Reason] = {
        ConditionType.CLOUD_PROVIDER_CONFIG_READY: Reason.CLOUD_PROVIDER_CONFIG_GENERATED,
        ConditionType.CUSTOM_IP_POOL_CREATED: Reason.CUSTOM_IP_POOL_CREATED,
    }
    return str(exceptions.get(condition_type, condition_type))


def identity_finalizer(watch_filter: str = "") -> str:
    """Return the finalizer that a provider with this watch filter sets on identity Secrets."""
    return f"{IDENTITY_FINALIZER_PREFIX}{watch_filter or 'in-use'}"


def rfc1035(text: str) -> str:
    """Return a text as a name on Harvester: lower case, other characters to `-`, trimmed, `a-` before a digit."""
    name = re.sub(r"[^a-z0-9-]", "-", text.lower()).strip("-")
    return f"a-{name}" if name[:1].isdigit() else name


LOAD_BALANCER_SUFFIX = "lb"


def generated_names(obj: dict[str, Any], suffix: str) -> tuple[str, ...]:
    """Name of what is made on Harvester for a cluster, RFC 1035 of `<ns>-<HarvesterCluster>-<suffix>` (contract).

    The Go provider cut names at 63 characters, so that long ones could meet; ours end in a hash then, and the name that
    Go gave comes second.
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
