"""Which objects a backup reads."""

from __future__ import annotations

import copy
from typing import cast

import pytest

from caphv.api.object import Key, Obj
from caphv.runtime.client import ApiClient
from operations.backup.reading import kinds_to_copy, read_backup
from operations.read.management import NoClusterApiError
from operations.status.query import Query
from tests.support.backup import made, whole_cluster
from tests.support.clusterclasses import objects as class_objects
from tests.support.memoryserver import MemoryServer

pytestmark = pytest.mark.unit

CORE = "cluster.x-k8s.io/v1beta2"


def topology_cluster() -> Obj:
    """A Cluster of which Cluster API has made nothing yet, whose class names its identity by a default."""
    topology = {
        "classRef": {"name": "harvester-rke2"},
        "version": "v1.36.2+rke2r1",
        "controlPlane": {"replicas": 1},
        "variables": [
            {"name": name, "value": value}
            for name, value in {
                "targetNamespace": "vms",
                "image": "default/sles-15",
                "sshKeyPair": "default/key",
                "vmNetworks": ["default/production"],
            }.items()
        ],
    }
    return {
        "apiVersion": CORE,
        "kind": "Cluster",
        "metadata": {"name": "shop", "namespace": "team"},
        "spec": {"topology": topology},
    }


async def test_a_server_without_cluster_api_has_nothing_to_save() -> None:
    with pytest.raises(NoClusterApiError, match="is it the management cluster"):
        await kinds_to_copy(cast("ApiClient", MemoryServer()))


async def test_clusters_that_rancher_provisions_are_read_only_if_named() -> None:
    """The others of a namespace can then be restored."""
    objs = whole_cluster()
    reference = {"apiGroup": "rke.cattle.io", "kind": "RKEControlPlane", "name": "other"}
    spec = {"controlPlaneRef": reference}
    objs.append(made(CORE, "Cluster", "other", spec=spec))
    client = cast("ApiClient", MemoryServer(*objs))
    backup = await read_backup(client, Query("team"))
    assert (backup.clusters, backup.left_out) == (("team/shop",), ("team/other",))
    assert "other" not in {identity.name for identity in backup.objects}

    backup = await read_backup(client, Query("team", frozenset({Key("team", "other")})))
    assert (backup.clusters, backup.left_out) == (("team/other",), ())


async def test_an_identity_that_only_a_class_names_is_saved_before_it_is_used() -> None:
    objs = [topology_cluster(), *copy.deepcopy(class_objects("harvester-rke2"))]
    for name in ("hv-identity-secret", "other"):
        objs.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"kubeconfig": "eA=="}})
    for obj in objs:
        obj["metadata"]["namespace"] = "team"

    backup = await read_backup(cast("ApiClient", MemoryServer(*objs)), Query("team"))

    assert [identity.name for identity in backup.objects if identity.kind == "Secret"] == ["hv-identity-secret"]
