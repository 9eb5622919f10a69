"""The provider's metrics.

Dashboards and alerts of existing users rely on their names, labels and buckets.
"""

from __future__ import annotations

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
MACHINE_STATUS = Gauge(
    "caphv_machine_status",
    "1 if the machine is ready, otherwise 0; absent while it is paused.",
    ["cluster", "machine"],
)
MACHINE_RECONCILE_SECONDS = Histogram(
    "caphv_machine_reconcile_duration_seconds",
    "Duration of a machine's reconcile: normal or delete.",
    ["operation"],
)
IPPOOL_ALLOCATIONS = Counter("caphv_ippool_allocations_total", "Address allocation attempts.")
IPPOOL_ALLOCATION_ERRORS = Counter(
    "caphv_ippool_allocation_errors_total", "Failed address allocation attempts."
)
IPPOOL_RELEASES = Counter("caphv_ippool_releases_total", "Addresses released to their pool.")
IPPOOL_FREE = Gauge(
    "caphv_ippool_free_addresses",
    "Unallocated addresses of an IPPool that machines use.",
    ["harvester", "pool"],
)
ETCD_REMOVE = Counter("caphv_etcd_member_remove_total", "etcd member removal attempts.")
ETCD_REMOVE_ERRORS = Counter(
    "caphv_etcd_member_remove_errors_total", "Failed etcd member removals."
)
CLUSTER_RECONCILE_SECONDS = Histogram(
    "caphv_cluster_reconcile_duration_seconds",
    "Duration of a cluster's reconcile: normal or delete.",
    ["operation"],
)
CLUSTER_READY = Gauge(
    "caphv_cluster_ready",
    "1 if the cluster is ready, otherwise 0; absent while it is paused.",
    ["cluster"],
)
IDENTITY_EXPIRY = Gauge(
    "caphv_identity_expiry_seconds",
    "Seconds until the credentials of an identity Secret expire, negative once they have.",
    ["identity"],
)
HARVESTER_SECONDS = Histogram(
    "caphv_harvester_request_duration_seconds",
    "Time from sending a request to Harvester to having its answer, watches excluded.",
    ["identity"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 5, 15),
)
HARVESTER_ERRORS = Counter(
    "caphv_harvester_request_errors_total",
    "Requests and watches that Harvester refused (401, 403, 429), failed (5xx) or did not answer "
    "(none). Denials by admission webhooks do not count.",
    ["identity", "code"],
)
HARVESTER_REACHABLE = Gauge(
    "caphv_harvester_reachable",
    "1 if a Harvester answers the provider, if only with a refusal, otherwise 0.",
    ["harvester", "identity"],
)
IDENTITY_ACCEPTED = Gauge(
    "caphv_identity_accepted",
    "1 if Harvester accepts the credentials of an identity Secret, 0 if it rejects them (401); "
    "absent while it does not answer.",
    ["identity"],
)
NODE_INIT = Counter("caphv_node_init_total", "Node initialization attempts.")
NODE_INIT_ERRORS = Counter("caphv_node_init_errors_total", "Failed node initializations.")
NODE_INIT_SECONDS = Histogram(
    "caphv_node_init_duration_seconds",
    "Time from the registration of a Node to its initialization.",
    buckets=[0.5 * 2.0**n for n in range(8)],
)


# Other refusals (404, 409, 410, 422 with every denial of an admission webhook) are expected.
_REFUSALS = (401, 403, 429)


class IdentityRequests:
    """Count the requests of one identity (`<namespace>/<Secret>`) to Harvester."""

    def __init__(self, identity: str) -> None:
        # Look the labels up once, because `count` is called for each request.
        self._seconds = HARVESTER_SECONDS.labels(identity)
        self._identity = identity

    def count(self, code: int, seconds: float | None) -> None:
        """Count one response, as reported by `ApiClient`."""
        if seconds is not None:
            self._seconds.observe(seconds)
        if code == 0 or code >= 500 or code in _REFUSALS:
            HARVESTER_ERRORS.labels(self._identity, str(code or "none")).inc()


def forget_identity(identity: str) -> None:
    """Remove the series of an identity that is no longer used."""
    HARVESTER_SECONDS.remove_by_labels({"identity": identity})
    HARVESTER_ERRORS.remove_by_labels({"identity": identity})
