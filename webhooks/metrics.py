"""Metrics of the webhook server.

They have their own registry, because the server may run in another process.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

REGISTRY = CollectorRegistry()
ProcessCollector(namespace="caphv_webhook", registry=REGISTRY)

REQUESTS = Counter(
    "caphv_webhook_requests_total",
    "Validated objects by kind, operation and result.",
    ["kind", "operation", "allowed"],
    registry=REGISTRY,
)
REQUEST_SECONDS = Histogram(
    "caphv_webhook_request_duration_seconds",
    "Time from the header of a request to its answer.",
    ["webhook"],
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1),
    registry=REGISTRY,
)
ERRORS = Counter(
    "caphv_webhook_errors_total",
    "Requests that were not a valid review, by HTTP status; 500 is a server error.",
    ["code"],
    registry=REGISTRY,
)
