"""Workload clusters that get a kubeconfig for cloud provider and CSI driver."""

from __future__ import annotations

import contextlib
from typing import Any

from caphv.api.object import CONFIG_MAPS, SECRETS, Obj, Resource
from caphv.runtime.errors import NotFound
from tests.support.reconciler.case import Case
from tests.support.waiting import until

ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")


BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)


SECRET, KEY = "harvester-cloud-config", "cloud-config"


DAEMON = "apiVersion: apps/v1\nkind: DaemonSet # of the cloud provider\nmetadata: {name: ccm, namespace: kube-system}\n"


async def connect(case: Case) -> None:
    """Connect the workload cluster, without what another test may have left there."""
    with contextlib.suppress(NotFound):
        await case.workload.delete(SECRETS, SECRET, "kube-system")
    await case.connect_workload()


async def config_map(case: Case, text: str = DAEMON) -> Obj:
    """Create the ConfigMap with the manifests; answers the field of the HarvesterCluster that names it."""
    metadata = {"name": "manifests", "namespace": case.name}
    await case.management.create(CONFIG_MAPS, {"metadata": metadata, "data": {"ccm.yaml": text}})
    return update_field(case)


def update_field(case: Case) -> Obj:
    return {
        "manifestsConfigMapNamespace": case.name,
        "manifestsConfigMapName": "manifests",
        "manifestsConfigMapKey": "ccm.yaml",
        "cloudConfigCredentialsSecretName": "cloud-config",
        "cloudConfigCredentialsSecretKey": "config",
    }


async def manifests(case: Case) -> str:
    return (await case.management.get(CONFIG_MAPS, "manifests", case.name))["data"]["ccm.yaml"]


async def workload_secret(case: Case) -> Obj:
    return await case.workload.get(SECRETS, SECRET, "kube-system")


async def until_workload_secret(case: Case, condition: Any) -> Obj:
    found: Obj = {}

    async def fulfilled() -> bool:
        nonlocal found
        with contextlib.suppress(NotFound):
            found = await workload_secret(case)
            return bool(condition(found))
        return False

    await until(fulfilled, lambda: f"Secret {SECRET} of the workload cluster is not as expected")
    return found
