"""What kubeadm does when a guest boots for the first time: it makes a cluster, or finds and joins one."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

import aiohttp
import yaml

from caphv.api.object import CONFIG_MAPS
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import AlreadyExists, ApiError, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.guest import kubeadmobjects
from sandbox.guest.cloudinit import GuestError
from sandbox.guest.join import CONTROL_PLANE, Join
from sandbox.guest.kubeadm import Kubeadm, cert_sans, hash_of
from sandbox.guest.workload import Member, Workloads
from sandbox.processes.apiserver import private_file

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class Joined:
    """What a disk keeps of its cluster: the CA (PEM), and the version that its kubelet has."""

    ca: str
    version: str


class Runs:
    """Runs of kubeadm on all guests; `workloads` has the API servers of clusters."""

    def __init__(self, workloads: Workloads) -> None:
        self._workloads = workloads

    async def joined(self, disk: str, run: Kubeadm) -> Joined:
        """What the disk knows of its cluster; a new one has to find it, and have its token accepted.

        kubeadm finds no version for kubelet, which an image brings: here it is that of the control plane at that time.
        Raises GuestError.
        """
        file = self._workloads.disk(disk) / "joined.json"
        with contextlib.suppress(FileNotFoundError):
            return Joined(**json.loads(file.read_text()))
        if run.cluster is not None and run.authority is not None:
            joined = Joined(run.authority.certificate.decode(), str(run.cluster["kubernetesVersion"]))
        else:
            ca = await _retried(lambda: _discover(run), run)
            joined = Joined(ca, await _retried(lambda: _version(run, ca), run))
        file.parent.mkdir(mode=0o700, exist_ok=True)
        private_file(file, json.dumps(asdict(joined)).encode())
        return joined

    async def access(self, run: Kubeadm, joined: Joined) -> Kubeconfig:
        """How a worker's kubelet reaches the API server, once that has run: nothing signs it a certificate."""
        token = await self._workloads.admin_token(joined.ca)
        return Kubeconfig(server=f"https://{run.endpoint}", ca=joined.ca, token=token)

    async def serve(self, disk: str, hostname: str, address: str, run: Kubeadm) -> Kubeconfig:
        """Start the control plane of a guest; `init` makes the objects of the cluster. Raises as `Workloads.serve`."""
        assert run.authority is not None  # noqa: S101 - of a control plane
        member = Member(address, disk, run.node.name or hostname, run.port, run.etcd)
        ca = run.authority.certificate.decode()
        join = Join(
            CONTROL_PLANE,
            f"https://{run.endpoint}",
            secrets.token_hex(16),
            ca,
            "",
            sans=(run.host, *cert_sans(run.cluster or {})),
            authority=run.authority,
        )
        local = await self._workloads.serve(member, join)
        access = Kubeconfig(server=local, ca=ca, token=await self._workloads.admin_token(ca))
        if run.cluster is not None:
            await _upload(access, run)
        return access


async def _upload(access: Kubeconfig, run: Kubeadm) -> None:
    assert run.cluster is not None  # noqa: S101 - of init
    client = access.client(name="workload", user_agent="caphv-sandbox")
    try:
        discovery = Discovery(client)
        for obj in kubeadmobjects.of_init(run.cluster, run.endpoint, access.ca.encode()):
            with contextlib.suppress(AlreadyExists):
                await client.create(await discovery.resource(obj), obj)
    finally:
        await client.close()


async def _discover(run: Kubeadm) -> str:
    """Read the CA from the cluster's public data, which its hash must confirm. Raises GuestError."""
    url = f"https://{run.endpoint}/api/v1/namespaces/{kubeadmobjects.PUBLIC}/configmaps/cluster-info"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.get(url, ssl=False) as answer,
        ):
            answer.raise_for_status()
            kubeconfig = yaml.safe_load((await answer.json())["data"]["kubeconfig"])
    except (aiohttp.ClientError, TimeoutError, KeyError, ValueError) as error:
        raise Unreachable(f"cluster-info: {type(error).__name__}") from None
    ca = base64.b64decode(kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"])
    if hash_of(ca) not in run.hashes:
        raise GuestError("discovery.bootstrapToken.caCertHashes: the CA of the cluster has none of these hashes")
    return ca.decode()


async def _version(run: Kubeadm, ca: str) -> str:
    """Read the cluster's configuration with the token, which must be one of the cluster's. Raises ApiError."""
    client = Kubeconfig(server=f"https://{run.endpoint}", ca=ca, token=run.token).client(name="workload")
    try:
        found = await client.get(CONFIG_MAPS, "kubeadm-config", kubeadmobjects.SYSTEM)
    finally:
        await client.close()
    return str(yaml.safe_load(found["data"]["ClusterConfiguration"])["kubernetesVersion"])


async def _retried(call: Callable[[], Awaitable[str]], run: Kubeadm) -> str:
    """Repeat a call until the control plane answers, and knows the token, as kubeadm does."""
    while True:
        try:
            return await call()
        except (ApiError, Unreachable) as error:
            log.info("node cannot join %s: %s", run.endpoint, error)
        await asyncio.sleep(RETRY_SECONDS)
