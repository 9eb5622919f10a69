"""The Helm controller of RKE2 and K3s: HelmCharts become releases of the real Helm, with values of HelmChartConfigs."""

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
from sandbox.addons.charts import Chart, opaque
from sandbox.addons.helm import Helm, HelmError, ReleaseStatus

_REINSTALL, _RETRY = "reinstall", "retry"
_DEFAULT_POLICY = _REINSTALL
"""Default of the CRDs, of HelmCharts and of HelmChartConfigs."""


@dataclass(frozen=True)
class ChartRelease:
    """A release of the Helm controller: what its job last installed, or why the job fails."""

    input: dict[str, Any]
    namespace: str = ""
    error: str = ""


@dataclass(frozen=True)
class JobOptions:
    """What a HelmChart and its HelmChartConfig say of failures and conflicts."""

    failure_policy: str
    force_conflicts: bool

    @classmethod
    def of(cls, spec: dict[str, Any], config: dict[str, Any] | None) -> JobOptions:
        """Return the options of a HelmChart; those of a HelmChartConfig win, the default of its policy, too."""
        policy = str((spec if config is None else config).get("failurePolicy") or _DEFAULT_POLICY)
        conflicts = (config or {}).get("forceConflicts", spec.get("forceConflicts", False))
        return cls(policy, bool(conflicts))


class HelmController:
    """The controller of one cluster; `releases` are by name of the HelmChart.

    `uninstalled` counts how often the failure policy uninstalled a chart.
    """

    def __init__(self, client: ApiClient, helm: Helm, chart: Chart = opaque) -> None:
        self._client, self._helm, self._chart = client, helm, chart
        self.releases: dict[str, ChartRelease] = {}
        self.uninstalled: dict[str, int] = {}

    async def reconcile(self) -> list[str]:
        """Install, upgrade and uninstall charts. Return the names of HelmCharts whose job succeeded."""
        charts = {key_of(obj).name: obj for obj in await self._list(HELM_CHARTS) if obj["spec"].get("chart")}
        configs = {key_of(obj).name: obj for obj in await self._list(HELM_CHART_CONFIGS)}
        for name in [name for name in self.releases if name not in charts]:
            await self._helm.uninstall(name, self.releases.pop(name).namespace)
        for name, chart in charts.items():
            await self._install(name, chart["spec"], configs.get(name))
        return sorted(name for name in charts if not self.releases[name].error)

    async def _install(self, name: str, spec: dict[str, Any], config: Obj | None) -> None:
        """Run the job of a chart if its values changed, or if it failed: jobs retry 1,000 times."""
        namespace = str(spec.get("targetNamespace") or "default")
        # The config is a values file after that of the chart.
        values = _merged(_values(spec), _values(config["spec"]) if config else {})
        wanted = {"chart": spec["chart"], "version": spec.get("version", ""), "values": values, "releaseName": name}
        known = self.releases.get(name)
        if known and known.input == wanted and not known.error:
            return
        options = JobOptions.of(spec, config["spec"] if config else None)
        try:
            await self._run_job(name, namespace, list(self._chart(wanted)), options)
        except HelmError as error:
            self.releases[name] = ChartRelease(wanted, namespace, str(error))
            return
        self.releases[name] = ChartRelease(wanted, namespace)

    async def _run_job(self, name: str, namespace: str, objects: Sequence[Obj], options: JobOptions) -> None:
        """Do what the script in the job's image does. Raises HelmError."""
        status = await self._helm.status(name, namespace)
        if status and status.state != "deployed":
            if options.failure_policy == _REINSTALL:
                await self._helm.uninstall(name, namespace)
                self.uninstalled[name] = self.uninstalled.get(name, 0) + 1
                status = None
            elif options.failure_policy != _RETRY:
                raise HelmError(f"release status is {status.state!r} and failure policy is {options.failure_policy!r}")
        if status is None:
            await self._helm.install(name, namespace, objects, *_sides(None, options))
        else:
            await self._helm.upgrade(name, namespace, objects, *_sides(status, options))

    async def _list(self, resource: Resource) -> list[Obj]:
        while True:
            try:
                return list((await self._client.list(resource))["items"])
            except NotFound:
                return []
            except TooManyRequests:
                # The API server prepares the storage of a new kind.
                await asyncio.sleep(0.2)


def _sides(status: ReleaseStatus | None, options: JobOptions) -> list[str]:
    """Return the flags of server-side apply: forced conflicts need a release that is applied server-side."""
    force = options.force_conflicts and (status is None or status.is_server_side)
    return [f"--server-side={'true' if status is None else 'auto'}", *(["--force-conflicts"] if force else [])]


def _values(spec: dict[str, Any]) -> dict[str, Any]:
    return yaml.safe_load(spec.get("valuesContent") or "") or {}


def _merged(values: Any, over: Any) -> Any:
    if not (isinstance(values, dict) and isinstance(over, dict)):
        return over
    return {**values, **{name: _merged(values.get(name), value) for name, value in over.items()}}
