"""The real Cluster API core, with CRDs and webhooks from its Go module."""

import os
from pathlib import Path

from caphv.api import resources
from caphv.api.object import Obj
from caphv.api.resources import HARVESTER_CLUSTERS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import RequestError
from sandbox import manifests
from sandbox.capi import manager as managers
from sandbox.capi.manager import Manager, read_config, usual_options
from sandbox.processes.apiserver import ApiServer
from sandbox.processes.binaries import CORES, binary, cluster_api_manifests
from sandbox.processes.children import Process
from sandbox.processes.clusterapi import CLUSTER_API_CORE
from sandbox.processes.gobuild import BuildError

NAMESPACE = "capi-system"
# Tests name another build of the core here.
CORE_VARIABLE = "CAPHV_SANDBOX_CORE"
# Further feature gates of the core, as its option `--feature-gates` takes them.
GATES_VARIABLE = "CAPHV_SANDBOX_CORE_FEATURE_GATES"

# The contract of each API version, from config/crd and metadata.yaml of the module. Version 1.10
# ignores the newer contract.
LABELS = {
    "cluster.x-k8s.io/provider": "cluster-api",
    "cluster.x-k8s.io/v1beta1": "v1beta1",
    "cluster.x-k8s.io/v1beta2": "v1beta2",
    manifests.MOVE_LABEL: "",
}

# The probe refers to an object whose CRD exists in a sandbox, because the core requires it. For a
# ClusterClass, the core's webhooks would wait for 2 s.
PROBE: Obj = {
    "apiVersion": "cluster.x-k8s.io/v1beta2",
    "kind": "Cluster",
    "metadata": {"name": "probe", "namespace": "default"},
    "spec": {
        "infrastructureRef": {
            "apiGroup": HARVESTER_CLUSTERS.group,
            "kind": HARVESTER_CLUSTERS.kind,
            "name": "probe",
        }
    },
}

# A probe in the older version checks conversion as well as admission.
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
    """Return the name of the core to run.

    All tests use the same core, unless the environment names another one of `binaries`. Raises
    `BuildError` if there is none of this name.
    """
    name = os.environ.get(CORE_VARIABLE) or CLUSTER_API_CORE.name
    if name not in CORES:
        raise BuildError(f"{CORE_VARIABLE}={name}: must be one of {', '.join(CORES)}")
    return name


def api_version() -> str:
    """Return the newest version of its API that the core to run serves."""
    crds = cluster_api_manifests(program=program()) / "crd" / "bases"
    (clusters,) = manifests.read([crds / f"{resources.CLUSTER_API_GROUP}_clusters.yaml"])
    versions = {version["name"] for version in clusters["spec"]["versions"] if version["served"]}
    return next(version for version in resources.CLUSTER_API_VERSIONS if version in versions)


def feature_gates() -> str:
    """Return the option with the feature gates of the core, and of providers with its libraries."""
    gates = filter(None, ["ClusterTopology=true", os.environ.get(GATES_VARIABLE)])
    return f"--feature-gates={','.join(gates)}"


def manager() -> Manager:
    """Return the core to run, with its manifests and options."""
    return Manager(
        name="core",
        namespace=NAMESPACE,
        program=binary(program()),
        objects=read_config(cluster_api_manifests(program=program())),
        options=lambda ports: [*usual_options(ports), feature_gates()],
        prefix="capi-",
        labels=LABELS,
    )


async def start(folder: Path, server: ApiServer, *, older_versions: bool = True) -> Process:
    """Install and start the core for a management API server.

    Returns once the core admits and converts Clusters.

    Raises `ProcessError`, or `ApiError` if the API server rejects its manifests.
    """
    async with server.client() as client:

        async def probe(_health: int) -> bool:
            return await admits(client, older_versions=older_versions)

        return await managers.start(folder, server, manager(), probe, older_versions=older_versions)


async def admits(client: ApiClient, *, older_versions: bool) -> bool:
    """Return whether the core's webhooks admit Clusters, and convert older versions of them."""
    probe = OLDER_PROBE if older_versions or api_version() == "v1beta1" else PROBE
    version = probe["apiVersion"].rpartition("/")[2]
    try:
        await client.create(resources.clusters(version), probe, dry_run=True)
    except RequestError:
        return False
    return True
