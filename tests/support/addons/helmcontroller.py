"""The Helm controller of RKE2 and K3s: HelmCharts become releases of the real Helm, with values of HelmChartConfigs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from caphv.api.object import Obj, Resource, key_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, TooManyRequests
from sandbox import manifests
from tests.support.addons.charts import Chart, opaque
from tests.support.addons.helm import Helm, HelmError
from tests.support.addons.helmjob import HelmJob, JobOptions
from tests.support.packager.environment import crd
from tests.support.resources import HELM_CHART_CONFIGS, HELM_CHARTS


@dataclass(frozen=True)
class ChartRelease:
    """A release of the Helm controller: what its job last installed, or why the job fails.

    `specs` are those of the HelmChart and of its HelmChartConfig, which the job is made of.
    """

    input: dict[str, Any]
    specs: tuple[Obj, Obj | None]
    namespace: str = ""
    error: str = ""


class HelmController:
    """The controller of one cluster; `releases` are by name of the HelmChart.

    `uninstalled` counts how often the failure policy uninstalled a chart.
    """

    def __init__(self, client: ApiClient, helm: Helm, chart: Chart = opaque) -> None:
        self._client, self._helm, self._chart = client, helm, chart
        self.releases: dict[str, ChartRelease] = {}
        self.uninstalled: Counter[str] = Counter()

    @property
    def errors(self) -> dict[str, str]:
        """What Helm says of each chart whose job failed."""
        return {name: release.error for name, release in self.releases.items() if release.error}

    async def start(self) -> None:
        """Install the kinds of the controller."""
        await manifests.apply(self._client, [crd(HELM_CHARTS), crd(HELM_CHART_CONFIGS)])

    async def reconcile(self) -> list[str]:
        """Install, upgrade and uninstall charts. Return the names of HelmCharts whose job succeeded."""
        charts = {key_of(obj).name: obj for obj in await self._list(HELM_CHARTS) if obj["spec"].get("chart")}
        configs = {key_of(obj).name: obj for obj in await self._list(HELM_CHART_CONFIGS)}
        for name in [name for name in self.releases if name not in charts]:
            await self._helm.uninstall(name, self.releases.pop(name).namespace)
        for name, chart in charts.items():
            await self._install(name, chart, configs.get(name))
        return sorted(name for name in charts if not self.releases[name].error)

    async def _install(self, name: str, chart: Obj, config: Obj | None) -> None:
        """Run the job of a chart if it changed, or if it failed: failed jobs are tried again without end."""
        spec, over = chart["spec"], config["spec"] if config else None
        known = self.releases.get(name)
        if known and known.specs == (spec, over) and not known.error:
            return

        namespace = str(spec.get("targetNamespace") or chart["metadata"]["namespace"])
        # The config is a values file after that of the chart.
        values = _merged(_values(spec), _values(over or {}))
        wanted = {"chart": spec["chart"], "version": spec.get("version", ""), "values": values, "releaseName": name}
        job = HelmJob(self._helm, name, namespace, JobOptions.of(spec, over))
        try:
            await self._run_job(job, list(self._chart(wanted)))
        except HelmError as error:
            self.releases[name] = ChartRelease(wanted, (spec, over), namespace, str(error))
            return
        self.releases[name] = ChartRelease(wanted, (spec, over), namespace)

    async def _run_job(self, job: HelmJob, objects: Sequence[Obj]) -> None:
        """Run the job of a chart whose objects are rendered. Raises HelmError."""
        apply = {"install": self._helm.install, "upgrade": self._helm.upgrade}

        async def run(action: str, flags: Sequence[str]) -> None:
            await apply[action](job.release, job.namespace, objects, *flags)

        await job.install_or_upgrade(run, self.uninstalled)

    async def _list(self, resource: Resource) -> list[Obj]:
        while True:
            try:
                return list((await self._client.list(resource))["items"])
            except NotFound:
                return []
            except TooManyRequests:
                # The API server prepares the storage of a new kind.
                await asyncio.sleep(0.2)


def _values(spec: dict[str, Any]) -> dict[str, Any]:
    return yaml.safe_load(spec.get("valuesContent") or "") or {}


def _merged(values: Any, over: Any) -> Any:
    if not (isinstance(values, dict) and isinstance(over, dict)):
        return over
    return {**values, **{name: _merged(values.get(name), value) for name, value in over.items()}}
