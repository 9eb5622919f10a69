"""A cluster whose machines are guests that serve the workload API, with Nodes and members of etcd."""

from __future__ import annotations

from collections.abc import Sequence

import yaml

from caphv.api.object import NODES
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox.processes import pki
from tests.support.reconciler.case import Case
from tests.support.simulation import joining
from tests.support.waiting import until

TOKEN = "workload-token"


def machines_of(*names: str) -> dict[str, str]:
    """Names of Machines by those of their HarvesterMachines: each has that of another one, to confuse who mixes them.

    VM, Node and member have the name of the HarvesterMachine.
    """
    return dict(zip(names, (*names[1:], names[0]), strict=True))


async def control_plane(case: Case, *names: str, workers: Sequence[str] = ()) -> ApiClient:
    """A cluster whose control plane machines really serve an API; answers a client of it."""
    found = await case.ready_cluster()
    server = f"https://{found['spec']['controlPlaneEndpoint']['host']}:6443"
    authority = pki.CA.create(case.name)
    data = "#cloud-config\n" + yaml.safe_dump(joining("control-plane", server, authority, TOKEN))
    await case.write_secret("bootstrap-control-plane", {"value": data})
    config = pki.kubeconfig(server, authority.certificate, name=case.name, user="admin", credentials={"token": TOKEN})
    text = pki.to_yaml(config).decode()
    for name, machine in machines_of(*names).items():
        await case.create_machine(name, control_plane=True, bootstrap="bootstrap-control-plane", machine_name=machine)
    worker = "#cloud-config\n" + yaml.safe_dump(joining("worker", server, authority, TOKEN))
    await case.write_secret("bootstrap-worker", {"value": worker})
    for name in workers:
        await case.create_machine(name, bootstrap="bootstrap-worker")
    await case.write_secret(f"{case.name}-kubeconfig", {"value": text})
    client = parse_kubeconfig(text).client(name="test", timeout=5)
    await until(lambda: initialized(client, *names, *workers), lambda: "the nodes are not initialized", seconds=90)
    return client


async def initialized(client: ApiClient, *names: str) -> bool:
    try:
        nodes = [await client.get(NODES, name) for name in names]
    except (ApiError, Unreachable):
        return False
    return all(node["spec"].get("providerID") for node in nodes)
