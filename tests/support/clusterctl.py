"""clusterctl as users call it, with a local repository of providers."""

from __future__ import annotations

import functools
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS as CRDS
from caphv.api.object import Resource
from caphv.runtime.client import ApiClient
from sandbox import manifests
from sandbox.capi import core, manager
from sandbox.processes import binaries
from tests.support.e2e import CLUSTERCTL, crd
from tools.release.__main__ import contents

INVENTORY = Resource(CLUSTERCTL, "v1alpha3", "providers", "Provider")


CONTROL_PLANES = "controlplane.cluster.x-k8s.io"


CORE = f"v{binaries.CLUSTER_API_CORE.version}"


VERSION, NEXT = "v1.0.0", "v1.0.1"


VARIABLES = {
    "HARVESTER_GATEWAY": "10.0.0.1",
    "HARVESTER_SUBNET_MASK": "255.255.255.0",
    "HARVESTER_DNS": "10.0.0.53",
    "HARVESTER_IMAGE": "default/sles-15-sp7",
    "HARVESTER_SSH_KEYPAIR": "default/admin",
    "HARVESTER_NETWORK": "default/production",
    "HARVESTER_VM_IP_POOL": "machines",
    "HARVESTER_LB_IP_POOL": "load-balancers",
    "TALOS_VERSION": "v1.12",
}


@dataclass
class Clusterctl:
    """clusterctl with a configuration folder of its own."""

    folder: Path
    kubeconfig: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, *arguments: str | Path) -> str:
        environment = {
            **os.environ,
            **VARIABLES,
            "CLUSTERCTL_DISABLE_VERSIONCHECK": "true",
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "KUBECONFIG": str(self.kubeconfig),
            **self.environment,
        }
        command = [binaries.binary("clusterctl"), f"--config={self.folder / 'clusterctl.yaml'}", *arguments]
        done = subprocess.run(
            [*map(str, command)], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@functools.cache
def released(version: str) -> dict[str, bytes]:
    """The files of our release; making them takes half a second."""
    return contents(f"registry.example.com/caphv:{version}")


def repository(folder: Path, name: str = "harvester") -> None:
    """Ours by a name, with this release and one after it, of another image; of the core, only its contract."""
    for version in (VERSION, NEXT):
        _write(folder / "repository" / f"infrastructure-{name}" / version, released(version))
    series = [{"major": 1, "minor": 13, "contract": "v1beta2"}]
    metadata = {"apiVersion": "clusterctl.cluster.x-k8s.io/v1alpha3", "kind": "Metadata", "releaseSeries": series}
    files = {"metadata.yaml": yaml.safe_dump(metadata).encode(), "core-components.yaml": b""}
    _write(folder / "repository" / "cluster-api" / CORE, files)
    providers = [
        (name, "InfrastructureProvider", f"infrastructure-{name}/{VERSION}/infrastructure-components.yaml"),
        ("cluster-api", "CoreProvider", f"cluster-api/{CORE}/core-components.yaml"),
    ]
    configured = [
        {"name": name, "type": kind, "url": str(folder / "repository" / path)} for name, kind, path in providers
    ]
    (folder / "clusterctl.yaml").write_text(yaml.safe_dump({"providers": configured}))


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


async def prepare(management: ApiClient) -> None:
    """What a management cluster has before: cert-manager's kinds, and the core as clusterctl would install it."""
    installed_core = {
        "apiVersion": INVENTORY.api_version,
        "kind": INVENTORY.kind,
        "metadata": {
            "name": "cluster-api",
            "namespace": "capi-system",
            "labels": {"cluster.x-k8s.io/provider": "cluster-api", CLUSTERCTL: ""},
        },
        "providerName": "cluster-api",
        "type": "CoreProvider",
        "version": CORE,
    }
    stand_ins = [crd("cert-manager.io", "v1", kind) for kind in ("Issuer", "Certificate")]
    stand_ins.append(crd(CONTROL_PLANES, "v1beta2", "StandIn"))
    inventory = crd(INVENTORY.group, INVENTORY.version, INVENTORY.kind)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "cert-manager"}}
    await manifests.apply(management, [*stand_ins, inventory, space, installed_core])


async def furnish(management: ApiClient) -> None:
    """The kinds of the core for a management cluster where it does not run, and what else is there before.

    Schemas take anything: the API server needs a second of CPU time to compile the core's own, and whatever comes here
    was checked by them before, or is not of these kinds.
    """
    kinds = [obj for obj in manager.objects(core.manager(), "", b"") if obj["kind"] == CRDS.kind]
    for each in kinds:
        each["spec"]["conversion"] = {"strategy": "None"}
        for version in each["spec"]["versions"]:
            version["schema"] = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    await manifests.apply(
        management, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": core.NAMESPACE}}, *kinds]
    )
    await prepare(management)
