"""What pages of the documentation name: fields, metrics."""

from __future__ import annotations

from typing import Any

import prometheus_client
from prometheus_client.metrics import MetricWrapperBase

from caphv.runtime import metrics as runtime_metrics
from packager.controller import metrics as packager_metrics
from reconciler import metrics as provider_metrics
from webhooks import metrics as webhook_metrics

METRICS = {
    metric.describe()[0].name + ("_total" if isinstance(metric, prometheus_client.Counter) else ""): metric
    for module in (provider_metrics, runtime_metrics, webhook_metrics, packager_metrics)
    for metric in vars(module).values()
    if isinstance(metric, MetricWrapperBase)
}


def unknown_fields(value: Any, schema: dict[str, Any], path: str = "") -> list[str]:
    """Paths of what the API server would drop."""
    if isinstance(value, list):
        return [field for item in value for field in unknown_fields(item, schema.get("items", {}), f"{path}[]")]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    found = [f"{path}.{name}" for name in value if name not in schema["properties"]]
    for name in value.keys() & schema["properties"].keys():
        found += unknown_fields(value[name], schema["properties"][name], f"{path}.{name}")
    return found
