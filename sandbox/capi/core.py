"""The real Cluster API core, run as a process next to the management API server instead of in a Pod.

Its CRDs and webhooks come from its Go module. This module does what kustomize and cert-manager would do with them: it
adds contract labels and replaces references to a Service by URLs with a CA.
"""

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from caphv.api import resources
from caphv.api.object import CUSTOM_RESOURCE_DEFINITIONS, Obj
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from sandbox import manifests
from sandbox.processes import children, pki
from sandbox.processes.apiserver import ApiServer, private_file
from sandbox.processes.binaries import CLUSTER_API_CORE, binary, cluster_api_manifests
from sandbox.processes.children import Process

NAMESPACE = "capi-system"
# Its account, with its groups.
USER = ("cluster-api-core", ("system:masters",))
# Tests name another build of the core here.
CORE_VARIABLE = "CAPHV_SANDBOX_CORE"
START_SECONDS = 90.0
# Further feature gates of the core, as its option `--feature-gates` takes them.
GATES_VARIABLE = "CAPHV_SANDBOX_CORE_FEATURE_GATES"
PORT_ATTEMPTS = 5
# From the module's config/crd and metadata.yaml: the contract of each API version. 1.10 ignores the newer one.
LABELS = {
    "cluster.x-k8s.io/provider": "cluster-api",
    "cluster.x-k8s.io/v1beta1": "v1beta1",
    "cluster.x-k8s.io/v1beta2": "v1beta2",
    manifests.MOVE_LABEL: "",
}
# With a reference whose CRD a sandbox has, which the core requires. For a ClusterClass its webhooks would wait for 2 s.
PROBE: Obj = {
    "apiVersion": "cluster.x-k8s.io/v1beta2",
    "kind": "Cluster",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {
        "infrastructureRef": {"apiGroup": HARVESTER_CLUSTERS.group, "kind": HARVESTER_CLUSTERS.kind, "name": "probe"}
    },
}
# In the older version, the probe covers conversion as well as admission.
OLDER_PROBE: Obj = {
    **PROBE,
    "apiVersion": "cluster.x-k8s.io/v1beta1",
    "spec": {
        "infrastructureRef": {
            "apiVersion": HARVESTER_CLUSTERS.api_version,
            "kind": HARVESTER_CLUSTERS.kind,
            "name": "probe",
        }
    },
}


def program() -> str:
    """The core to run: by default the one that all tests use, by the environment another one of `binaries`."""
    return os.environ.get(CORE_VARIABLE, CLUSTER_API_CORE.name)


def api_version() -> str:
    """The newest version of its API that the core to run serves."""
    crds = cluster_api_manifests(core=program()) / "crd" / "bases"
    (clusters,) = manifests.read([crds / f"{resources.CLUSTER_API_GROUP}_clusters.yaml"])
    served = {version["name"] for version in clusters["spec"]["versions"] if version["served"]}
    return next(version for version in resources.CLUSTER_API_VERSIONS if version in served)


async def install(
    folder: Path, client: ApiClient, webhook_url: str, ca: pki.CA, *, older_versions: bool = True
) -> None:
    """Install CRDs, namespace and webhooks of the core on the management API server."""
    own = folder / "core"
    own.mkdir(mode=0o700, exist_ok=True)
    server = ca.server([urlsplit(webhook_url).hostname or "127.0.0.1"])
    private_file(own / "tls.crt", server.certificate)
    private_file(own / "tls.key", server.key)
    found = objects(cluster_api_manifests(core=program()), webhook_url, ca.certificate)
    await manifests.apply(client, [obj if older_versions else stored_version_only(obj) for obj in found])


async def start(folder: Path, server: ApiServer, *, older_versions: bool = True) -> Process:
    """Install and start the core for a management API server; returns once it admits and converts Clusters.

    Raises ProcessError, or ApiError if the API server rejects its manifests.
    """
    private_file(folder / "core.kubeconfig", pki.to_yaml(server.kubeconfig(*USER)))
    ca = pki.CA.create("caphv-sandbox-webhooks")
    async with server.client() as client:
        for _ in range(PORT_ATTEMPTS):
            webhook, health = children.free_ports(2)
            await install(folder, client, f"https://127.0.0.1:{webhook}", ca, older_versions=older_versions)
            process = children.start(
                folder,
                "core",
                _command(folder, webhook, health),
                env={"POD_NAMESPACE": NAMESPACE},
                timer_slack=children.TIMER_SLACK,
            )
            try:
                await children.wait_ready(process, lambda: admits(client, older_versions=older_versions), START_SECONDS)
            except children.ProcessError:
                if not children.port_was_taken(process):
                    raise
            else:
                return process
    raise children.ProcessError(f"core: all {PORT_ATTEMPTS} attempted pairs of ports were taken by other processes")


def objects(config: Path, webhook_url: str, ca: bytes) -> Iterator[Obj]:
    """The objects to install, from the module's `config` folder; `ca` (PEM) signed the webhooks' certificate."""
    bundle = base64.b64encode(ca).decode()
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    for crd in manifests.read(sorted((config / "crd" / "bases").glob("*.yaml"))):
        crd["metadata"]["labels"] = {**crd["metadata"].get("labels", {}), **LABELS}
        crd["spec"]["conversion"] = {
            "strategy": "Webhook",
            "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"url": f"{webhook_url}/convert", "caBundle": bundle},
            },
        }
        yield crd
    for configuration in manifests.read([config / "webhook" / "manifests.yaml"]):
        configuration["metadata"]["name"] = f"capi-{configuration['metadata']['name']}"
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"{webhook_url}{path}", "caBundle": bundle}
        yield configuration


def stored_version_only(obj: Obj) -> Obj:
    """A CRD with no other version than the one it stores.

    The API server compiles the schema of each version, also of one that is not served. It keeps a watch cache for each
    served version, and has the core convert each change for it.
    """
    if obj["kind"] == CUSTOM_RESOURCE_DEFINITIONS.kind:
        obj["spec"]["versions"] = [version for version in obj["spec"]["versions"] if version["storage"]]
    return obj


def _command(folder: Path, webhook_port: int, health_port: int) -> list[str | Path]:
    return [
        binary(program()),
        f"--kubeconfig={folder / 'core.kubeconfig'}",
        f"--webhook-port={webhook_port}",
        f"--webhook-cert-dir={folder / 'core'}",
        f"--health-addr=127.0.0.1:{health_port}",
        "--diagnostics-address=127.0.0.1:0",
        "--insecure-diagnostics",
        "--leader-elect=false",
        f"--feature-gates={','.join(filter(None, ['ClusterTopology=true', os.environ.get(GATES_VARIABLE)]))}",
        # Nothing is stored in an older version; it would patch each CRD, which the API server then compiles again.
        "--skip-crd-migration-phases=StorageVersionMigration,CleanupManagedFields",
        # The default limits protect a shared API server.
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
    ]


async def admits(client: ApiClient, *, older_versions: bool = True) -> bool:
    """Whether the core's webhooks admit Clusters, and convert them if an older version is served."""
    probe = OLDER_PROBE if older_versions or api_version() == "v1beta1" else PROBE
    try:
        await client.create(resources.clusters(probe["apiVersion"].rpartition("/")[2]), probe, dry_run=True)
    except (ApiError, Unreachable):
        return False
    return True
