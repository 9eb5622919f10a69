"""The shipped ClusterClasses on the real core's topology controller: a life for a cluster of each.

The short lives share the changes of a topology: each is made to a cluster of one class at least. In the whole lives,
each class goes through all of them.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import yaml

from caphv.api.clusterapi import infrastructure_ref
from caphv.api.conditions import current_time
from caphv.api.object import NAMESPACES, NODES, SECRETS, Obj, Resource
from caphv.api.resources import HARVESTER_CLUSTERS, HARVESTER_MACHINES
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import parse_kubeconfig
from sandbox import clusterclass, manifests
from sandbox.capi.distribution import K3S, RKE2
from sandbox.capi.resources import CLUSTERS
from sandbox.cluster import CNI_FILE, KUBERNETES_VERSION, RELEASES, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.guest.cloudinit import parse_user_data
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.clusterclasses import rename
from tests.support.e2e import HEALTH_CHECKS, SHORT_AND_WHOLE, holds, seen
from tests.support.waiting import ended

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PATIENCE = 200.0
TEMPLATES = Resource(
    HARVESTER_MACHINES.group, HARVESTER_MACHINES.version, "harvestermachinetemplates", "HarvesterMachineTemplate"
)
CLASSES = Resource("cluster.x-k8s.io", "v1beta2", "clusterclasses", "ClusterClass")
MACHINE_DEPLOYMENTS = Resource("cluster.x-k8s.io", "v1beta2", "machinedeployments", "MachineDeployment")
CONFIG_TEMPLATES = Resource("bootstrap.cluster.x-k8s.io", "v1beta2", "rke2configtemplates", "RKE2ConfigTemplate")
EVERY_VARIABLE: dict[str, Any] = {
    "failureDomains": ["zone-1", "zone-3"],
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 10,
                "preference": {
                    "matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-3"]}]
                },
            }
        ]
    },
    "workloadAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 20,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"app": "database"}},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }
        ]
    },
    "fipsRequired": True,
    "loadBalancer": {"ipamType": "dhcp", "description": "API of a class", "healthCheck": {"periodSeconds": 3}},
    "cloudConfigDelivery": "Secret",
    "firmware": {"efi": True, "secureBoot": True},
    "tpm": {"enabled": True},
    "controlPlane": {"cpuCount": 4},
    "worker": {"memorySize": "6Gi"},
    "workerFiles": [{"path": "/etc/motd", "content": "a worker of a class\n"}],
    "addons": {"csi": {"enabled": True}},
}
REGISTRY = "registry.example.com:5000"
MIRRORS = {"mirrors": {"docker.io": {"endpoint": [f"https://{REGISTRY}"]}}}
SNAPSHOTS = {
    "schedule": "0 */6 * * *",
    "retention": 28,
    "s3": {
        "endpoint": "s3.example.com",
        "bucket": "etcd",
        "folder": "snapshots",
        "retention": 84,
        "credentialsSecretName": "etcd-s3",
    },
}
HARDENED = {
    "cisProfile": "cis",
    "stig": True,
    "fipsRequired": True,
    "imageRegistry": REGISTRY,
    "registries": {**MIRRORS, "configs": {REGISTRY: {"authSecret": {"name": "registry", "namespace": "default"}}}},
    "etcdSnapshots": SNAPSHOTS,
}
# The control plane object of each class.
CONTROL_PLANES = {
    clusterclass.HARVESTER_RKE2: RKE2.control_planes,
    clusterclass.HARVESTER_K3S: K3S.control_planes,
    clusterclass.HARVESTER_KUBEADM: Resource(
        RKE2.control_planes.group, "v1beta2", "kubeadmcontrolplanes", "KubeadmControlPlane"
    ),
}


def scenario_of(box: Sandbox, cluster_class: str, suffix: str = "", **changes: Any) -> Scenario:
    name = f"{cluster_class.removeprefix('harvester-')}{suffix}"
    spec = ClusterSpec(
        name=name,
        namespace=name,
        target_namespace=f"{name}-vms",
        control_planes=1,
        workers=1,
        cluster_class=cluster_class,
        version=f"v1.36.2{RELEASES[cluster_class]}",
        **changes,
    )
    # Patient: other tests may have the machine at the same time.
    return Scenario(box.folder, in_network(spec, box.status()["network"]), timeout=PATIENCE)


@SHORT_AND_WHOLE
async def test_a_cluster_of_rke2_lives_through_all_changes_of_its_topology(box: Sandbox, whole: bool) -> None:
    suffix = "-whole" if whole else ""
    scenario = scenario_of(box, clusterclass.HARVESTER_RKE2, suffix, class_namespace=f"rke2{suffix}")
    async with scenario.watching():
        await a_class_of_its_own_is_there(scenario)
        await scenario.create()
        await scenario.bring_up()
        await the_class_is_what_stands(scenario)
        await workers_of_another_class_have_their_own_size(scenario)
        if whole:
            await scenario.scale(3, 2)
            await scenario.scale(1, 1)
            await scenario.upgrade(f"{KUBERNETES_VERSION}{RELEASES[clusterclass.HARVESTER_RKE2]}")
        # Without the Secret, RKE2's provider makes no data.
        await registry_secret_is_there(scenario)
        await snapshots_secret_is_there(scenario)
        await scenario.set_variable("cpuCount", 3, **HARDENED)
        assert {machine["spec"]["cpu"] for machine in scenario.view.harvester_machines.store} == {3}
        await nodes_are_hardened(scenario)
        await the_next_version_of_the_class_is_taken(scenario)
        await scenario.delete()
        assert await scenario.leftovers() == []


@SHORT_AND_WHOLE
@pytest.mark.parametrize("cluster_class", [clusterclass.HARVESTER_K3S, clusterclass.HARVESTER_KUBEADM])
async def test_a_cluster_of_another_distribution_lives_through_all_changes_of_its_topology(
    box: Sandbox, cluster_class: str, whole: bool
) -> None:
    k3s, kubeadm = (cluster_class == name for name in (clusterclass.HARVESTER_K3S, clusterclass.HARVESTER_KUBEADM))
    # By DHCP, where those of RKE2 have their addresses from pools.
    registry = {"imageRegistry": REGISTRY, "registries": MIRRORS, "etcdSnapshots": SNAPSHOTS} if k3s else {}
    variables = EVERY_VARIABLE | registry
    suffix = "-whole" if whole else ""
    scenario = scenario_of(box, cluster_class, suffix, load_balancer="", machines=(), variables=variables)
    async with scenario.watching():
        await a_class_of_its_own_is_there(scenario)
        await snapshots_secret_is_there(scenario)
        await scenario.create()
        await scenario.bring_up()
        await the_class_is_what_stands(scenario)
        await each_variable_has_its_effect(scenario)
        if whole or k3s:
            await scenario.scale(3, 2)
            zones = {machine["spec"]["failureDomain"] for machine in scenario.view.control_planes()}
            assert zones == {"zone-1", "zone-3"}
            await scenario.scale(1, 1)
        if whole or kubeadm:
            await scenario.upgrade(f"{KUBERNETES_VERSION}{RELEASES[cluster_class]}")
        if whole or k3s:
            await scenario.set_variable("tpm", {"enabled": True, "persistent": True})
            assert all(machine["spec"]["tpm"]["persistent"] for machine in scenario.view.harvester_machines.store)
        if whole:
            await the_next_version_of_the_class_is_taken(scenario)
        await scenario.delete()
        assert await scenario.leftovers() == []


async def test_nodes_of_k3s_without_a_cni_wait_for_another_one(box: Sandbox) -> None:
    # Nodes may stay not ready for any time, and none is replaced.
    spec = scenario_of(box, clusterclass.HARVESTER_K3S, unhealthy_seconds=3600, variables={"cni": "none"}).spec
    bare = replace(spec, name="bare", namespace="bare", target_namespace="bare", class_namespace="bare")
    scenario = Scenario(box.folder, bare, timeout=PATIENCE)
    async with scenario.watching():
        await a_class_of_its_own_is_there(scenario)
        await scenario.create()
        async with workload(scenario) as client:
            node = await seen(client, "", NODES, lambda _: True)
            assert not holds(node, "Ready")
            assert await texts_of_guests(scenario, "flannel-backend: none") == 1
            # The file of a variable is there next to it.
            assert await texts_of_guests(scenario, CNI_FILE) == 1
            assert not any(holds(cluster, "Available") for cluster in scenario.view.clusters.store)
            cni = asyncio.create_task(installed_cni(client))
            await scenario.bring_up()
            await seen(scenario.management, scenario.spec.namespace, CLUSTERS, lambda obj: holds(obj, "Available"))
            await ended(cni)
        await scenario.delete()
        assert await scenario.leftovers() == []


@asynccontextmanager
async def workload(scenario: Scenario) -> AsyncIterator[ApiClient]:
    """The API server of the cluster, by the kubeconfig that its users get."""
    name = f"{scenario.spec.name}-kubeconfig"
    secret = await seen(
        scenario.management, scenario.spec.namespace, SECRETS, lambda obj: obj["metadata"]["name"] == name
    )
    client = parse_kubeconfig(base64.b64decode(secret["data"]["value"])).client(name="workload")
    try:
        yield client
    finally:
        await client.close()


async def installed_cni(client: ApiClient) -> None:
    """Have kubelets say what they say when there is a CNI."""
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
    while True:
        for node in (await client.list(NODES))["items"]:
            if not holds(node, "Ready"):
                patch = {"status": {"conditions": [{**ready, "lastTransitionTime": current_time()}]}}
                await client.patch(
                    NODES, node["metadata"]["name"], "", patch, patch_type="strategic", subresource="status"
                )
        await asyncio.sleep(0.2)


async def the_class_is_what_stands(scenario: Scenario) -> None:
    """Objects of the distribution, its listeners, and the files from variables in guests."""
    spec = scenario.spec
    (cluster,) = scenario.view.clusters.store
    kind = CONTROL_PLANES[spec.cluster_class]
    assert cluster["spec"]["controlPlaneRef"]["kind"] == kind.kind
    (control_plane,) = (await scenario.management.list(kind, spec.namespace))["items"]
    assert control_plane["spec"]["version"] == spec.version
    (infrastructure,) = scenario.view.harvester_clusters.store
    listeners = infrastructure["spec"]["loadBalancerConfig"].get("listeners", [])
    assert [entry["port"] for entry in listeners] == ([9345] if spec.cluster_class == "harvester-rke2" else [])
    assert await texts_of_guests(scenario, CNI_FILE) == 1


async def each_variable_has_its_effect(scenario: Scenario) -> None:
    (infrastructure,) = scenario.view.harvester_clusters.store
    assert infrastructure["spec"]["loadBalancerConfig"]["description"] == "API of a class"
    assert infrastructure["spec"]["loadBalancerConfig"]["healthCheck"] == {"periodSeconds": 3}
    assert infrastructure["spec"]["cloudConfig"] == {"delivery": "Secret"}
    own = {machine["metadata"]["name"]: machine["spec"] for machine in scenario.view.harvester_machines.store}
    for machines, cpu, memory in ((scenario.view.control_planes(), 4, "4Gi"), (scenario.view.workers(), 2, "6Gi")):
        (spec,) = (own[infrastructure_ref(machine)[1]] for machine in machines)
        assert (spec["cpu"], spec["memory"]) == (cpu, memory)
        assert (spec["firmware"], spec["tpm"]) == ({"efi": True, "secureBoot": True}, {"enabled": True})
        assert all(spec[name] == EVERY_VARIABLE[name] for name in ("nodeAffinity", "workloadAffinity"))
    assert await texts_of_guests(scenario, "a worker of a class") == 1
    assert await texts_of_guests(scenario, "fips_enabled") == 2
    if scenario.spec.cluster_class == clusterclass.HARVESTER_K3S:
        # Agents get it from their server.
        assert await texts_of_guests(scenario, f'system-default-registry: "{REGISTRY}"') == 1
        assert await texts_of_guests(scenario, f"https://{REGISTRY}") == 2
        (config,) = await files_of_guests(scenario, "/etc/rancher/k3s/config.yaml.d/55-etcd-snapshots.yaml")
        assert (config["etcd-s3-bucket"], config["etcd-snapshot-retention"]) == ("etcd", 28)
        assert await files_of_guests(scenario, "/etc/rancher/k3s/etcd-s3/access-key") == ["AKIA1"]
        assert await texts_of_guests(scenario, "56-etcd-s3.yaml") == 1


async def texts_of_guests(scenario: Scenario, text: str) -> int:
    """In how many Secrets with user data a text is."""
    secrets = (await scenario.harvester.list(SECRETS, scenario.spec.target_namespace))["items"]
    texts = [base64.b64decode(value).decode() for secret in secrets for value in (secret.get("data") or {}).values()]
    return sum(text in each for each in texts)


async def files_of_guests(scenario: Scenario, path: str) -> list[Any]:
    """Content of a YAML file in all guests."""
    secrets = (await scenario.harvester.list(SECRETS, scenario.spec.target_namespace))["items"]
    texts = [base64.b64decode(secret["data"]["userdata"]).decode() for secret in secrets if "data" in secret]
    files = [parse_user_data(text, "guest").files for text in texts]
    return [yaml.safe_load(each[path].content) for each in files if path in each]


async def registry_secret_is_there(scenario: Scenario) -> None:
    """Create the Secret with access to the registry, of which RKE2's provider makes a file."""
    content = {"stringData": {"username": "reader", "password": "sandbox"}}
    await manifests.apply(
        scenario.management,
        [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "registry", "namespace": "default"}, **content}],
    )


