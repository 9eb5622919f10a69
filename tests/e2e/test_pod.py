"""The image of the Dockerfile as a Pod of the shipped Deployment: its arguments, volumes and account, and nothing else.

It is installed without cert-manager, by the commands of docs/installation.md: webhooks and metrics have the certificate
that these make.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import os
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import yaml

from caphv.api.object import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, SECRETS, SERVICES, Obj, Resource
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from sandbox import manifests
from sandbox.processes import binaries, children, pki
from sandbox.processes.apiserver import ApiServer
from tests.support import doccommands
from tests.support.apiservers import running_management
from tests.support.metrics import bind, scrape, token
from tests.support.metrics import roles as metrics_roles
from tests.support.packager.environment import CLASSES, CLUSTERS, CONTROL_PLANES, Case
from tests.support.packager.environment import install as install_kinds
from tests.support.packager.git_servers import HttpBackend, tls_context
from tests.support.packager.repositories import Origin
from tests.support.pods import Pod, require_namespaces
from tests.support.reconciler.environment import core_crds
from tests.support.waiting import until
from tools.release.__main__ import contents
from webhooks.configuration import NAMES, RESOURCES
from webhooks.handler import WEBHOOKS

pytestmark = pytest.mark.e2e

NAMESPACE = "caphv-system"
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
# Seconds until a Pod is ready: a slow start is no failure, as for the kubelet.
START = 180.0
# Absent from the controller's image.
PROGRAMS = ("sh", "/bin/sh", "bash", "git", "ssh", "env", "apt-get", "dpkg", "pip")
LOOK = """\
import os
print(os.getuid(), os.getgid())
for place in ("/", "/usr/local", "/etc", "/tmp"):
    try:
        open(os.path.join(place, "written"), "w").close()
        print(place, "written")
    except OSError as error:
        print(place, error.strerror)
