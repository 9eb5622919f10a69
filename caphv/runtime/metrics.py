"""Metrics of the machinery: requests, watches, queues, reconciles. What a provider means by them is its own matter."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

API_REQUESTS = Counter(
    "caphv_api_requests_total",
    "Requests to API servers by server, verb, resource and HTTP code; code `none` when no answer came.",
    ["server", "verb", "resource", "code"],
)
API_REQUEST_SECONDS = Histogram(
    "caphv_api_request_duration_seconds",
    "Time from sending a request to having its answer, watches excluded.",
    ["server", "verb"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
WATCH_STARTS = Counter(
    "caphv_watch_starts_total",
    "Watches that were started or resumed, by reason: `list` after a full list, `resume` from the last version.",
    ["server", "resource", "reason"],
)
WATCH_RESTARTS = Counter(
    "caphv_watch_restarts_total",
    "Lists and watches that failed or ended before their time, and were begun again, by reason: `expired` (HTTP 410), "
    "`refused`, `unreachable`, `closed` (at once, without an error), `broken` (what came could not be taken over).",
    ["server", "resource", "reason"],
)
WATCH_EVENTS = Counter("caphv_watch_events_total", "Events that watches brought.", ["server", "resource"])
QUEUE_DEPTH = Gauge("caphv_workqueue_depth", "Keys that wait for a worker.", ["controller"])
QUEUE_ADDS = Counter("caphv_workqueue_adds_total", "Keys put into the queue, duplicates not counted.", ["controller"])
QUEUE_SECONDS = Histogram(
    "caphv_workqueue_queue_duration_seconds",
    "Time a key waited for a worker.",
    ["controller"],
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60),
)
RECONCILES = Counter(
    "caphv_reconcile_total",
    "Reconciles by result: `success`, `requeue` (asked to come back), `error`.",
    ["controller", "result"],
)
RECONCILE_SECONDS = Histogram(
    "caphv_reconcile_duration_seconds",
    "Duration of a reconcile.",
    ["controller"],
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60),
)
RECONCILES_ACTIVE = Gauge("caphv_reconcile_active_workers", "Reconciles that run now.", ["controller"])
LEADER = Gauge("caphv_leader", "1 while this process reconciles: it holds the lease, or needs none.")
EVENTS_DROPPED = Counter("caphv_events_dropped_total", "Events not written: too many of one object or a full queue.")
