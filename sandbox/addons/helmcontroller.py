"""The Helm controller of RKE2 and K3s: HelmCharts become releases, with the values of HelmChartConfigs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from caphv.api.object import Obj, Resource, key_of
from caphv.api.resources import HELM_CHART_CONFIGS, HELM_CHARTS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, TooManyRequests
from sandbox.addons.apply import NoSuchKind, Objects, names
from sandbox.addons.charts import Chart, opaque


@dataclass(frozen=True)
class ChartRelease:
    """A release of the Helm controller: what its job last installed, or why the job fails."""

    input: dict[str, Any]
    objects: Sequence[Obj] = ()
    namespace: str = ""
    error: str = ""


class HelmController:
    """The controller of one cluster; `releases` are by name of the HelmChart."""

    def __init__(self, client: ApiClient, chart: Chart = opaque) -> None:
        self._client, self._chart = client, chart
        self._objects = Objects(client, "helm")
        self.releases: dict[str, ChartRelease] = {}

    async def reconcile(self) -> list[str]:
        """Install, upgrade and uninstall charts. Return the names of HelmCharts whose job succeeded."""
        charts = {key_of(obj).name: obj for obj in await self._list(HELM_CHARTS) if obj["spec"].get("chart")}
        configs = {key_of(obj).name: obj for obj in await self._list(HELM_CHART_CONFIGS)}
        for name in [name for name in self.releases if name not in charts]:
            gone = self.releases.pop(name)
            await self._objects.delete(reversed(gone.objects), gone.namespace)
        for name, chart in charts.items():
            await self._install(name, chart["spec"], configs.get(name))
        return sorted(name for name in charts if not self.releases[name].error)

    async def _install(self, name: str, spec: dict[str, Any], config: Obj | None) -> None:
        namespace = str(spec.get("targetNamespace") or "default")
        # The config is a values file after that of the chart.
        values = _merged(_values(spec), _values(config["spec"]) if config else {})
        wanted = {"chart": spec["chart"], "version": spec.get("version", ""), "values": values, "releaseName": name}
        known = self.releases.get(name)
        if known and known.input == wanted and not known.error:
            return
        before = known.objects if known else ()
        objects = list(self._chart(wanted))
        try:
            await self._objects.check(objects)
        except NoSuchKind as error:
            # The job retries 1,000 times. Fleet only sees that the HelmChart exists.
            self.releases[name] = ChartRelease(wanted, before, namespace, str(error))
            return
        await self._objects.apply(objects, namespace)
        current = set(names(objects))
        await self._objects.delete([obj for obj in before if next(names([obj])) not in current], namespace)
        self.releases[name] = ChartRelease(wanted, objects, namespace)

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
