"""Metrics of the packager, in a registry of their own because another process may serve them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

REGISTRY = CollectorRegistry()
ProcessCollector(namespace="caphv_packager", registry=REGISTRY)

SYNCS = Counter(
    "caphv_packager_syncs_total",
    "Syncs of the repository by result: `pushed`, `unchanged` or `failed`.",
    ["result"],
    registry=REGISTRY,
)
SYNC_SECONDS = Histogram(
    "caphv_packager_sync_duration_seconds",
    "Time from taking the changes to having them in the repository, or to nothing being left "
    "to do.",
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
    registry=REGISTRY,
)
RENDERS = Counter(
    "caphv_packager_renders_total",
    "Clusters rendered after a change, by result: `ok` or `invalid`.",
    ["result"],
    registry=REGISTRY,
)
COMMITS = Counter("caphv_packager_commits_total", "Commits pushed.", registry=REGISTRY)
PUSH_SECONDS = Histogram(
    "caphv_packager_push_duration_seconds",
    "Duration of successful pushes.",
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    registry=REGISTRY,
)
LAG = Gauge(
    "caphv_packager_lag_seconds",
    "Age of the oldest change on the management cluster that is not in the repository; 0 when all "
    "are.",
    registry=REGISTRY,
)
ERRORS = Counter(
    "caphv_packager_errors_total",
    "Failed syncs of the repository by kind of error, for example `AccessDenied` or `Unreachable`.",
    ["kind"],
    registry=REGISTRY,
)
LAST_SUCCESS = Gauge(
    "caphv_packager_last_success_timestamp_seconds",
    "Unix time at which the repository was last up to date.",
    registry=REGISTRY,
)
REMOVED = Counter(
    "caphv_packager_removed_total", "Bundles and directories removed.", registry=REGISTRY
)
HELD = Gauge(
    "caphv_packager_removals_held",
    "Removals held back; Event AddonBundlesKept gives the reason.",
    registry=REGISTRY,
)
FOREIGN = Gauge(
    "caphv_packager_foreign_files",
    "Files in folders that Fleet deploys which the packager did not write.",
    registry=REGISTRY,
)
CLUSTER_READY = Gauge(
    "caphv_packager_cluster_ready",
    "1 if condition AddonBundlesReady of the cluster is true, otherwise 0.",
    ["cluster"],
    registry=REGISTRY,
)
UPGRADE_STATE = Gauge(
    "caphv_packager_upgrade_state",
    "1 for the state of the last upgrade in waves, `progressing`, `complete`, `reverted` or "
    "`stopped`; otherwise 0.",
    ["state"],
    registry=REGISTRY,
)
SOURCE_REFUSED = Gauge(
    "caphv_packager_source_refused",
    "1 while the newest commit of the source is refused, because no listed signer signed it, "
    "otherwise 0.",
    registry=REGISTRY,
)
PUSH_EVENTS = Counter(
    "caphv_packager_push_events_total",
    "Requests to the receiver of push events by HTTP status of the answer.",
    ["code"],
    registry=REGISTRY,
)
DEFINITIONS = Gauge(
    "caphv_packager_definitions",
    "Definitions of clusters in the source by state: `written` as manifests, or `faulty`.",
    ["state"],
    registry=REGISTRY,
)
