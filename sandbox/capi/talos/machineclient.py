"""A client of the machine APIs of one Talos cluster, by the credentials in its Secret.

The real provider has a client of gRPC. This one calls the stand-in that guests have.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import yaml

from caphv.api.object import Obj, being_deleted, list_at
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.capi import secrets
from sandbox.capi.state import node_name
from sandbox.guest.machineapi import ETCD_DATA, PORT, path_of

_TIMEOUT_SECONDS = 5.0


class EtcdProblem(Exception):
    """Why etcd is not healthy, or why its members cannot be checked."""


class MachineClient:
    """The machine APIs of a cluster. `secret` has the configuration of its clients."""

    def __init__(self, secret: Obj) -> None:
        config = yaml.safe_load(secrets.values(secret)["talosconfig"])
        context = config["contexts"][config["context"]]
        self._ca, self._certificate, self._key = (
            base64.b64decode(context[name]).decode() for name in ("ca", "crt", "key")
        )

    async def bootstrap(self, machines: Sequence[Obj]) -> None:
        """Tell the machine with the first address to create etcd, unless a machine has it.

        Raises `RequestError`. All machines must have addresses and must answer.
        """
        by_address = {_address(machine): machine for machine in machines}
        for machine in machines:
            try:
                await self.call(machine, "LS", root=ETCD_DATA)
            except NotFound:
                continue
            return
        await self.call(by_address[min(by_address)], "Bootstrap")

    async def remove_orphans(self, machines: Sequence[Obj]) -> None:
        """Remove the members of etcd whose machines no longer exist.

        Raises `EtcdProblem`, `RequestError`.
        """
        if not all(map(node_name, machines)):
            # A new member has a machine without a Node.
            raise EtcdProblem("some CP machines do not have a noderef")
        alive = [machine for machine in machines if not being_deleted(machine)]
        if not alive:
            raise EtcdProblem("no CP machine which is not being deleted and has node ref")

        names = {_hostname(machine) for machine in machines}
        for member in await self._members(alive[0]):
            if member["hostname"].lower() not in names:
                await self.call(alive[0], "EtcdRemoveMemberByID", memberId=member["id"])

    async def check_etcd(self, machines: Sequence[Obj]) -> None:
        """Raise `EtcdProblem` unless each machine runs a member and all agree on the members.

        Raises `RequestError`.
        """
        alive = [machine for machine in machines if not being_deleted(machine)]
        for machine in alive:
            name = machine["metadata"]["name"]
            state = (await self.call(machine, "ServiceInfo", id="etcd"))["state"]
            if state != "Running":
                raise EtcdProblem(f'{name}: service "etcd" not in expected state: {state}')
            members = await self._members(machine)
            if len(members) != len(alive):
                raise EtcdProblem(
                    f"{name}: expected to have {len(alive)} members, got {len(members)}"
                )

    async def leave_etcd(self, machine: Obj) -> None:
        """Have a machine leave etcd, unless it has left. Raises `RequestError`."""
        if (await self.call(machine, "ServiceInfo", id="etcd"))["state"] != "Finished":
            await self.call(machine, "EtcdLeaveCluster")

    async def call(self, machine: Obj, method: str, **body: Any) -> Obj:
        """Call a method of a machine. Raises `RequestError`, also while it has no address."""
        client = self._client(_address(machine))
        try:
            return dict(await client.request("POST", path_of(method), body=body))
        finally:
            await client.close()

    async def _members(self, machine: Obj) -> list[Obj]:
        return list((await self.call(machine, "EtcdMemberList"))["members"])

    def _client(self, address: str) -> ApiClient:
        kubeconfig = Kubeconfig(
            server=f"https://{address}:{PORT}",
            ca=self._ca,
            client_certificate=self._certificate,
            client_key=self._key,
        )
        return kubeconfig.client(
            name="machine", user_agent="caphv-sandbox", timeout=_TIMEOUT_SECONDS
        )


def _address(machine: Obj) -> str:
    """Return the internal address of a Machine, or its external one.

    Raises `Unreachable` while it has none.
    """
    addresses = list_at(machine, "status", "addresses")
    for kind in ("InternalIP", "ExternalIP"):
        for entry in addresses:
            if entry["type"] == kind:
                return str(entry["address"])
    name = machine["metadata"]["name"]
    raise Unreachable(f"machine {name} has no address yet")


def _hostname(machine: Obj) -> str:
    """Return the name by which the provider finds the etcd member of a Machine."""
    addresses = list_at(machine, "status", "addresses")
    names = [str(entry["address"]) for entry in addresses if entry["type"] == "Hostname"]
    name = names[0] if names else node_name(machine)
    return name.partition(".")[0].lower()
