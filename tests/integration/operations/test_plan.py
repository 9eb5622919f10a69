"""Plans on a real API server: what it would make of manifests, and what follows for machines. Nothing is changed."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from caphv.api.object import NAMESPACES, Obj, annotations_of
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.clusterclasses import objects as class_objects
from tests.support.overview import Management
from tests.support.overviewcrds import definitions

pytestmark = pytest.mark.integration

KINDS = [
    ("cluster.x-k8s.io", "v1beta2", "Cluster", "clusters"),
    ("cluster.x-k8s.io", "v1beta2", "ClusterClass", "clusterclasses"),
    ("cluster.x-k8s.io", "v1beta2", "Machine", "machines"),
    ("cluster.x-k8s.io", "v1beta2", "MachineDeployment", "machinedeployments"),
    ("bootstrap.cluster.x-k8s.io", "v1beta2", "RKE2ConfigTemplate", "rke2configtemplates"),
    ("controlplane.cluster.x-k8s.io", "v1beta2", "RKE2ControlPlane", "rke2controlplanes"),
    ("controlplane.cluster.x-k8s.io", "v1beta2", "RKE2ControlPlaneTemplate", "rke2controlplanetemplates"),
    ("infrastructure.cluster.x-k8s.io", "v1beta1", "HarvesterCluster", "harvesterclusters"),
    ("infrastructure.cluster.x-k8s.io", "v1beta1", "HarvesterClusterTemplate", "harvesterclustertemplates"),
    ("infrastructure.cluster.x-k8s.io", "v1beta1", "HarvesterMachine", "harvestermachines"),
    ("infrastructure.cluster.x-k8s.io", "v1beta1", "HarvesterMachineTemplate", "harvestermachinetemplates"),
]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def cluster(workers: int = 2, **variables: Any) -> Obj:
    values = {
        "targetNamespace": "vms",
        "image": "default/sles-15",
        "sshKeyPair": "default/key",
        "vmNetworks": ["default/production"],
        "ipPoolRef": "machines",
        **variables,
    }
    pools = [{"class": "default-worker", "name": name, "replicas": workers} for name in ("md-0", "md-1")]
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta2",
        "kind": "Cluster",
        "metadata": {"name": "shop", "namespace": "planned"},
        "spec": {
            "topology": {
                "classRef": {"name": "harvester-rke2", "namespace": "planned"},
                "version": "v1.36.2+rke2r1",
                "controlPlane": {"replicas": 1},
                "workers": {"machineDeployments": pools},
                "variables": [{"name": name, "value": value} for name, value in values.items()],
            }
        },
    }


@pytest.fixture(scope="module")
def server(etcd_folder: Path) -> Iterator[ApiServer]:
    """A management cluster with a class, and cluster `planned/shop` of it with its machines, applied by kubectl."""
    server = ApiServer(etcd_folder, "plans", audit=True)
    asyncio.run(server.start())

    async def load() -> None:
        async with server.client() as client:
            await manifests.apply(client, definitions(KINDS))
            await client.create(NAMESPACES, {"metadata": {"name": "planned"}})
            live = cluster()
            live["metadata"]["annotations"] = {LAST_APPLIED: json.dumps(cluster())}
            label = {"cluster.x-k8s.io/cluster-name": "shop"}
            made = [live, *copy.deepcopy(class_objects("harvester-rke2"))]
            for name in ("md-0", "md-1"):
                labels = {**label, "topology.cluster.x-k8s.io/deployment-name": name}
                spec = {"clusterName": "shop", "replicas": 2}
                metadata = {"name": f"shop-{name}-x7k2p", "labels": labels}
                status = {"replicas": 2, "upToDateReplicas": 2, "availableReplicas": 2}
                made.append({**_core("MachineDeployment"), "metadata": metadata, "spec": spec, "status": status})
                for number in range(2):
                    of = {**label, "cluster.x-k8s.io/deployment-name": f"shop-{name}-x7k2p"}
                    metadata = {"name": f"shop-{name}-{number}", "labels": of}
                    made.append({**_core("Machine"), "metadata": metadata, "spec": {"clusterName": "shop"}})
            metadata = {"name": "shop-cp-0", "labels": {**label, "cluster.x-k8s.io/control-plane": ""}}
            made.append({**_core("Machine"), "metadata": metadata, "spec": {"clusterName": "shop"}})
            for obj in made:
                obj["metadata"].setdefault("namespace", "planned")
            await manifests.apply(client, made)

    asyncio.run(load())
    yield server
    asyncio.run(server.stop())


def _core(kind: str) -> Obj:
    return {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind}


def plan(server: ApiServer, folder: Path, *objs: Obj, arguments: tuple[str, ...] = ()) -> Result:
    file = folder / "manifests.yaml"
    file.write_text(yaml.safe_dump_all(objs))
    return Management(server, folder).caphv("plan", "-f", str(file), *arguments)


def predicted(result: Result) -> dict[str, tuple[int, int, int]]:
    (found,) = json.loads(result.stdout)["items"]
    return {
        each["pool"]: (max(0, each["after"] - each["before"]), each["replaced"], max(0, each["before"] - each["after"]))
        for each in found["pools"]
    }


JSON = ("-o", "json", "--no-harvester")


def test_what_is_applied_already_changes_nothing(server: ApiServer, tmp_path: Path) -> None:
    result = plan(server, tmp_path, cluster())
    assert (result.exit_code, result.stdout) == (0, "Nothing to do: everything is up to date\n"), result.output


def test_changes_of_a_topology_are_followed_to_machines(server: ApiServer, tmp_path: Path) -> None:
    larger = plan(server, tmp_path, cluster(memorySize="8Gi"), arguments=JSON)
    assert larger.exit_code == 3, larger.output
    assert predicted(larger) == {"md-0": (0, 2, 0), "md-1": (0, 2, 0), "control plane": (0, 1, 0)}
    more = cluster(workers=3)
    del more["spec"]["topology"]["workers"]["machineDeployments"][1]
    assert predicted(plan(server, tmp_path, more, arguments=JSON)) == {"md-0": (1, 0, 0), "md-1": (0, 0, 2)}
    text = plan(server, tmp_path, cluster(memorySize="8Gi"), arguments=("--no-harvester",)).stdout
    assert "± worker pool md-0: 2 machines are replaced, 1 more at a time" in text
    assert "machine.memory: 4Gi → 8Gi" in text
    assert "Harvester: 5 VMs are created, 5 are deleted" in text


def test_a_class_that_changes_concerns_its_clusters(server: ApiServer, tmp_path: Path) -> None:
    changed = copy.deepcopy(class_objects("harvester-rke2")[0])
    changed["metadata"]["namespace"] = "planned"
    variable = next(each for each in changed["spec"]["variables"] if each["name"] == "memorySize")
    variable["schema"]["openAPIV3Schema"]["default"] = "16Gi"
    assert predicted(plan(server, tmp_path, changed, arguments=JSON))["control plane"] == (0, 1, 0)


def test_a_new_cluster_is_created_with_all_its_machines(server: ApiServer, tmp_path: Path) -> None:
    new = cluster()
    new["metadata"]["name"] = "new"
    result = plan(server, tmp_path, new, arguments=JSON)
    assert predicted(result) == {"control plane": (1, 0, 0), "md-0": (2, 0, 0), "md-1": (2, 0, 0)}
    (made,) = json.loads(result.stdout)["objects"]
    assert (made["object"], made["action"]) == ("Cluster planned/new", "create")


def test_what_the_api_server_refuses_is_named(server: ApiServer, tmp_path: Path) -> None:
    unknown = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Nothing", "metadata": {"name": "x"}}
    lost = {**cluster(), "metadata": {"name": "lost", "namespace": "absent"}}
    result = plan(server, tmp_path, unknown, lost)
    assert result.exit_code == 1
    assert "Nothing planned/x" in result.output or "Nothing default/x" in result.output
    assert "is not served as cluster.x-k8s.io/v1beta2: install its provider" in result.output
    assert 'namespaces "absent" not found: create it first, or add it to the manifests' in result.output
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "a.yaml").write_text("kind: [")
    (broken / "b.yaml").write_text("kind: Cluster\n")
    both = Management(server, tmp_path).caphv("plan", "-f", str(broken))
    assert (both.exit_code, both.output.count("b.yaml"), both.output.count("a.yaml")) == (2, 1, 1)


def test_plans_change_nothing(server: ApiServer, tmp_path: Path) -> None:
    async def read() -> dict[str, str]:
        async with server.client() as client:
            listed = await client.request("GET", "/apis/cluster.x-k8s.io/v1beta2/clusters")
            return {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in listed["items"]}

    before = asyncio.run(read())
    plan(server, tmp_path, cluster(memorySize="8Gi"), {**cluster(), "metadata": {"name": "n", "namespace": "planned"}})
    assert asyncio.run(read()) == before
    live = Management(server, tmp_path).caphv("plan", "planned/shop", "--no-harvester")
    assert live.exit_code in (0, 3), live.output
    assert annotations_of(cluster()) == {}
