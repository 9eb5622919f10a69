"""kube-vip in a guest, whose machines hold the address of their cluster's API, one at a time.

A control plane guest runs it as a static Pod. The holder of a Lease in the workload cluster has the
address on its interface, and answers there on all its ports. A guest that is destroyed does not
release the Lease, so another guest takes the address once it has expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import yaml

from caphv.api.object import Obj, at, list_at
from caphv.runtime.client import ApiClient
from caphv.runtime.election import LeaderElection, Timing
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.guest.cloudinit import GuestError, UserData
from sandbox.guest.guest import Guest
from sandbox.harvester.addresses import Addresses
from sandbox.processes.proxy import TcpProxy

log = logging.getLogger(__name__)

_KUBEADM = "/etc/kubernetes"
# The folder of static Pods and the kubeconfig of each distribution. That of kubeadm is checked in
# `_check_kubeadm`.
_KUBECONFIGS = {
    "/var/lib/rancher/rke2/agent/pod-manifests": "/etc/rancher/rke2/rke2.yaml",
    "/var/lib/rancher/k3s/agent/pod-manifests": "/etc/rancher/k3s/k3s.yaml",
    f"{_KUBEADM}/manifests": "",
}
# Where kube-vip reads its kubeconfig.
_MOUNT = f"{_KUBEADM}/admin.conf"
_NAMESPACE = "kube-system"
# What the program takes for variables that are absent.
_DEFAULTS = {
    "vip_leasename": "plndr-cp-lock",
    "vip_leaseduration": "15",
    "vip_renewdeadline": "10",
    "vip_retryperiod": "2",
}


@dataclass(frozen=True, slots=True)
class KubeVip:
    """The settings of kube-vip. `interface` is empty for that of the default route."""

    address: str
    interface: str
    lease: str
    timing: Timing


@dataclass(frozen=True, slots=True)
class Machine:
    """A guest in which kube-vip runs, for `hold`.

    `ports` are those on which it answers at its own `address`. `report` tells the guest agent
    whether an interface has the virtual address.
    """

    guest: Guest
    address: str
    ports: tuple[int, ...]
    report: Callable[[bool], Awaitable[None]]


def kube_vip_of(user_data: UserData) -> KubeVip | None:
    """Return the settings of kube-vip for the control plane, None without its static Pod.

    Raises `GuestError` for a Pod that would not start, or would not hold an address.
    """
    for path, file in user_data.files.items():
        folder = path.rpartition("/")[0]
        if folder not in _KUBECONFIGS:
            continue
        pod = _parse_pod(path, file.content)
        for container in list_at(pod, "spec", "containers"):
            environment = _environment(container)
            if container.get("args") == ["manager"] and environment.get("cp_enable") == "true":
                _check_kubeconfig(user_data, pod, container, path)
                return _settings(environment, path)
    return None


@asynccontextmanager
async def running(
    machine: Machine, settings: KubeVip, kubeconfig: Kubeconfig, addresses: Addresses
) -> AsyncIterator[None]:
    """Run kube-vip in a guest for as long as the block lasts.

    :param kubeconfig: for the API server of the guest
    :param addresses: the addresses in use on the network
    """
    client = kubeconfig.client(name="kube-vip")
    task = asyncio.create_task(_compete(machine, settings, client, addresses))
    try:
        yield
    finally:
        task.cancel()
        (end,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(end, Exception):
            log.error("kube-vip in %s: %r", machine.guest.key, end)
        await client.close()


async def _compete(
    machine: Machine, settings: KubeVip, client: ApiClient, addresses: Addresses
) -> None:
    election = LeaderElection(
        client,
        namespace=_NAMESPACE,
        name=settings.lease,
        identity=machine.guest.hostname,
        timing=settings.timing,
    )
    try:
        # The real program ends when it loses the Lease, and its Pod is restarted.
        while True:
            await election.acquire()
            async with _held(machine, settings.address, addresses):
                await election.hold()
    finally:
        await election.close()


@asynccontextmanager
async def _held(machine: Machine, address: str, addresses: Addresses) -> AsyncIterator[None]:
    """Hold an address for as long as the block lasts."""
    holder = f"kube-vip of VM {machine.guest.key}"
    other = addresses.claim(address, holder)
    if other:
        # A real kube-vip does not notice it. Two machines then answer on one address.
        log.warning("address %s of kube-vip in %s is used by %s", address, machine.guest.key, other)

    proxies = []
    try:
        for port in machine.ports:
            proxy = TcpProxy((address, port), [(machine.address, port)])
            with contextlib.suppress(OSError):
                await proxy.start()
                proxies.append(proxy)
        log.info("guest %s holds address %s", machine.guest.key, address)
        await machine.report(True)
        yield
    finally:
        for proxy in proxies:
            await proxy.close()
        addresses.release(holder)
        with contextlib.suppress(asyncio.CancelledError):
            await machine.report(False)


def _parse_pod(path: str, content: str) -> Obj:
    try:
        pod = yaml.safe_load(content)
    except yaml.YAMLError:
        raise GuestError(f"{path}: invalid YAML") from None
    # The kubelet skips other kinds.
    return pod if isinstance(pod, dict) and pod.get("kind") == "Pod" else {}


def _environment(container: Obj) -> dict[str, str]:
    return {
        str(entry.get("name")): str(entry.get("value") or "") for entry in list_at(container, "env")
    }


def _settings(environment: Mapping[str, str], path: str) -> KubeVip:
    if environment.get("vip_arp") != "true" or environment.get("vip_leaderelection") != "true":
        raise GuestError(f"{path}: kube-vip must have vip_arp and vip_leaderelection")
    if environment.get("svc_enable") == "true":
        raise GuestError(f"{path}: the cloud provider brings kube-vip for Services")
    try:
        address = str(ipaddress.IPv4Address(environment.get("address", "")))
        values = {name: environment.get(name) or value for name, value in _DEFAULTS.items()}
        duration, deadline, retry = (float(values[name]) for name in list(_DEFAULTS)[1:])
    except ValueError as error:
        raise GuestError(f"{path}: {error}") from None

    # client-go refuses other times.
    if not duration > deadline > 1.2 * retry:
        raise GuestError(f"{path}: lease duration, renew deadline and retry period do not fit")
    timing = Timing(duration, deadline, retry)
    return KubeVip(address, environment.get("vip_interface", ""), values["vip_leasename"], timing)


def _check_kubeconfig(user_data: UserData, pod: Obj, container: Obj, path: str) -> None:
    """Raise GuestError unless the Pod mounts a kubeconfig that its machine gets."""
    mounts = list_at(container, "volumeMounts")
    names = [mount.get("name") for mount in mounts if mount.get("mountPath") == _MOUNT]
    volumes = list_at(pod, "spec", "volumes")
    sources: list[Obj] = [
        volume.get("hostPath") or {} for volume in volumes if volume.get("name") in names
    ]
    if not sources:
        raise GuestError(f"{path}: kube-vip reads its kubeconfig at {_MOUNT}, which nothing mounts")

    source = sources[0]
    if source.get("type") != "File":
        raise GuestError(f"{path}: without type File, the kubeconfig becomes a folder")
    if not _resolves_kubernetes(pod):
        raise GuestError(f"{path}: kube-vip calls the API server of its machine as kubernetes")

    kubeconfig = str(source.get("path"))
    if expected := _KUBECONFIGS[path.rpartition("/")[0]]:
        if kubeconfig != expected:
            raise GuestError(f"{path}: the kubeconfig is {expected}, and not {kubeconfig}")
        return
    _check_kubeadm(kubeconfig, user_data.commands, path)


def _resolves_kubernetes(pod: Obj) -> bool:
    aliases = list_at(pod, "spec", "hostAliases")
    is_local = any(
        alias.get("ip") == "127.0.0.1" and "kubernetes" in list_at(alias, "hostnames")
        for alias in aliases
    )
    return is_local and bool(at(pod, "spec", "hostNetwork"))


def _check_kubeadm(kubeconfig: str, commands: Iterable[str], path: str) -> None:
    """Raise GuestError for a kubeconfig with which `kubeadm init` would fail.

    It calls the API at the endpoint, and until then only super-admin.conf has rights.
    """
    text = "\n".join(commands)
    if "kubeadm init" in text:
        is_link = f"ln -sf super-admin.conf {kubeconfig}" in text
        if not is_link and kubeconfig != f"{_KUBEADM}/super-admin.conf":
            raise GuestError(f"{path}: kubeadm init needs kube-vip with super-admin.conf")
    elif f"ln -sf admin.conf {kubeconfig}" not in text and kubeconfig != f"{_KUBEADM}/admin.conf":
        raise GuestError(f"{path}: a machine that joins has admin.conf, and not {kubeconfig}")
