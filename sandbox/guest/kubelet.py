"""A simulated kubelet: `kubectl exec` of `etcdctl` in the container `etcd`, and port forwarding.

Each control plane guest has a kubelet on port 10250 of its address, which the API server reads from
the Node's status. The guests of a cluster with RKE2 or K3s share a list of etcd members, with one
member for each control plane guest that ever joined. Like a real member, each stays until it is
removed, even after its guest is deleted. Guests of kubeadm have real members, and so have those of
RKE2 and K3s if their providers are real.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web

from caphv.api.object import Obj
from sandbox.guest import portforward
from sandbox.guest.etcd import EtcdError, check_options, parse_member_id
from sandbox.processes import pki

PORT = 10250
NAMESPACE = "kube-system"
CONTAINER = "etcd"
PROTOCOL = "v4.channel.k8s.io"
# The channels of the protocol. Each message begins with the byte of its channel.
_STDOUT = 1
_STDERR = 2
_ERROR = 3
_TLS = "/var/lib/rancher/rke2/server/tls/etcd"
# The files of RKE2's etcd Pods.
RKE2_OPTIONS = {
    "--endpoints": "https://127.0.0.1:2379",
    "--cacert": f"{_TLS}/server-ca.crt",
    "--cert": f"{_TLS}/server-client.crt",
    "--key": f"{_TLS}/server-client.key",
}


class Etcdctl(Protocol):
    """Runs `etcdctl` in the etcd Pod of a guest."""

    async def etcdctl(self, arguments: Sequence[str]) -> str:
        """Run `etcdctl <arguments>` and return its output. Raises `EtcdError`."""


@dataclass
class Etcd:
    """Members of one cluster's etcd by id, and the member on each disk by the uid of its VM."""

    members: dict[int, str] = field(default_factory=dict)
    disks: dict[str, int] = field(default_factory=dict)

    def join(self, disk: str, node: str) -> None:
        """Add the member of a control plane guest. A disk with data keeps its member."""
        if disk not in self.disks:
            member = self.disks[disk] = secrets.randbits(64)
            self.members[member] = f"{node}-{secrets.token_hex(4)}"

    def remove_node(self, node: str) -> str:
        """Remove the member of a Node and return its name, empty if there is none.

        The last member stays.
        """
        for member, name in self.members.items():
            if name.rpartition("-")[0] == node and len(self.members) > 1:
                del self.members[member]
                return name
        return ""

    async def etcdctl(self, arguments: Sequence[str]) -> str:
        """Run `etcdctl <arguments>` as in an etcd Pod of RKE2; return its output.

        Raises `EtcdError`.
        """
        check_options(arguments, RKE2_OPTIONS)
        match [argument for argument in arguments if not argument.startswith("--")]:
            case ["member", "list", "-w", "json"]:
                members = [{"ID": id_, "name": name} for id_, name in self.members.items()]
                return json.dumps({"members": members})
            case ["endpoint", "status", "-w", "json"]:
                # Ids are random, so that the leader is any member.
                return json.dumps([{"Status": {"leader": min(self.members)}}])
            case ["member", "remove", member]:
                if self.members.pop(parse_member_id(member), None) is None:
                    raise EtcdError("Error: etcdserver: member not found")
                return f"Member {member} removed from cluster"
        raise EtcdError("Error: unknown command")


class Kubelet:
    """Serves a guest's address. API servers do not verify certificates of kubelets by default."""

    def __init__(self, address: str, etcd: Etcdctl, ca: pki.CA) -> None:
        self._address = address
        self._etcd = etcd
        self._ca = ca
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen. Raises `OSError` if the port is in use."""
        application = web.Application()
        application.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        application.router.add_route("*", "/portForward/{namespace}/{pod}", self._forward_ports)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        context = self._ca.server([self._address]).server_context()
        await web.TCPSite(self._runner, self._address, PORT, ssl_context=context).start()

    async def close(self) -> None:
        """Stop the kubelet and close all its connections."""
        if self._runner:
            await self._runner.cleanup()

    async def _forward_ports(self, request: web.Request) -> web.StreamResponse:
        # Pods of control planes have the network of their host.
        return await portforward.forward(request, self._address)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        container = (request.match_info["namespace"], request.match_info["container"])
        program, *arguments = request.query.getall("command", [""])
        if container != (NAMESPACE, CONTAINER) or program != "etcdctl":
            raise web.HTTPNotFound(text="only etcdctl in container etcd is simulated")

        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        try:
            output = await self._etcd.etcdctl(arguments)
            errors = ""
            status = {"status": "Success"}
        except EtcdError as error:
            output = ""
            errors = str(error)
            status = {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": "command terminated with exit code 1",
            }

        # Send the exit code last, in a Status on the channel for errors.
        messages = (
            (_STDOUT, output),
            (_STDERR, errors),
            (_ERROR, json.dumps({"metadata": {}, **status})),
        )
        for channel, text in messages:
            if text:
                await socket.send_bytes(bytes([channel]) + text.encode())
        await socket.close()
        return socket


def etcd_pod(node: str) -> Obj:
    """Return the mirror Pod of a control plane node's etcd."""
    return mirror_pod("etcd", node, CONTAINER, "sandbox/etcd")


def etcd_proxy_pod(node: str) -> Obj:
    """Return the Pod by which K3s' control plane provider reaches etcd.

    It is that of a DaemonSet, which would need a controller. A drain leaves both alone.
    """
    pod = mirror_pod("etcd-proxy", node, "etcd-proxy", "sandbox/etcd-proxy")
    pod["metadata"]["labels"] = {"app": "etcd-proxy"}
    return pod


def mirror_pod(component: str, node: str, container: str, image: str) -> Obj:
    """Return the mirror Pod of a control plane node, which only shows its static Pod."""
    metadata = {
        "name": f"{component}-{node}",
        "namespace": NAMESPACE,
        "labels": {"component": component, "tier": "control-plane"},
        "annotations": {
            "kubernetes.io/config.mirror": "sandbox",
            "kubernetes.io/config.source": "file",
        },
    }

    spec = {
        "nodeName": node,
        "hostNetwork": True,
        # No kubelet confirms that the container has stopped.
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": container, "image": image}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
