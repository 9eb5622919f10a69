"""Alerts and dashboard ask for what is there: existing metrics and labels, and variables that something uses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
import yaml

from caphv.api.object import Obj
from caphv.runtime import metrics as runtime_metrics
from packager.controller import metrics as packager_metrics
from reconciler import metrics as provider_metrics
from tests.support.docpages import METRICS
from tools.release import components
from tools.release.__main__ import contents
from webhooks import metrics as webhook_metrics

pytestmark = pytest.mark.unit

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "kustomize" / "monitoring"
DASHBOARD: Obj = json.loads((FOLDER / "caphv-dashboard.json").read_text(encoding="utf-8"))
RULE = yaml.safe_load((FOLDER / "prometheusrule.yaml").read_text(encoding="utf-8"))
ALERTS: dict[str, Obj] = {rule["alert"]: rule for group in RULE["spec"]["groups"] for rule in group["rules"]}
PANELS: list[Obj] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS: list[Obj] = [target for panel in PANELS for target in panel["targets"]]
VARIABLES: list[Obj] = DASHBOARD["templating"]["list"]
MODULES = (provider_metrics, runtime_metrics, packager_metrics)
# Prometheus adds them to whatever it scrapes.
SCRAPED = {"instance", "job", "namespace"}
WORDS = {
    "absent",
    "and",
    "changes",
    "count",
    "histogram_quantile",
    "increase",
    "max",
    "max_over_time",
    "min",
    "min_over_time",
    "or",
    "present_over_time",
    "rate",
    "sort",
    "sum",
    "time",
    "unless",
    "vector",
}
# What the operations guide asks users to set up: their notifications and silences rely on it.
GUIDE = {
    "CAPHVMachineCreateErrors": ("increase(caphv_machine_create_errors_total[5m]) > 0", "1m", "warning"),
    "CAPHVMachineNotReady": ("caphv_machine_status == 0", "10m", "critical"),
    "CAPHVIPPoolAllocationErrors": ("increase(caphv_ippool_allocation_errors_total[5m]) > 0", "1m", "warning"),
    "CAPHVClusterNotReady": ("caphv_cluster_ready == 0", "15m", "critical"),
    "CAPHVEtcdRemoveErrors": ("increase(caphv_etcd_member_remove_errors_total[10m]) > 0", "1m", "warning"),
    "CAPHVSlowMachineCreation": (
        "histogram_quantile(0.95, rate(caphv_machine_creation_duration_seconds_bucket[30m])) > 300",
        "5m",
        "warning",
    ),
}


def series() -> dict[str, set[str]]:
    """Labels of all series that a process of caphv can have, by name."""
    found: dict[str, set[str]] = {}
    for name, metric in METRICS.items():
        labels = set(metric._labelnames)
        if isinstance(metric, prometheus_client.Histogram):
            found |= {f"{name}_bucket": {*labels, "le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    for registry in (prometheus_client.PROCESS_COLLECTOR, packager_metrics.REGISTRY, webhook_metrics.REGISTRY):
        for family in registry.collect():
            found |= {sample.name: set() for sample in family.samples if "_process_" in f"_{sample.name}"}
    return found


SERIES = series()


def faults(expression: str, legend: str = "") -> list[str]:
    """What a query asks for that nothing has."""
    found, labels = [], set(SCRAPED)
    rest = re.sub(r"\[[^\]]*\]", "", expression)
    for name, matchers in re.findall(r"\b((?:caphv|process)_\w+)(\{[^}]*\})?", rest):
        if name not in SERIES:
            found.append(f"no metric {name}")
            continue
        labels |= SERIES[name]
        asked = set(re.findall(r"(\w+)\s*[=!]~?\s*\"", matchers))
        found += [f"{name} has no label {label}" for label in sorted(asked - SERIES[name] - SCRAPED)]
    rest = re.sub(r"\b(?:caphv|process)_\w+(\{[^}]*\})?", "", rest)
    groups = re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", rest)
    grouped = {label.strip() for group in groups for label in group.split(",")}
    kept = grouped or labels
    found += [f"nothing has label {label}" for label in sorted(grouped - labels)]
    found += [f"legend: no label {label}" for label in sorted(set(re.findall(r"{{(\w+)}}", legend)) - kept)]
    rest = re.sub(r"\b(?:by|on)\s*\([^)]*\)", "", rest)
    return found + [f"unknown word {word}" for word in sorted(set(re.findall(r"[A-Za-z_]\w+", rest)) - WORDS)]


@pytest.mark.parametrize("name", ALERTS)
def test_alert_asks_for_what_is_there(name: str) -> None:
    assert faults(ALERTS[name]["expr"]) == []


@pytest.mark.parametrize("name", ALERTS)
def test_alert_says_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert re.fullmatch(r"\d+m", rule["for"])
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert rule["annotations"]["runbook_url"].endswith(f"/docs/troubleshooting.md#{name.lower()}")
    assert rule["annotations"]["description"].endswith(".")


def test_alerts_are_explained() -> None:
    page = (FOLDER.parents[2] / "docs" / "reference" / "alerts.md").read_text(encoding="utf-8")
    reported = re.findall(r"^\| `(CAPHV\w+)` \| (\w+) \|", page, re.MULTILINE)
    assert reported == [(name, rule["labels"]["severity"]) for name, rule in ALERTS.items()]


@pytest.mark.parametrize("name", GUIDE)
def test_alerts_of_the_operations_guide_are_as_they_were(name: str) -> None:
    rule = ALERTS[name]
    assert (rule["expr"], rule["for"], rule["labels"]["severity"]) == GUIDE[name]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target["expr"])[:60])
def test_dashboard_asks_for_what_is_there(target: Obj) -> None:
    expression = target["expr"].replace("$__rate_interval", "5m")
    assert faults(expression, target["legendFormat"]) == []


@pytest.mark.parametrize(
    ("expression", "legend", "fault"),
    [
        ("caphv_clusters_ready", "", "no metric caphv_clusters_ready"),
        ('caphv_machine_status{clustre="x"}', "", "caphv_machine_status has no label clustre"),
        ("sum by (pool) (caphv_machine_status)", "", "nothing has label pool"),
        ("sum by (cluster) (caphv_machine_status)", "{{machine}}", "legend: no label machine"),
        ("rate(capvh_leader[5m])", "", "unknown word capvh_leader"),
    ],
)
def test_the_check_of_queries_finds_what_is_wrong(expression: str, legend: str, fault: str) -> None:
    assert faults(expression, legend) == [fault]


def test_metrics_of_provider_and_packager_are_all_on_the_dashboard() -> None:
    queries = json.dumps(DASHBOARD)
    ours = {id(value) for module in MODULES for value in vars(module).values()}
    names = [name for name, metric in METRICS.items() if id(metric) in ours]
    assert len(names) > 30
    assert [name for name in names if not re.search(rf"\b{name}(_bucket|_count|_sum)?\b", queries)] == []


def used(value: Any) -> set[str]:
    return set(re.findall(r"\$\{?(\w+)", json.dumps(value))) - {"__rate_interval", "__all"}


def test_every_variable_of_the_dashboard_is_used_and_every_one_used_is_there() -> None:
    assert used(DASHBOARD) == {variable["name"] for variable in VARIABLES}
    assert {"cluster", "identity", "controller"} <= used(TARGETS)


def test_choices_of_the_variables_come_from_labels_that_are_there() -> None:
    choices = [variable["query"]["query"] for variable in VARIABLES if variable["type"] == "query"]
    assert choices
    for choice in choices:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", choice)
        assert found, choice
        assert found[2] in SERIES[found[1]]


def test_panels_stand_next_to_each_other() -> None:
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len(cells) == 24 * len({y for _, y in cells}), "a row has a gap"
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_release_has_alerts_and_dashboard_in_both_forms() -> None:
    files = contents()
    objects = list(yaml.safe_load_all(files["monitoring.yaml"]))
    (config_map,) = (obj for obj in objects if obj["kind"] == "ConfigMap")
    assert json.loads(config_map["data"]["caphv-dashboard.json"]) == DASHBOARD
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(files["caphv-dashboard.json"]) == DASHBOARD
    assert RULE in objects
    assert yaml.safe_load(files["caphv-alerts.yaml"]) == {"groups": RULE["spec"]["groups"]}
    assert components.alerts(objects) == RULE["spec"]["groups"]
