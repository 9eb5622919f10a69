"""API servers with RBAC that write down what is asked, and the provider with the shipped rights alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from caphv.runtime.addresses import AddressPolicy, networks
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Conflict
from caphv.runtime.kubeconfig import parse_kubeconfig
from caphv.runtime.manager import BindAddresses
from reconciler.harvester import identityaccount
from reconciler.harvester.accountobjects import Account
from reconciler.manager import Provider, ProviderOptions
from sandbox import manifests
from sandbox.environment import STATE_FILE
from sandbox.guest.workload import FLAGS as WORKLOAD_FLAGS
from sandbox.harvester.config import SimulatorConfig
from sandbox.processes import binaries, children, network, pki
from sandbox.processes.apiserver import ApiServer, Etcd, private_file
from tests.support import rancher
from tests.support.paths import CHECKOUT
from tests.support.permissions import GROUPS
from tests.support.reconciler import environment, inprocess
from tests.support.reconciler.case import Case
from tests.support.reconciler.environment import TIMES, Environment, core_crds
from tools.release.components import objects

BASE = objects(CHECKOUT / "deploy" / "kustomize" / "base")
# cert-manager does not run here, and webhooks behind a Service have no Pod: API servers learn of both in another way.
ELSEWHERE = ("Issuer", "Certificate", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
MANAGER = "system:serviceaccount:caphv-system:caphv-controller-manager"
ACCOUNT = Account("caphv", "caphv-system", pools=True, images=("default",), backups=True)


class Unlucky(inprocess.Hook):
    """Repeats each creation as if the first response had been lost, and answers each first write with a conflict.

    So every path after a refused, repeated or conflicting write runs with the shipped roles, too.
    """

    REPEATED = ("virtualmachines", "loadbalancers", "ippools", "services", "secrets", "serviceaccounts", "namespaces")
    REPEATED += ("virtualmachineimages", "ipaddressclaims", "virtualmachinebackups")
    EXEMPT = ("leases", "events", "tokenreviews", "subjectaccessreviews")

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[tuple[str, str]] = set()

    async def asked(self, method: str, path: str, _options: Mapping[str, Any], send: Callable[[], Any]) -> Any:
        if method == "POST" and path.rpartition("/")[2] in self.REPEATED:
            with contextlib.suppress(ApiError):
                await send()
        elif (
            method in ("PATCH", "PUT", "DELETE")
            and (method, path) not in self.refused
            and not any(f"/{kind}/" in path for kind in self.EXEMPT)
        ):
            self.refused.add((method, path))
            raise Conflict(409, "Conflict", "the object has been modified")
        return await send()


class Restricted(Environment):
    """The environment with an identity of the shipped rights."""

    kubeconfig: str

    def identity(self, token: str = "") -> Obj:
        return yaml.safe_load(self.kubeconfig)


@pytest.fixture(scope="module")
def restricted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restricted]:
    """API servers and simulated Harvester, with the shipped accounts and without a provider."""
    binaries.prepare()
    folder = tmp_path_factory.mktemp("rights")
    with network.claim() as (claimed, _):
        try:
            yield asyncio.run(start(folder, str(claimed)))
        finally:
            asyncio.run(children.stop_all(folder))


async def start(folder: Path, claimed: str) -> Restricted:
    await Etcd(folder).start()
    management, harvester = (
        ApiServer(folder, name, audit=True, service_range=services)
        for name, services in (("management", "10.96.0.0/16"), ("harvester", "10.53.0.0/16"))
    )
    workload = ApiServer(folder, "workload", flags=WORKLOAD_FLAGS)
    await asyncio.gather(*(server.start() for server in (management, harvester, workload)))
    for server in (management, harvester):
        private_file(folder / f"{server.name}.kubeconfig", pki.to_yaml(server.kubeconfig()))
    private_file(folder / STATE_FILE, json.dumps({"network": claimed, "settings": TIMES, "core": ""}).encode())
    async with management.client() as client:
        await manifests.apply(client, [*(obj for obj in BASE if obj["kind"] not in ELSEWHERE), *core_crds("v1beta2")])
        await rancher.install(client)
    await environment._simulate(folder)
    found = Restricted(folder, management, harvester, workload, SimulatorConfig.from_settings(claimed, TIMES), None)  # type: ignore[arg-type]
    async with harvester.client() as client:
        found.kubeconfig = await identityaccount.create(client, ACCOUNT, harvester.url)
    return found


def manager(server: ApiServer, account: str = MANAGER) -> ApiClient:
    """A client with the account of the Deployment."""
    return parse_kubeconfig(pki.to_yaml(server.kubeconfig(account, GROUPS))).client(name="management")


@contextlib.asynccontextmanager
async def provider(
    server: ApiServer, metrics: int, *, account: str = MANAGER, namespace: str = ""
) -> AsyncIterator[None]:
    """The provider as the account of its Deployment, in this process."""
    inprocess._hook.set(Unlucky())
    client, stop = manager(server, account), asyncio.Event()
    addresses = BindAddresses(f"127.0.0.1:{metrics}", "")
    options = ProviderOptions(
        leader_elect=True,
        addresses=addresses,
        secure_metrics=True,
        namespace=namespace,
        address_policy=AddressPolicy(networks(["127.0.0.0/8"])),
    )
    running = await Provider.connect(client, options)
    work = asyncio.create_task(running.manager.run(stop))
    inprocess._hook.set(None)
    try:
        yield
        assert not work.done(), work.result()
    finally:
        stop.set()
        await work
        await client.close()


@contextlib.asynccontextmanager
async def clusters(environment: Restricted, *names: str) -> AsyncIterator[list[Case]]:
    """Cases by name; they are deleted when the scenario has come to its end, and nothing of them may be left."""
    found = [Case(environment, number, name) for number, name in enumerate(names, 1)]
    for case in found:
        await case.open()
    try:
        yield found
        for case in found:
            assert await case.remove() == []
    finally:
        for case in found:
            await case.close()