async def snapshots_secret_is_there(scenario: Scenario) -> None:
    """Create the Secret with access to the S3 store."""
    space = kinds.typed(NAMESPACES, {"metadata": {"name": scenario.spec.namespace}})
    metadata = {"name": "etcd-s3", "namespace": scenario.spec.namespace}
    content = {"stringData": {"aws_access_key_id": "AKIA1", "aws_secret_access_key": "sandbox"}}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, **content}
    await manifests.apply(scenario.management, [space, secret])


async def workers_of_another_class_have_their_own_size(scenario: Scenario) -> None:
    """The core makes the template of a group without machines: the autoscaler would read its capacity there."""
    spec = scenario.spec
    group: Obj = {"class": "large-worker", "name": "large", "replicas": 0}
    own = {
        "largeWorker": {"memorySize": "48Gi"},
        "guestConfig": {"disableFstrimTimer": True},
        **{name: EVERY_VARIABLE[name] for name in ("nodeAffinity", "workloadAffinity")},
    }
    group["failureDomain"] = "zone-2"
    group["variables"] = {"overrides": [{"name": name, "value": value} for name, value in own.items()]}
    patch = [{"op": "add", "path": "/spec/topology/workers/machineDeployments/-", "value": group}]
    await scenario.management.patch(CLUSTERS, spec.name, spec.namespace, patch, patch_type="json")
    place = (scenario.management, spec.namespace)
    template = await seen(
        *place, TEMPLATES, lambda obj: (obj.get("status") or {}).get("capacity", {}).get("memory") == "48Gi"
    )
    found = template["spec"]["template"]["spec"]
    assert found["cpu"] == 8
    assert all(found[name] == own[name] for name in ("guestConfig", "nodeAffinity", "workloadAffinity"))
    deployment = await seen(*place, MACHINE_DEPLOYMENTS, lambda obj: obj["spec"].get("replicas") == 0)
    assert deployment["spec"]["template"]["spec"]["failureDomain"] == "zone-2"
    assert template["status"]["capacity"] == {"cpu": "8", "memory": "48Gi", "ephemeral-storage": "40Gi"}
    assert template["status"]["nodeInfo"] == {"architecture": "amd64", "operatingSystem": "linux"}
    # The scenario has its own health checks for the others; this group has that of the class.
    check = await seen(
        *place, HEALTH_CHECKS, lambda obj: obj["spec"]["checks"].get("nodeStartupTimeoutSeconds") == 1200
    )
    assert check["spec"]["remediation"]["triggerIf"]["unhealthyLessThanOrEqualTo"] == 1
    assert {entry["timeoutSeconds"] for entry in check["spec"]["checks"]["unhealthyNodeConditions"]} == {300}


