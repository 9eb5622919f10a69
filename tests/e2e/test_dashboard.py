"""The dashboard with what real processes serve: its queries find the series that they ask for, and can join them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from caphv.api.object import NODES
from tests.support.packager import environment as packagers
from tests.support.packager.repositories import Origin
from tests.support.promtool import promtool, written
from tests.support.reconciler import environment as providers
from tests.support.reconciler.case import HARVESTER_MACHINES, Case
from tests.support.reconciler.cases import opened
from tests.support.reconciler.conditions import is_false, is_true
from tests.support.reconciler.expiry import account_identity

pytestmark = pytest.mark.e2e

# What a variable of the dashboard stands for when all of its values are chosen.
VARIABLES = {"__rate_interval": "5m", "cluster": ".*", "identity": ".*", "controller": ".*"}
# No webhooks run, no Git host calls, definitions have no source, no request fails, and all clusters are ready.
ABSENT = re.compile(
    r"caphv_(webhook_|harvester_request_errors|watch_restarts|packager_(errors|push_events|definitions))"
    r"|\(caphv_cluster_ready == 0"
)
MINUTES = 20


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Metrics of a provider and of a packager, each with something that is ready and something that is not."""
    folder = tmp_path_factory.mktemp("metrics")
    with (
        asyncio.Runner() as runner,
        providers.running(folder) as environment,
        opened(environment, runner) as case,
    ):
        packager = runner.run(packaged(case, folder))
        yield {"provider:8080": runner.run(provided(case)), "packager:8080": packager}


async def provided(case: Case) -> str:
    pool = await case.pool("pool", 1, 5)
    await case.identity(await account_identity(case))
    await case.write_secret("bootstrap", {"value": "#cloud-config\nruncmd: [echo]\n"})
    await case.create_cluster(vmNetworkConfig=case.vm_network(pool))
    await case.ready()
    await case.connect_workload()
    name = f"{case.name}-one"
    await case.ready_machine(name)
    await case.register_node(name)
    await case.until(NODES, name, lambda node: node["spec"].get("providerID"), client=case.workload)
    await case.until(HARVESTER_MACHINES, name, is_true("Ready"))
    await case.create_machine("refused", networks=["default/nowhere"])
    await case.until(HARVESTER_MACHINES, "refused", is_false("Ready", "VMProvisioningFailed"))
    return await case.environment.provider.exposition()


async def packaged(case: Case, folder: Path) -> str:
    """A cluster without an identity, whose bundles are in the repository, and one whose bundles cannot be."""
    server = case.environment.management
    await packagers.install(server, packagers.CLASSES, packagers.CONTROL_PLANES)
    async with packagers.opened(server, folder, Origin.make(folder / "origin.git")) as clusters:
        packager = await clusters.running()
        await clusters.cluster("good")
        await clusters.cluster("bad", values={"cni": {"name": "calico", "mtu": 9}})
        await clusters.until_condition("good", "True")
        await clusters.until_condition("bad", "False")
        return await packager.exposition()


def series(instance: str, text: str) -> list[dict[str, str]]:
    """Series for promtool: what counts grows by its own value each minute, the rest stays as it is."""
    found = []
    for family in text_string_to_metric_families(text):
        counts = family.type in ("counter", "histogram", "summary")
        for sample in family.samples:
            labels = {**sample.labels, "instance": instance, "job": "caphv"}
            inner = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels.items()))
            step = sample.value if counts else 0
            found.append({"series": f"{sample.name}{{{inner}}}", "values": f"{sample.value}+{step}x{MINUTES}"})
    return found


def queries(checkout: Path) -> list[str]:
    """All expressions, with values for the variables."""
    file = checkout / "deploy" / "kustomize" / "monitoring" / "caphv-dashboard.json"
    panels = json.loads(file.read_text(encoding="utf-8"))["panels"]
    targets = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [re.sub(r"\$\{?(\w+)\}?", lambda name: VARIABLES[name[1]], query) for query in targets]


def test_every_query_of_the_dashboard_finds_something(scraped: dict[str, str], checkout: Path, tmp_path: Path) -> None:
    asked = [query for query in queries(checkout) if not ABSENT.search(query)]
    assert len(asked) > 50
    rules = [{"alert": query, "expr": f"count({query}) > 0"} for query in asked]
    written(tmp_path / "rules.yaml", [{"name": "dashboard", "rules": rules}])
    expected = [
        {"eval_time": "15m", "alertname": query, "exp_alerts": [{"exp_labels": {}}]} for query in dict.fromkeys(asked)
    ]
    samples = [each for instance, text in scraped.items() for each in series(instance, text)]
    case = {"interval": "1m", "input_series": samples, "alert_rule_test": expected}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))
    promtool("test", "rules", tmp_path / "case.yaml")


def test_metrics_have_help_units_and_names_as_prometheus_wants_them(scraped: dict[str, str]) -> None:
    for text in scraped.values():
        promtool("check", "metrics", given=text)
