"""Define metrics of requests, watches, queues and reconciles."""

from __future__ import annotations

import functools

from prometheus_client import Counter, Gauge, Histogram

API_REQUESTS = Counter(
    "caphv_api_requests_total",
    "Requests to API servers by server, verb, resource and HTTP code; code `none` if there was no "
    "response.",
    ["server", "verb", "resource", "code"],
)
API_REQUEST_SECONDS = Histogram(
    "caphv_api_request_duration_seconds",
    "Latency of requests to API servers, watches excluded.",
    ["server", "verb"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
WATCH_STARTS = Counter(
    "caphv_watch_starts_total",
    "Watches started, by reason: `list` after a full list, `resume` from the last resource "
    "version.",
    ["server", "resource", "reason"],
)
WATCH_RESTARTS = Counter(
    "caphv_watch_restarts_total",
    "Lists and watches restarted after a failure, by reason: `expired` (HTTP 410), `refused`, "
    "`unreachable`, `closed` (at once, without an error), `broken` (a response that is invalid or "
    "too large).",
    ["server", "resource", "reason"],
)
WATCH_EVENTS = Counter("caphv_watch_events_total", "Watch events received.", ["server", "resource"])
QUEUE_DEPTH = Gauge("caphv_workqueue_depth", "Current depth of the work queue.", ["controller"])
QUEUE_ADDS = Counter(
    "caphv_workqueue_adds_total", "Keys added, duplicates not counted.", ["controller"]
)
QUEUE_SECONDS = Histogram(
    "caphv_workqueue_queue_duration_seconds",
    "Time keys wait in the work queue.",
    ["controller"],
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60),
)
RECONCILES = Counter(
    "caphv_reconcile_total",
    "Reconciles by result: `success`, `requeue` (after a delay), `error`.",
    ["controller", "result"],
)
RECONCILE_SECONDS = Histogram(
    "caphv_reconcile_duration_seconds",
    "Duration of a reconcile.",
    ["controller"],
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60),
)
RECONCILES_ACTIVE = Gauge(
    "caphv_reconcile_active_workers", "Number of running reconciles.", ["controller"]
)
LEADER = Gauge(
    "caphv_leader", "1 while this process holds the lease, or runs without leader election."
)
EVENTS_DROPPED = Counter(
    "caphv_events_dropped_total", "Kubernetes Events dropped by rate limit or full buffer."
)


# Series are cached, because a look-up by labels costs more than the rest. Their number is small.
@functools.cache
def api_requests(server: str, verb: str, resource: str, code: str) -> Counter:
    """Return a series of `API_REQUESTS`."""
    return API_REQUESTS.labels(server, verb, resource, code)


@functools.cache
def api_request_seconds(server: str, verb: str) -> Histogram:
    """Return a series of `API_REQUEST_SECONDS`."""
    return API_REQUEST_SECONDS.labels(server, verb)