async def nodes_are_hardened(scenario: Scenario) -> None:
    """Servers and agents have profile, registry and commands; only servers have the files of the API server."""
    kubelet = ["cloud-provider=external", "tls-min-version=VersionTLS12", "streaming-connection-idle-timeout=5m"]
    kubelet.append("make-iptables-util-chains=true")
    common = {"cisProfile": "cis", "systemDefaultRegistry": REGISTRY, "kubelet": {"extraArgs": kubelet}}
    pod_security = "/etc/rancher/rke2/rancher-pss.yaml"
    place = (scenario.management, scenario.spec.namespace)
    (control_plane,) = (await scenario.management.list(CONTROL_PLANES["harvester-rke2"], scenario.spec.namespace))[
        "items"
    ]
    server = control_plane["spec"]
    assert server["agentConfig"] == {**common, "podSecurityAdmissionConfigFile": pod_security}
    files = [file["path"].rpartition("/")[2] for file in server["files"]]
    own = ["55-etcd-snapshots.yaml", "rancher-pss.yaml", "audit-policy.yaml", "60-stig.yaml"]
    assert files == ["rke2-calico-config.yaml", *own]
    assert "tls-min-version=VersionTLS12" in server["serverConfig"]["kubeAPIServer"]["extraArgs"]
    template = await seen(*place, CONFIG_TEMPLATES, lambda obj: "cisProfile" in the_spec(obj)["agentConfig"])
    agent = the_spec(template)
    assert agent["agentConfig"] == common
    assert "files" not in agent
    for spec in (server, agent):
        assert spec["privateRegistriesConfig"] == HARDENED["registries"]
        assert len(spec["preRKE2Commands"]) == 4
    found = await files_of_guests(scenario, "/etc/rancher/rke2/registries.yaml")
    assert found == 2 * [{**MIRRORS, "configs": {REGISTRY: {"auth": {"username": "reader", "password": "sandbox"}}}}]
    assert await texts_of_guests(scenario, "fips_enabled") == 2
    configs = await files_of_guests(scenario, "/etc/rancher/rke2/config.yaml")
    (config,) = (config for config in configs if "etcd-s3" in config)
    assert (config["etcd-s3-access-key"], config["etcd-snapshot-retention"]) == ("AKIA1", "28")
    assert "etcd-s3-skip-ssl-verify" not in config


