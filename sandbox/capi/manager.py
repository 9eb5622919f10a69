"""A controller manager of Cluster API, as a process instead of in a Pod.

It runs next to the management API server, with the CRDs and webhooks of its release. In place of
kustomize and cert-manager, this module adds labels to them and replaces references to a Service by
URLs with a CA.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, Obj
from caphv.runtime.client import ApiClient
from sandbox import manifests
from sandbox.processes import children, pki
from sandbox.processes.apiserver import ApiServer, private_file
from sandbox.processes.children import Process

# The account of all managers, with its groups.
USER = ("cluster-api-core", ("system:masters",))
START_SECONDS = 90.0
ATTEMPTS = 5
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


@dataclass(frozen=True)
class Ports:
    """The ports of a manager for its webhooks and its probes.

    The folder `certificates` has the certificate of the webhooks.
    """

    webhook: int
    health: int
    certificates: Path


@dataclass(frozen=True)
class Manager:
    """One controller manager. Its process, its log and its folder have the name `name`.

    `objects` are the CRDs and webhook configurations of its release, and `labels` are additional
    labels of the CRDs. `prefix` distinguishes the names of its webhook configurations from the
    names of others.
    """

    name: str
    namespace: str
    program: Path
    objects: Sequence[Obj] = field(repr=False)
    options: Callable[[Ports], list[str]]
    prefix: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def command(self, folder: Path, ports: Ports) -> list[str | Path]:
        """Return the command line for a management API server whose kubeconfig is in the folder."""
        return [
            self.program,
            f"--kubeconfig={folder / f'{self.name}.kubeconfig'}",
            *self.options(ports),
        ]


# A function that returns whether a manager works, from the port of the manager's probes.
Probe = Callable[[int], Awaitable[bool]]


def usual_options(ports: Ports) -> list[str]:
    """Return the options of managers that use the core's libraries."""
    return [
        f"--webhook-port={ports.webhook}",
        f"--webhook-cert-dir={ports.certificates}",
        f"--health-addr=127.0.0.1:{ports.health}",
        "--diagnostics-address=127.0.0.1:0",
        "--insecure-diagnostics",
        "--leader-elect=false",
        # No object is stored in an older version. The migration would patch each CRD, and the API
        # server would compile it again.
        "--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
        # The default limits protect a shared API server.
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
    ]


async def start(
    folder: Path, server: ApiServer, manager: Manager, probe: Probe, *, older_versions: bool = True
) -> Process:
    """Install and start a manager for a management API server.

    Returns once `probe` says that the manager works.

    Raises `ProcessError`, or `ApiError` if the API server rejects its manifests.
    """
    private_file(folder / f"{manager.name}.kubeconfig", pki.to_yaml(server.kubeconfig(*USER)))
    ca = pki.CA.create("caphv-sandbox-webhooks")
    async with server.client() as client:
        for attempt in range(1, ATTEMPTS + 1):
            webhook, health = children.free_ports(2)
            url = f"https://127.0.0.1:{webhook}"
            await install(folder, client, manager, url, ca, older_versions=older_versions)

            process = children.start(
                folder,
                manager.name,
                manager.command(folder, Ports(webhook, health, folder / manager.name)),
                env={"POD_NAMESPACE": manager.namespace},
                timer_slack=children.TIMER_SLACK_SECONDS,
            )
            try:
                await children.wait_ready(process, partial(probe, health), START_SECONDS)
            except children.ProcessError:
                if attempt == ATTEMPTS or not _may_start_again(process):
                    raise
            else:
                return process

    raise AssertionError("the last attempt returns or raises")


def _may_start_again(process: Process) -> bool:
    """Return whether a manager exited for a reason that passes. A kubelet would start it again.

    Another process may take a free port before the manager listens on it. The kinds of another
    provider, which starts at the same time, may not be served yet.
    """
    is_missing_kind = not process.alive and "no matches for kind" in process.log_tail()
    return children.port_was_taken(process) or is_missing_kind


async def install(
    folder: Path,
    client: ApiClient,
    manager: Manager,
    webhook_url: str,
    ca: pki.CA,
    *,
    older_versions: bool = True,
) -> None:
    """Install CRDs, namespace and webhooks of a manager, and write the webhooks' certificate."""
    certificates = folder / manager.name
    certificates.mkdir(mode=0o700, exist_ok=True)
    pair = ca.server([urlsplit(webhook_url).hostname or "127.0.0.1"])
    private_file(certificates / "tls.crt", pair.certificate)
    private_file(certificates / "tls.key", pair.key)

    objs = list(objects(manager, webhook_url, ca.certificate))
    if not older_versions:
        objs = [stored_version_only(obj) for obj in objs]
    await manifests.apply(client, objs)


def objects(manager: Manager, webhook_url: str, ca: bytes) -> Iterator[Obj]:
    """Yield the objects to install; `ca` (PEM) signed the webhooks' certificate."""
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": manager.namespace}}

    bundle = base64.b64encode(ca).decode()
    for original in manager.objects:
        # Deployments and roles of a release are for Pods.
        if original["kind"] not in (*WEBHOOKS, CUSTOM_RESOURCE_DEFINITIONS.kind):
            continue

        obj = copy.deepcopy(original)
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


def read_config(config: Path) -> list[Obj]:
    """Read the CRDs and webhook configurations in a folder `config` of a provider's sources."""
    crds = sorted((config / "crd" / "bases").glob("*.yaml"))
    return manifests.read([*crds, config / "webhook" / "manifests.yaml"])


def stored_version_only(obj: Obj) -> Obj:
    """Remove all versions from a CRD except the stored one.

    The API server compiles the schema of each version, even if the version is not served. It keeps
    a watch cache for each served version, and calls the core to convert each change for it.
    """
    if obj["kind"] == CUSTOM_RESOURCE_DEFINITIONS.kind:
        obj["spec"]["versions"] = [
            version for version in obj["spec"]["versions"] if version["storage"]
        ]
    return obj


async def is_ready(port: int) -> bool:
    """Return whether a manager reports that it is ready, and thus serves its webhooks."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session,
            session.get(f"http://127.0.0.1:{port}/readyz") as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
