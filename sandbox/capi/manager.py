"""A controller manager of Cluster API, run as a process next to the management API server instead of in a Pod.

Its CRDs and webhooks are those that its release installs. This module does what kustomize and cert-manager would do
with them: it adds labels and replaces references to a Service by URLs with a CA.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, Obj
from caphv.runtime.client import ApiClient
from sandbox import manifests
from sandbox.processes import children, pki
from sandbox.processes.apiserver import ApiServer, private_file
from sandbox.processes.children import Process

# The account of all of them, with its groups.
USER = ("cluster-api-core", ("system:masters",))
START_SECONDS = 90.0
PORT_ATTEMPTS = 5
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


@dataclass(frozen=True)
class Ports:
    """The ports of a manager: for its webhooks, and for its probes; the folder has the webhooks' certificate."""

    webhook: int
    health: int
    certificates: Path


@dataclass(frozen=True)
class Manager:
    """One controller manager; `name` is that of its process, its log and its folder.

    `objects` are CRDs and webhook configurations as its release has them, `labels` those that its CRDs get in addition.
    `prefix` tells the names of its webhook configurations from those of others.
    """

    name: str
    namespace: str
    program: Path
    objects: Sequence[Obj] = field(repr=False)
    options: Callable[[Ports], list[str]]
    prefix: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def command(self, folder: Path, ports: Ports) -> list[str | Path]:
        """Command line for a management API server whose kubeconfig is in the folder."""
        return [self.program, f"--kubeconfig={folder / f'{self.name}.kubeconfig'}", *self.options(ports)]


# Asks whether a manager works, by the port of its probes.
Probe = Callable[[int], Awaitable[bool]]


def usual_options(ports: Ports) -> list[str]:
    """Options of managers that are made with the core's libraries."""
    return [
        f"--webhook-port={ports.webhook}",
        f"--webhook-cert-dir={ports.certificates}",
        f"--health-addr=127.0.0.1:{ports.health}",
        "--diagnostics-address=127.0.0.1:0",
        "--insecure-diagnostics",
        "--leader-elect=false",
        # Nothing is stored in an older version; it would patch each CRD, which the API server then compiles again.
        "--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
        # The default limits protect a shared API server.
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
    ]


async def start(
    folder: Path, server: ApiServer, manager: Manager, probe: Probe, *, older_versions: bool = True
) -> Process:
    """Install and start a manager for a management API server; returns once `probe` says that it works.

    Raises ProcessError, or ApiError if the API server rejects its manifests.
    """
    private_file(folder / f"{manager.name}.kubeconfig", pki.to_yaml(server.kubeconfig(*USER)))
    ca = pki.CA.create("caphv-sandbox-webhooks")
    async with server.client() as client:
        for _ in range(PORT_ATTEMPTS):
            webhook, health = children.free_ports(2)
            url = f"https://127.0.0.1:{webhook}"
            await install(folder, client, manager, url, ca, older_versions=older_versions)
            process = children.start(
                folder,
                manager.name,
                manager.command(folder, Ports(webhook, health, folder / manager.name)),
                env={"POD_NAMESPACE": manager.namespace},
                timer_slack=children.TIMER_SLACK,
            )
            try:
                await children.wait_ready(process, _asking(probe, health), START_SECONDS)
            except children.ProcessError:
                if not children.port_was_taken(process):
                    raise
            else:
                return process
    raise children.ProcessError(
        f"{manager.name}: all {PORT_ATTEMPTS} attempted pairs of ports were taken by other processes"
    )


async def install(
    folder: Path, client: ApiClient, manager: Manager, webhook_url: str, ca: pki.CA, *, older_versions: bool = True
) -> None:
    """Install CRDs, namespace and webhooks of a manager, and write the certificate of its webhooks."""
    own = folder / manager.name
    own.mkdir(mode=0o700, exist_ok=True)
    server = ca.server([urlsplit(webhook_url).hostname or "127.0.0.1"])
    private_file(own / "tls.crt", server.certificate)
    private_file(own / "tls.key", server.key)
    found = objects(manager, webhook_url, ca.certificate)
    await manifests.apply(client, [obj if older_versions else stored_version_only(obj) for obj in found])


def objects(manager: Manager, webhook_url: str, ca: bytes) -> Iterator[Obj]:
    """The objects to install; `ca` (PEM) signed the webhooks' certificate."""
    bundle = base64.b64encode(ca).decode()
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": manager.namespace}}
    for obj in copy.deepcopy(
        [obj for obj in manager.objects if obj["kind"] in (*WEBHOOKS, "CustomResourceDefinition")]
    ):
        if obj["kind"] == CUSTOM_RESOURCE_DEFINITIONS.kind:
            obj["metadata"]["labels"] = {**obj["metadata"].get("labels", {}), **manager.labels}
            obj["spec"]["conversion"] = {
                "strategy": "Webhook",
                "webhook": {
                    "conversionReviewVersions": ["v1"],
                    "clientConfig": {"url": f"{webhook_url}/convert", "caBundle": bundle},
                },
            }
        else:
            obj["metadata"]["name"] = f"{manager.prefix}{obj['metadata']['name']}"
            for webhook in obj["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": f"{webhook_url}{path}", "caBundle": bundle}
        yield obj


def of_config(config: Path) -> list[Obj]:
    """CRDs and webhook configurations in a folder `config` of a provider's sources."""
    return manifests.read([*sorted((config / "crd" / "bases").glob("*.yaml")), config / "webhook" / "manifests.yaml"])


def stored_version_only(obj: Obj) -> Obj:
    """A CRD with no other version than the one it stores.

    The API server compiles the schema of each version, also of one that is not served. It keeps a watch cache for each
    served version, and has the core convert each change for it.
    """
    if obj["kind"] == CUSTOM_RESOURCE_DEFINITIONS.kind:
        obj["spec"]["versions"] = [version for version in obj["spec"]["versions"] if version["storage"]]
    return obj


async def is_ready(port: int) -> bool:
    """Whether a manager's probe says that it is ready: its webhooks are served."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
            session.get(f"http://127.0.0.1:{port}/readyz") as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _asking(probe: Probe, health: int) -> Callable[[], Awaitable[bool]]:
    return lambda: probe(health)