def the_spec(template: Obj) -> Obj:
    spec: Obj = template["spec"]["template"]["spec"]
    return spec


async def a_class_of_its_own_is_there(scenario: Scenario) -> None:
    """In the namespace of the cluster, so that a test can change it."""
    spec = scenario.spec
    space = kinds.typed(NAMESPACES, {"metadata": {"name": spec.class_namespace}})
    await manifests.apply(scenario.management, [space, *clusterclass.objects(spec.class_namespace, spec.cluster_class)])


async def the_next_version_of_the_class_is_taken(scenario: Scenario) -> None:
    """As a release would bring it: another name, and templates that say more."""
    name, new_name = scenario.spec.cluster_class, f"{scenario.spec.cluster_class}-next"
    objects = rename(clusterclass.objects(scenario.spec.class_namespace, name), name, new_name)
    for obj in objects:
        if obj["kind"] == "HarvesterMachineTemplate":
            obj["spec"]["template"]["spec"]["guestConfig"] = {"disableFstrimTimer": True}
        if obj["kind"] == "HarvesterClusterTemplate":
            # As the Go provider's class has it: the topology would set it again and again.
            obj["spec"]["template"]["spec"]["controlPlaneEndpoint"] = {"host": "0.0.0.0", "port": 6443}
    await manifests.apply(scenario.management, objects)
    await scenario.rebase(new_name)
    machines = list(scenario.view.harvester_machines.store)
    assert all(machine["spec"]["guestConfig"] == {"disableFstrimTimer": True} for machine in machines)
    (infrastructure,) = (await scenario.management.list(HARVESTER_CLUSTERS, scenario.spec.namespace))["items"]
    assert f"https://{infrastructure['spec']['controlPlaneEndpoint']['host']}" in scenario.view.endpoint()
