"""Runs of kubeadm when a guest boots for the first time.

`init` creates a cluster, `join` finds and joins one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass

import aiohttp
import yaml

from caphv.api.object import CONFIG_MAPS, Obj
from caphv.runtime.discovery import Discovery
from caphv.runtime.errors import AlreadyExists, RequestError, Unreachable
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
class ClusterRecord:
    """The record of a cluster on a disk: the CA (PEM), and the version of the disk's kubelet."""

    ca: str
    version: str


class Runs:
    """Runs of kubeadm on all guests. `workloads` has the API servers of the clusters."""

    def __init__(self, workloads: Workloads) -> None:
        self._workloads = workloads

    async def find_cluster(self, disk: str, run: Kubeadm) -> ClusterRecord:
        """Return the record of the cluster on a disk.

        A new disk waits until the control plane answers and accepts its token. A real image brings
        a kubelet. Here the version of the kubelet is the version of the control plane at that time.

        Raises `GuestError`.
        """
        file = self._workloads.disk(disk) / "joined.json"
        with contextlib.suppress(FileNotFoundError):
            return ClusterRecord(**json.loads(file.read_text()))

        if run.cluster is not None and run.authority is not None:
            ca = run.authority.certificate.decode()
            version = run.cluster["kubernetesVersion"]
        else:
            ca = await _retry(lambda: _discover_ca(run), run)
            version = await _retry(lambda: _read_version(run, ca), run)

        record = ClusterRecord(ca, str(version))
        file.parent.mkdir(mode=0o700, exist_ok=True)
        private_file(file, json.dumps(asdict(record)).encode())
        return record

    async def worker_kubeconfig(self, run: Kubeadm, record: ClusterRecord) -> Kubeconfig:
        """Return the kubeconfig of a worker's kubelet. Waits until the API server has run."""
        # Nothing signs a certificate for the kubelet.
        token = await self._workloads.admin_token(record.ca)
        return Kubeconfig(server=f"https://{run.endpoint}", ca=record.ca, token=token)

    async def serve(self, disk: str, hostname: str, address: str, run: Kubeadm) -> Kubeconfig:
        """Start the control plane of a guest. `init` also creates the objects of the cluster.

        Raises the errors of `Workloads.serve`.
        """
        assert run.authority is not None  # noqa: S101 - of a control plane
        member = Member(
            address=address, disk=disk, node=run.node.name or hostname, port=run.port, etcd=run.etcd
        )
        ca = run.authority.certificate.decode()

        # For a join, any token is right, because the server keeps the token of its first guest.
        join = Join(
            role=CONTROL_PLANE,
            server=f"https://{run.endpoint}",
            token=secrets.token_hex(16),
            ca=ca,
            version="",
            sans=(run.host, *cert_sans(run.cluster or {})),
            authority=run.authority,
        )
        local_url = await self._workloads.serve(member, join)

        token = await self._workloads.admin_token(ca)
        kubeconfig = Kubeconfig(server=local_url, ca=ca, token=token)
        if run.cluster is not None:
            objects = kubeadmobjects.init_objects(run.cluster, run.endpoint, ca.encode())
            await _create_objects(kubeconfig, objects)
        return kubeconfig


async def _create_objects(kubeconfig: Kubeconfig, objects: Iterable[Obj]) -> None:
    client = kubeconfig.client(name="workload", user_agent="caphv-sandbox")
    try:
        discovery = Discovery(client)
        for obj in objects:
            with contextlib.suppress(AlreadyExists):
                await client.create(await discovery.resource(obj), obj)
    finally:
        await client.close()


async def _discover_ca(run: Kubeadm) -> str:
    """Read the CA from the cluster's public data, and check its hash.

    Raises `GuestError` for another CA, `Unreachable` while the data does not exist.
    """
    url = (
        f"https://{run.endpoint}/api/v1/namespaces/{kubeadmobjects.PUBLIC}/configmaps/cluster-info"
    )
    try:
        # Do not verify the server here, because the hash confirms its CA below.
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
        raise GuestError(
            "discovery.bootstrapToken.caCertHashes: the CA of the cluster has none of these hashes"
        )
    return ca.decode()


async def _read_version(run: Kubeadm, ca: str) -> str:
    """Read the version of the cluster with a node's token, which the cluster must accept.

    Raises `ApiError`.
    """
    kubeconfig = Kubeconfig(server=f"https://{run.endpoint}", ca=ca, token=run.token)
    client = kubeconfig.client(name="workload")
    try:
        config_map = await client.get(CONFIG_MAPS, "kubeadm-config", kubeadmobjects.SYSTEM)
    finally:
        await client.close()
    return str(yaml.safe_load(config_map["data"]["ClusterConfiguration"])["kubernetesVersion"])


async def _retry(call: Callable[[], Awaitable[str]], run: Kubeadm) -> str:
    """Like kubeadm, repeat a call until the control plane answers and accepts the token."""
    while True:
        try:
            return await call()
        except RequestError as error:
            log.info("node cannot join %s: %s", run.endpoint, error)
        await asyncio.sleep(RETRY_SECONDS)
