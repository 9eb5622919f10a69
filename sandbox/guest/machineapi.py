"""A stand-in for the machine API of a Talos control plane guest: JSON over TLS, no gRPC.

It listens on the port of the real one. Methods have the names of the real ones, with a part of
their fields, and clients need a certificate of the machine's CA. `talosctl` cannot use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

from caphv.api.object import Obj
from sandbox.guest.kubelet import Etcd
from sandbox.guest.workload import Workloads
from sandbox.processes import pki

PORT = 50000
ETCD_DATA = "/var/lib/etcd/member"


def path_of(method: str) -> str:
    """Return the path of a method."""
    return f"/machine.MachineService/{method}"


class MachineApi:
    """The API of one guest with the address `address`.

    :param disk: the uid of its VM
    :param node: its host name, which is that of its etcd member
    :param authority: the CA of machine APIs
    """

    def __init__(
        self, address: str, disk: str, node: str, authority: pki.CA, workloads: Workloads
    ) -> None:
        self._address = address
        self._disk = disk
        self._node = node
        self._authority = authority
        self._workloads = workloads
        self._has_left = False
        self.bootstrapped = asyncio.Event()
        """Set when a client has asked this guest to create the cluster's etcd."""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[MachineApi]:
        """Listen inside the block. Raises `OSError` if the port is in use."""
        application = web.Application()
        methods: dict[str, Callable[[Obj], web.Response]] = {
            "Bootstrap": self._bootstrap,
            "EtcdLeaveCluster": self._leave_etcd,
            "EtcdMemberList": self._list_members,
            "EtcdRemoveMemberByID": self._remove_member,
            "LS": self._list_files,
            "ServiceInfo": self._describe_service,
        }
        for name, method in methods.items():
            application.router.add_post(path_of(name), _handler(method))

        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            context = self._authority.server([self._address]).server_context()
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cadata=self._authority.certificate.decode())
            await web.TCPSite(runner, self._address, PORT, ssl_context=context).start()
            yield self
        finally:
            await runner.cleanup()

    def _bootstrap(self, _body: Obj) -> web.Response:
        if self._workloads.has_data(self._disk):
            return _refuse(409, "AlreadyExists", "etcd data directory is not empty")
        self.bootstrapped.set()
        return web.json_response({})

    def _list_files(self, body: Obj) -> web.Response:
        if body.get("root") != ETCD_DATA or not self._workloads.has_data(self._disk):
            return _refuse(404, "NotFound", "no such file or directory")
        return web.json_response({"name": ETCD_DATA})

    def _describe_service(self, _body: Obj) -> web.Response:
        state = "Running" if self._etcd() else "Preparing"
        return web.json_response({"state": "Finished" if self._has_left else state})

    def _list_members(self, _body: Obj) -> web.Response:
        etcd = self._etcd()
        if etcd is None:
            return _etcd_is_down()
        members = [
            {"id": str(number), "hostname": name.rpartition("-")[0]}
            for number, name in etcd.members.items()
        ]
        return web.json_response({"members": members})

    def _remove_member(self, body: Obj) -> web.Response:
        etcd = self._etcd()
        if etcd is None:
            return _etcd_is_down()
        if etcd.members.pop(int(body["memberId"]), None) is None:
            return _refuse(404, "NotFound", "etcdserver: member not found")
        return web.json_response({})

    def _leave_etcd(self, _body: Obj) -> web.Response:
        etcd = self._etcd()
        if etcd is None:
            return _etcd_is_down()
        etcd.remove_node(self._node)
        self._has_left = True
        return web.json_response({})

    def _etcd(self) -> Etcd | None:
        """Return etcd if this guest runs a member, which it does while it serves the API."""
        return None if self._has_left else self._workloads.etcd_of(self._address)


def _handler(method: Callable[[Obj], web.Response]) -> Any:
    async def handle(request: web.Request) -> web.Response:
        return method(await request.json())

    return handle


def _etcd_is_down() -> web.Response:
    return _refuse(503, "ServiceUnavailable", "etcd is not running")


def _refuse(code: int, reason: str, message: str) -> web.Response:
    """Return an error in the form of Kubernetes, which the stand-in's clients understand."""
    status = {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason}
    return web.json_response({**status, "message": message}, status=code)
