"""Prometheus's own tool takes alerts and queries of the dashboard, and says when each alert fires and when not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from caphv.api.object import Obj
from tests.support.promtool import promtool, written
from tools.release import components

pytestmark = pytest.mark.e2e

CASES = Path(__file__).parent / "alerts" / "cases.yaml"


@pytest.fixture(scope="module")
def monitoring(checkout: Path) -> Path:
    return checkout / "deploy" / "kustomize" / "monitoring"


@pytest.fixture(scope="module")
def groups(monitoring: Path) -> list[Obj]:
    return components.alerts(components.objects(monitoring))


def test_alerts_fire_and_stay_silent(groups: list[Obj], tmp_path: Path) -> None:
    rules = written(tmp_path / "rules.yaml", groups)
    promtool("check", "rules", "--lint-fatal", rules)
    (tmp_path / "cases.yaml").write_text(CASES.read_text(encoding="utf-8"), encoding="utf-8")
    promtool("test", "rules", tmp_path / "cases.yaml")


def test_every_alert_has_a_case_that_fires_and_one_that_does_not(groups: list[Obj]) -> None:
    asked = [
        (test["alertname"], bool(test["exp_alerts"]))
        for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
        for test in case["alert_rule_test"]
    ]
    assert set(asked) == {
        (rule["alert"], fires) for group in groups for rule in group["rules"] for fires in (True, False)
    }


@pytest.mark.parametrize(
    "change",
    [
        ("> 300", "> 600"),
        pytest.param(("for: 10m", "for: 11m"), marks=pytest.mark.long),
        pytest.param(("== 0", "== 2"), marks=pytest.mark.long),
    ],
)
def test_the_cases_find_what_is_wrong(groups: list[Obj], tmp_path: Path, change: tuple[str, str]) -> None:
    wrong = yaml.safe_load(yaml.safe_dump(groups, width=10_000).replace(*change))
    assert wrong != groups
    written(tmp_path / "rules.yaml", wrong)
    (tmp_path / "cases.yaml").write_text(CASES.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", tmp_path / "cases.yaml")


def test_queries_of_the_dashboard_are_promql(monitoring: Path, tmp_path: Path) -> None:
    dashboard = json.loads((monitoring / "caphv-dashboard.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert queries
    rules = [
        {"record": f"query:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(queries)
    ]
    promtool("check", "rules", written(tmp_path / "queries.yaml", [{"name": "dashboard", "rules": rules}]))
