"""A real API server with our CRDs, and webhook servers as processes that it calls over TLS."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from caphv import data
from caphv.api.object import Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError
from sandbox import manifests
from sandbox.processes import children, pki
from sandbox.processes.apiserver import ApiServer, private_file
from tests.support.process import Caphv
from webhooks.admission import KINDS

VERSIONS = ("v1alpha1", "v1beta1")
GROUP = "infrastructure.cluster.x-k8s.io"


def resource(kind: str, version: str = "v1beta1") -> Resource:
    return Resource(GROUP, version, KINDS[kind].plural, kind)


def write_certificate(folder: Path, ca: pki.CA, *names: str) -> None:
    """Put a certificate into a folder as a mounted Secret does: all files at one moment, by a link."""
    folder.mkdir(exist_ok=True)
    pair = ca.server(names or ("127.0.0.1",))
    version = folder / f"..{time.monotonic_ns()}"
    version.mkdir()
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", ca.certificate)):
        private_file(version / name, content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..new").symlink_to(version.name)
    os.replace(folder / "..new", folder / "..data")


class Server(Caphv):
    """One `caphv webhook`, or with `command` another command that serves the webhooks."""

    def __init__(self, folder: Path, name: str, *options: str, command: str = "webhook", port: int = 0) -> None:
        super().__init__(folder, name, *options, command=(command,))
        self.port = port or children.free_ports(1)[0]
        self.certificates = folder / f"{name}-certificates"
        self.ca = pki.CA.create(name)
        self.own += [f"--webhook-cert-dir={self.certificates}", f"--webhook-bind-address=127.0.0.1:{self.port}"]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it with a certificate and wait until it is ready."""
        if not self.certificates.exists():
            write_certificate(self.certificates, self.ca)
        await super().start()


async def install_crds(server: ApiServer) -> None:
    async with server.client() as client:
        await manifests.apply(client, manifests.read(sorted(data.folder("deploy/crds").glob("infrastructure*.yaml"))))


# Objects


def machine_spec(**fields: Any) -> Obj:
    spec: Obj = {
        "cpu": 2,
        "memory": "4Gi",
        "sshUser": "ubuntu",
        "sshKeyPair": "default/ops",
        "networks": ["default/vlan100"],
        "volumes": [{"volumeType": "image", "imageName": "default/ubuntu", "volumeSize": "40Gi", "bootOrder": 1}],
    }
    return spec | fields


def cluster_spec(**fields: Any) -> Obj:
    spec: Obj = {
        "targetNamespace": "default",
        "identitySecret": {"name": "identity", "namespace": "default"},
        "server": "https://harvester.example.com:6443",
        "loadBalancerConfig": {"ipamType": "dhcp"},
    }
    return spec | fields


def example(kind: str, version: str, name: str, **fields: Any) -> Obj:
    """A right object; `fields` change the spec of the machine or cluster, also in a template."""
    spec = machine_spec(**fields) if "Machine" in kind else cluster_spec(**fields)
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"spec": spec}} if kind.endswith("Template") else spec,
    }


# A fault with its field below the spec; of machines, one that only the webhook reports.
WRONG: dict[str, tuple[Obj, str]] = {
    "Machine": ({"guestConfig": {"userData": "#!/bin/sh"}}, "guestConfig.userData"),
    "Cluster": (
        {
            "loadBalancerConfig": {
                "ipamType": "pool",
                "ipPool": {"subnet": "192.168.0.0/24", "gateway": "192.168.0.1", "vmNetwork": "default/vlan100"},
            },
            "vmNetworkConfig": {
                "gateway": "192.168.0.1",
                "subnetMask": "255.255.255.0",
                "ipPool": {"subnet": "192.168.0.0/24", "gateway": "192.168.0.1", "vmNetwork": "default/vlan100"},
            },
        },
        "vmNetworkConfig.ipPool",
    ),
}


def wrong(kind: str, version: str, name: str) -> tuple[Obj, str]:
    """A wrong object and the path that the refusal has to name."""
    fields, field = WRONG["Machine" if "Machine" in kind else "Cluster"]
    prefix = "spec.template.spec" if kind.endswith("Template") else "spec"
    return example(kind, version, name, **fields), f"{prefix}.{field}"


async def validated(client: ApiClient, name: str) -> bool:
    """Whether an object is validated: the right one passes and the wrong one does not. Raises for any other refusal."""
    where = resource("HarvesterMachine")
    await client.create(where, example("HarvesterMachine", "v1beta1", name), dry_run=True)
    try:
        await client.create(where, wrong("HarvesterMachine", "v1beta1", name)[0], dry_run=True)
    except ApiError as error:
        if error.status != 422:
            raise
        return True
    return False


async def settled(client: ApiClient, name: str) -> bool:
    try:
        return await validated(client, name)
    except ApiError:
        return False
