"""A management cluster with objects as they are, and commands that a person runs against it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from caphv.api import names, resources
from caphv.api.object import NAMESPACES, Obj, Resource
from caphv.runtime.client import ApiClient
from commands.main import cli
from operations.read.objects import ManagementObjects
from sandbox.processes import pki
from sandbox.processes.apiserver import ApiServer, private_file

_CORE, _CONTROL_PLANE = "cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"


KINDS = {
    "Cluster": Resource(_CORE, "v1beta2", "clusters", "Cluster"),
    "Machine": Resource(_CORE, "v1beta2", "machines", "Machine"),
    "MachineDeployment": Resource(_CORE, "v1beta2", "machinedeployments", "MachineDeployment"),
    "RKE2ControlPlane": Resource(_CONTROL_PLANE, "v1beta1", "rke2controlplanes", "RKE2ControlPlane"),
    "HarvesterCluster": resources.HARVESTER_CLUSTERS,
    "HarvesterMachine": resources.HARVESTER_MACHINES,
}


@dataclass(frozen=True)
class Management:
    """A management cluster, and commands that a person runs against it."""

    server: ApiServer
    folder: Path

    def caphv(self, *arguments: str, user: str = "", groups: Sequence[str] = (), input: str = "") -> Result:  # noqa: A002
        """Run a command as a user, by default as an administrator."""
        kubeconfig = self.folder / f"{user or 'admin'}.kubeconfig"
        who = self.server.kubeconfig(user, groups) if user else self.server.kubeconfig()
        private_file(kubeconfig, pki.to_yaml(who))
        return CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(kubeconfig)], input=input)

    def load(self, namespace: str, *found: ManagementObjects) -> None:
        """Create objects as they are, status included."""
        asyncio.run(self._load(namespace, found))

    async def _load(self, namespace: str, found: Sequence[ManagementObjects]) -> None:
        async with self.server.client() as client:
            await client.create(NAMESPACES, {"metadata": {"name": namespace}})
            for each in found:
                lists = (each.clusters, each.machines, each.machine_deployments, each.control_planes)
                for obj in (obj for objs in (*lists, each.harvester_clusters, each.harvester_machines) for obj in objs):
                    await create(client, obj, namespace)

    def requests(self, work: Callable[[], object]) -> list[str]:
        """What a person's commands ask of the API server while something is done: verb and resource."""
        since = self.server.audit_log.stat().st_size
        work()
        with self.server.audit_log.open("rb") as file:
            file.seek(since)
            # The server may be writing the last line, of the end of a watch.
            events = [json.loads(line) for line in file if line.endswith(b"\n")]
        return [
            f"{event['verb']} {(event.get('objectRef') or {}).get('resource', '')}"
            for event in events
            if event.get("userAgent") == "caphv-cli" and event["stage"] == "ResponseComplete"
        ]


async def create(client: ApiClient, obj: Obj, namespace: str) -> None:
    """Create an object with its status."""
    resource = KINDS[obj["kind"]]
    metadata = {name: obj["metadata"][name] for name in ("name", "labels", "annotations") if name in obj["metadata"]}
    whole = {**obj, "apiVersion": resource.api_version, "metadata": {**metadata, "namespace": namespace}}
    if resource == resources.HARVESTER_MACHINES:
        image = {"volumeType": "image", "imageName": "default/sles-15", "volumeSize": "40Gi"}
        spec = {"sshUser": "sles", "sshKeyPair": "default/caphv", "networks": ["default/production"]}
        whole["spec"] = {**spec, "volumes": [image], **whole["spec"]}
    await client.create(resource, whole)
    if resource.group == names.GROUP:
        status = {"status": obj["status"]}
        await client.patch(resource, metadata["name"], namespace, status, subresource="status")
