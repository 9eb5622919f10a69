"""The real Cluster API core, with CRDs and webhooks from its Go module."""

import os
from pathlib import Path

from caphv.api import resources
from caphv.api.object import Obj
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import ApiError, Unreachable
from sandbox import manifests
from sandbox.capi import manager as managers
from sandbox.capi.manager import Manager, of_config, usual_options
from sandbox.processes.apiserver import ApiServer
from sandbox.processes.binaries import binary, cluster_api_manifests
from sandbox.processes.children import Process
from sandbox.processes.clusterapi import CLUSTER_API_CORE

NAMESPACE = "capi-system"
# Tests name another build of the core here.
CORE_VARIABLE = "CAPHV_SANDBOX_CORE"
# Further feature gates of the core, as its option `--feature-gates` takes them.
GATES_VARIABLE = "CAPHV_SANDBOX_CORE_FEATURE_GATES"
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
    crds = cluster_api_manifests(program=program()) / "crd" / "bases"
    (clusters,) = manifests.read([crds / f"{resources.CLUSTER_API_GROUP}_clusters.yaml"])
    served = {version["name"] for version in clusters["spec"]["versions"] if version["served"]}
    return next(version for version in resources.CLUSTER_API_VERSIONS if version in served)


def manager() -> Manager:
    """The core to run, with its manifests and options."""
    gates = ",".join(filter(None, ["ClusterTopology=true", os.environ.get(GATES_VARIABLE)]))
    return Manager(
        "core",
        NAMESPACE,
        binary(program()),
        of_config(cluster_api_manifests(program=program())),
        lambda ports: [*usual_options(ports), f"--feature-gates={gates}"],
        prefix="capi-",
        labels=LABELS,
    )


async def start(folder: Path, server: ApiServer, *, older_versions: bool = True) -> Process:
    """Install and start the core for a management API server; returns once it admits and converts Clusters.

    Raises ProcessError, or ApiError if the API server rejects its manifests.
    """
    async with server.client() as client:

        async def probe(_health: int) -> bool:
            return await admits(client, older_versions=older_versions)

        return await managers.start(folder, server, manager(), probe, older_versions=older_versions)


async def admits(client: ApiClient, *, older_versions: bool = True) -> bool:
    """Whether the core's webhooks admit Clusters, and convert them if an older version is served."""
    probe = OLDER_PROBE if older_versions or api_version() == "v1beta1" else PROBE
    try:
        await client.create(resources.clusters(probe["apiVersion"].rpartition("/")[2]), probe, dry_run=True)
    except (ApiError, Unreachable):
        return False
    return True
