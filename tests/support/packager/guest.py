"""A workload cluster for its add-ons: an API server, what its distribution brings, its servers, and Fleet's agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from caphv.api.object import CONFIG_MAPS, Obj
from caphv.api.supported import support
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from packager.rendering.nodefiles import node_files
from packager.rendering.rendered import Rendered
from sandbox.processes.apiserver import ApiServer
from tests.support.addons.fleet import FleetCluster
from tests.support.addons.helm import Helm
from tests.support.addons.helmcontroller import HelmController
from tests.support.addons.manifests import Addon, DeployController
from tests.support.addons.realhelmcontroller import RealHelmController, real_helm_controller
from tests.support.packager.stand_in_charts import Charts
from tests.support.resources import HELM_CHARTS

GIT_REPO: Obj = {"spec": {"paths": ["clusters/*/*/*"]}}
WITH_HELM_CONTROLLER = ("rke2", "k3s")
_SECONDS = 60.0


def system_charts(cni: str) -> list[str]:
    """Charts that an RKE2 server installs by itself."""
    network = {"calico": ["rke2-calico-crd", "rke2-calico"], "none": []}.get(cni, [f"rke2-{cni}"])
    return [*network, "rke2-snapshot-controller-crd", "rke2-snapshot-controller"]


@asynccontextmanager
async def new_guest(
    server: ApiServer, client: ApiClient, distribution: str, cni: str, folder: Path, *, real: bool = False
) -> AsyncIterator[Guest]:
    """Lend a cluster on an empty API server. With `real`, the real Helm controller runs in it."""
    helm, charts = Helm(server.kubeconfig()), Charts()
    if not real:
        yield Guest(client, helm, distribution, cni, folder, charts, HelmController(client, helm, charts))
        return
    async with real_helm_controller(server, client, folder, charts.write) as controller:
        yield Guest(client, helm, distribution, cni, folder, charts, controller)


class Guest:
    """A cluster of a distribution. `servers` are its servers; each has a folder of manifests below `folder`."""

    def __init__(
        self,
        client: ApiClient,
        helm: Helm,
        distribution: str,
        cni: str,
        folder: Path,
        charts: Charts,
        controller: HelmController | RealHelmController,
    ) -> None:
        self.client, self.distribution, self.cni = client, distribution, cni
        self._folder = folder
        self._addons: dict[str, Addon] = {}
        self.servers: list[DeployController] = []
        self.charts, self.helm = charts, controller
        self.fleet = FleetCluster(client, helm, self.charts)

    async def add_server(self, rendered: Rendered) -> None:
        """Boot a server with the files of its machine. One that joins skips ours, as its systemd unit has it."""
        if self.distribution not in WITH_HELM_CONTROLLER:
            return
        await self.helm.start()
        folder = self._folder / f"server-{len(self.servers)}"
        folder.mkdir(parents=True)
        for path, content in node_files(rendered).server_files.items():
            if "/server/manifests/" in path:
                (folder / Path(path).name).write_bytes(content)
                if self.servers:
                    (folder / f"{Path(path).name}.skip").touch()
        for name in system_charts(self.cni) if self.distribution == "rke2" else ():
            version = rendered.settings.kubernetes_version if rendered.settings else ""
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(self._helm_chart(name, version)))
        server = DeployController(self.client, folder, self._addons)
        self.servers.append(server)
        await server.start()
        if len(self.servers) == 1:
            for path in folder.glob("caphv-*.yaml"):
                path.with_name(f"{path.name}.skip").touch()

    async def restart_servers(self) -> None:
        """Restart all servers."""
        for server in self.servers:
            await server.start()

    async def sync(self, files: Mapping[str, bytes], git_repo: Obj | None = GIT_REPO) -> set[str]:
        """Have Fleet and the Helm controller work until nothing changes. Return bundles that are not ready."""
        deadline = time.monotonic() + _SECONDS
        while True:
            ready = await self.fleet.sync(files, git_repo)
            await self.helm.reconcile()
            # A bundle waits for another one, and an API server serves a new kind a little later.
            missing = {name.rpartition("-a-")[0] for name in self.fleet.releases.keys() - set(ready)}
            if not (missing or self.errors) or time.monotonic() > deadline:
                return missing | self.errors
            await asyncio.sleep(0.5)

    @property
    def errors(self) -> set[str]:
        """What Helm says of failed releases."""
        by_fleet = {release.error for release in self.fleet.releases.values() if release.error}
        return by_fleet | set(self.helm.errors.values())

    async def installed(self, name: str) -> Obj | None:
        """Return version and values of an installed chart, None if it is not installed."""
        try:
            found = await self.client.get(CONFIG_MAPS, f"chart-{name}", "kube-system")
        except NotFound:
            return None
        return {"version": found["data"]["version"], "values": yaml.safe_load(found["data"]["values"])}

    def _helm_chart(self, name: str, version: str) -> Obj:
        """Return what RKE2 writes for a chart of its own: where Helm may force conflicts, it does."""
        content = {"chart": name, "chartContent": self.charts.archive(name)}
        spec: Obj = {"bootstrap": True, "targetNamespace": "kube-system", **content}
        if support().helm_controller(version).force_conflicts:
            spec |= {"failurePolicy": "retry", "forceConflicts": True}
        kind = {"apiVersion": HELM_CHARTS.api_version, "kind": HELM_CHARTS.kind}
        return {**kind, "metadata": {"name": name, "namespace": "kube-system"}, "spec": spec}