"""


@pytest.fixture(autouse=True)
def ports() -> Iterator[None]:
    """Pods have the network of the machine and fixed ports: one at a time, also with other test runs on it."""
    with (Path(tempfile.gettempdir()) / "caphv-test-pod.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def management(tmp_path: Path, ports: None) -> Iterator[ApiServer]:
    require_namespaces()
    with running_management(tmp_path) as server:
        yield server


VALUES: Obj = {
    "replicas": 2,
    "watchNamespace": "team-a",
    "logLevel": "debug",
    "webhooks": {"certificate": "self-signed"},
    "metrics": {"certificateSecret": "own"},
    "caBundle": {"configMap": "authorities", "key": "all.pem"},
    # No one listens there, and the API server is no exception: a Pod reaches it without a proxy all the same.
    "proxy": {"url": "http://proxy.invalid:3128"},
}


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin.make(tmp_path / "origin" / "fleet.git")


def install(folder: Path, checkout: Path) -> None:
    """What docs/installation.md says about an installation without cert-manager."""
    (block,) = [text for text in doccommands.blocks(checkout / "docs" / "installation.md") if "openssl" in text]
    place = folder / "shell"
    place.mkdir()
    (place / "deploy").symlink_to(checkout / "deploy")
    (place / "kubectl").symlink_to(binaries.binary("kubectl"))
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "KUBECONFIG": str(folder / "kubeconfig")}
    done = subprocess.run(
        ["bash", "-e", "-c", block], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_provider_runs_as_its_deployment_says(
    management: ApiServer, checkout: Path, prefix: Path, tmp_path: Path
) -> None:
    install(tmp_path, checkout)
    asyncio.run(provider(management, checkout, prefix, tmp_path))


async def provider(management: ApiServer, checkout: Path, prefix: Path, folder: Path) -> None:
    async with management.client() as client:
        await manifests.apply(client, core_crds("v1beta2"))
        pod = Pod(management, await deployment(client, "caphv-controller-manager"), prefix, folder / "pod")
        await pod.mount(client)
        process = pod.start()
        try:
            await until(lambda: probed(pod, "readinessProbe"), "it is ready", START)
            assert await probed(pod, "livenessProbe")
            assert pod.run(pod.python, "-c", LOOK).splitlines() == [
                "65532 65532",
                "/ Read-only file system",
                "/usr/local Read-only file system",
                "/etc Read-only file system",
                "/tmp written",
            ]
            for program in PROGRAMS:
                assert "FileNotFoundError" in pod.run(program, "--version"), program
            secret = await client.get(SECRETS, "caphv-webhook-self-signed", NAMESPACE)
            await until(lambda: has_authority(client, secret["data"]["ca.crt"]), "API servers know the CA")
            await until(lambda: leads(client, "1e1658d6.cluster.x-k8s.io"), "it has the lease")
            await scraped(pod, client, checkout, secret)
            assert capabilities(process.pid) == 0
        finally:
            await children.end(process, grace=pod.spec["terminationGracePeriodSeconds"])
        assert (await client.get(LEASES, "1e1658d6.cluster.x-k8s.io", NAMESPACE))["spec"]["holderIdentity"] == ""
    log = process.log.read_text()
    assert "orbidden" not in log
    assert "Traceback" not in log


def test_provider_runs_as_the_chart_says_for_one_namespace(
    management: ApiServer, checkout: Path, prefix: Path, tmp_path: Path
) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(VALUES))
    chart = [checkout / "deploy" / "chart", f"--namespace={NAMESPACE}", f"--values={tmp_path / 'values.yaml'}"]
    command = [binaries.binary("helm"), "template", "caphv", *chart]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    objects = manifests.parse(done.stdout)
    asyncio.run(one_namespace(management, prefix, tmp_path, objects))


async def one_namespace(management: ApiServer, prefix: Path, folder: Path, objects: list[Obj]) -> None:
    ca = pki.CA.create("metrics")
    pair = ca.server(["metrics.example.com"])
    data = {"ca.crt": ca.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
    text = {name: content.decode() for name, content in data.items()}
    async with management.client() as client:
        for name in (NAMESPACE, "team-a"):
            await client.create(NAMESPACES, {"metadata": {"name": name}})
        place = {"name": "own", "namespace": NAMESPACE}
        await client.create(SECRETS, {"metadata": place, "type": "kubernetes.io/tls", "stringData": text})
        place = {"name": "authorities", "namespace": NAMESPACE}
        await client.create(CONFIG_MAPS, {"metadata": place, "data": {"all.pem": text["ca.crt"]}})
        await manifests.apply(client, [*objects, *core_crds("v1beta2")])
        pod = Pod(management, await deployment(client, "caphv-controller-manager"), prefix, folder / "pod")
        await pod.mount(client)
        process = pod.start()
        try:
            await until(lambda: probed(pod, "readinessProbe"), "it is ready", START)
            await until(lambda: leads(client, "team-a.1e1658d6.cluster.x-k8s.io"), "it has the lease of its namespace")
            await bind(client, "prometheus")
            tls: dict[str, Any] = {"ssl": ssl.create_default_context(cadata=text["ca.crt"])}
            tls["server_hostname"] = "metrics.example.com"
            headers = {"Authorization": f"Bearer {await token(client, 'prometheus')}"}
            url = f"https://127.0.0.1:{pod.port('metrics')}/metrics"
            async with aiohttp.ClientSession() as session, session.get(url, headers=headers, **tls) as answer:
                assert answer.status == 200
        finally:
            await children.end(process)
    log = process.log.read_text()
    assert "orbidden" not in log
    assert "Traceback" not in log


def test_packager_runs_as_its_deployment_says(
    management: ApiServer, prefix: Path, tmp_path: Path, origin: Origin
) -> None:
    tls, authority = tls_context(tmp_path)
    password = {"username": "packager", "password": "of the packager"}
    with HttpBackend(origin.folder.parent, password=password["password"]).serve(tls) as backend:
        asyncio.run(packager(management, prefix, tmp_path, origin, backend, {**password, "ca.crt": authority}))


async def packager(
    management: ApiServer, prefix: Path, folder: Path, origin: Origin, backend: HttpBackend, credentials: dict[str, str]
) -> None:
    await install_kinds(management, CLUSTERS, CLASSES, CONTROL_PLANES)
    objects = manifests.parse(contents()["packager.yaml"])
    (settings,) = [obj for obj in objects if obj["kind"] == "ConfigMap"]
    settings["data"]["CAPHV_GIT_REPO"] = f"{backend.url}/fleet.git"
    async with management.client() as client:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        place = {"name": "caphv-git", "namespace": NAMESPACE}
        await client.create(SECRETS, {"metadata": place, "type": "kubernetes.io/basic-auth", "stringData": credentials})
        await manifests.apply(client, [*objects, *metrics_roles()])
        pod = Pod(management, await deployment(client, "caphv-packager"), prefix, folder / "pod", "packager")
        await pod.mount(client)
        case = Case(management, client, folder, origin)
        await client.create(NAMESPACES, {"metadata": {"name": case.namespace}})
        process = pod.start()
        try:
            await until(lambda: probed(pod, "readinessProbe"), "it is ready", START)
            assert await probed(pod, "livenessProbe")
            await case.cluster("one")
            await until(lambda: committed(origin), "its bundles are in the repository")
            await bind(client, "prometheus")
            account = await token(client, "prometheus")
            # The commit is counted after the push has been answered.
            await until(lambda: counted(pod, account, "caphv_packager_commits_total 1.0"), "the commit is counted")
            assert (await scrape(pod.port("metrics")))[0] == 401
        finally:
            await children.end(process)
    log = process.log.read_text()
    assert "orbidden" not in log
    assert "Traceback" not in log


async def committed(origin: Origin) -> bool:
    return "main" in origin.branches() and any("/one/" in path for path in origin.files())


async def counted(pod: Pod, account: str, sample: str) -> bool:
    status, text = await scrape(pod.port("metrics"), account)
    assert status == 200
    return sample in text


async def deployment(client: ApiClient, name: str) -> Obj:
    return await client.get(DEPLOYMENTS, name, NAMESPACE)


async def probed(pod: Pod, probe: str) -> bool:
    """What a kubelet finds out."""
    asked = pod.container[probe]["httpGet"]
    url = f"http://127.0.0.1:{pod.port(asked['port'])}{asked['path']}"
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status == 200
    except aiohttp.ClientConnectorError:
        return False


async def leads(client: ApiClient, lease: str) -> bool:
    """Whether a replica holds the lease, which it gets a moment after it is ready."""
    with contextlib.suppress(NotFound):
        return bool((await client.get(LEASES, lease, NAMESPACE))["spec"]["holderIdentity"])
    return False


async def has_authority(client: ApiClient, authority: str) -> bool:
    """Whether the webhook configurations have the CA."""
    found = [await client.get(RESOURCES[webhook], NAMES[webhook]) for webhook in WEBHOOKS]
    return all(each["clientConfig"].get("caBundle") == authority for obj in found for each in obj["webhooks"])


async def scraped(pod: Pod, client: ApiClient, checkout: Path, secret: Obj) -> None:
    """As Prometheus does it by the ServiceMonitor, and as API servers call webhooks: the certificate is verified."""
    file = checkout / "deploy" / "kustomize" / "monitoring" / "servicemonitor.yaml"
    monitor = manifests.parse(file.read_text())[0]
    (endpoint,) = monitor["spec"]["endpoints"]
    name = endpoint["tlsConfig"]["serverName"]
    service = await client.get(SERVICES, "caphv-controller-manager-metrics-service", NAMESPACE)
    (target,) = (port["targetPort"] for port in service["spec"]["ports"] if port["name"] == endpoint["port"])
    authority = base64.b64decode(secret["data"][endpoint["tlsConfig"]["ca"]["secret"]["key"]]).decode()
    await bind(client, "prometheus")
    headers = {"Authorization": f"Bearer {await token(client, 'prometheus')}"}
    tls: dict[str, Any] = {"ssl": ssl.create_default_context(cadata=authority)}
    metrics = f"https://127.0.0.1:{pod.port(target)}{endpoint['path']}"
    webhook = f"https://127.0.0.1:{pod.port('webhook')}/"
    async with aiohttp.ClientSession() as session:
        async with session.get(metrics, headers=headers, server_hostname=name, **tls) as answer:
            assert (answer.status, "caphv_leader 1.0" in await answer.text()) == (200, True)
        async with session.get(webhook, server_hostname="caphv-webhook-service.caphv-system.svc", **tls) as answer:
            assert answer.status == 404
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get(metrics, server_hostname="other.example.com", **tls)


def capabilities(pid: int) -> int:
    """Of a process and its children, in the namespaces that they are in."""
    found = 0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        found |= next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff"))
    return found
