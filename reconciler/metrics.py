"""The provider's metrics, under the names, labels and buckets that dashboards and alerts of existing users rely on."""

from __future__ import annotations

import datetime

from prometheus_client import Counter, Gauge, Histogram

MACHINE_CREATE = Counter("caphv_machine_create_total", "VM creation attempts.")
MACHINE_CREATE_ERRORS = Counter("caphv_machine_create_errors_total", "Failed VM creation attempts.")
MACHINE_CREATION_SECONDS = Histogram(
    "caphv_machine_creation_duration_seconds",
    "Time from the request for a VM to its first address.",
    buckets=[2.0**n for n in range(10)],
)
MACHINE_DELETE = Counter("caphv_machine_delete_total", "VM deletion attempts.")
MACHINE_DELETE_ERRORS = Counter("caphv_machine_delete_errors_total", "Failed VM deletion attempts.")
MACHINE_STATUS = Gauge("caphv_machine_status", "1 for a ready machine, 0 for another.", ["cluster", "machine"])
MACHINE_RECONCILE_SECONDS = Histogram(
    "caphv_machine_reconcile_duration_seconds", "Duration of a machine's reconcile: normal or delete.", ["operation"]
)
IPPOOL_ALLOCATIONS = Counter("caphv_ippool_allocations_total", "Address allocation attempts.")
IPPOOL_ALLOCATION_ERRORS = Counter("caphv_ippool_allocation_errors_total", "Failed address allocation attempts.")
IPPOOL_RELEASES = Counter("caphv_ippool_releases_total", "Addresses given back to their pool.")
ETCD_REMOVE = Counter("caphv_etcd_member_remove_total", "etcd member removal attempts.")
ETCD_REMOVE_ERRORS = Counter("caphv_etcd_member_remove_errors_total", "Failed etcd member removals.")
CLUSTER_RECONCILE_SECONDS = Histogram(
    "caphv_cluster_reconcile_duration_seconds", "Duration of a cluster's reconcile: normal or delete.", ["operation"]
)
CLUSTER_READY = Gauge("caphv_cluster_ready", "1 for a ready cluster, 0 for another.", ["cluster"])
IDENTITY_EXPIRY = Gauge(
    "caphv_identity_expiry_timestamp_seconds",
    "When the credentials of an identity Secret expire (Unix time).",
    ["identity"],
)
NODE_INIT = Counter("caphv_node_init_total", "Node initialization attempts.")
NODE_INIT_ERRORS = Counter("caphv_node_init_errors_total", "Failed node initializations.")
NODE_INIT_SECONDS = Histogram(
    "caphv_node_init_duration_seconds",
    "Time from seeing a Node to having it initialized.",
    buckets=[0.5 * 2.0**n for n in range(8)],
)


def age(timestamp: str) -> float:
    """Seconds since a time that an API server wrote (whole seconds; never negative)."""
    moment = datetime.datetime.fromisoformat(timestamp)
    return max(0.0, (datetime.datetime.now(datetime.UTC) - moment).total_seconds())
