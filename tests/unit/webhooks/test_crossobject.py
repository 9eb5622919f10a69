"""What several objects have to do with each other: each check with a wrong case, and a right one next to it."""

import copy
import json
from pathlib import Path

import pytest
import yaml

from caphv.api.identities import allows
from caphv.api.object import Obj
from webhooks.crossobject import CROSS_OBJECT_RULES, check, check_together

pytestmark = pytest.mark.unit


# One cluster with all that belongs to it. Each case changes it.
OBJECTS = """\
cluster:
  apiVersion: cluster.x-k8s.io/v1beta2
  kind: Cluster
  metadata: {name: demo, namespace: clusters}
  spec:
    clusterNetwork: {pods: {cidrBlocks: [10.42.0.0/16]}, services: {cidrBlocks: [10.43.0.0/16]}}
    infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: HarvesterCluster, name: demo}
    controlPlaneRef: {apiGroup: controlplane.cluster.x-k8s.io, kind: RKE2ControlPlane, name: demo}
infrastructure:
  apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
  kind: HarvesterCluster
  metadata: {name: demo, namespace: clusters}
  spec:
    targetNamespace: demo
    identitySecret: {name: identity, namespace: clusters}
    loadBalancerConfig:
      ipamType: pool
      ipPool:
        {subnet: 172.17.1.0/24, gateway: 172.17.1.1, rangeStart: 172.17.1.50, rangeEnd: 172.17.1.60, vmNetwork: net}
    vmNetworkConfig: {ipPoolRefs: [vm-pool], gateway: 172.17.1.1, subnetMask: 255.255.255.0}
secret:
  apiVersion: v1
  kind: Secret
  metadata: {name: identity, namespace: clusters}
  data: {kubeconfig: eA==}
control_plane:
  apiVersion: controlplane.cluster.x-k8s.io/v1beta1
  kind: RKE2ControlPlane
  metadata: {name: demo, namespace: clusters}
  spec:
    replicas: 3
    infrastructureRef:
      apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
      kind: HarvesterMachineTemplate
      name: template
workers:
  apiVersion: cluster.x-k8s.io/v1beta2
  kind: MachineDeployment
  metadata: {name: workers, namespace: clusters}
  spec:
    clusterName: demo
    replicas: 3
    template:
      spec:
        failureDomain: zone-a
        infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: HarvesterMachineTemplate, name: template}
others:
  apiVersion: cluster.x-k8s.io/v1beta2
  kind: MachineDeployment
  metadata: {name: others, namespace: clusters}
  spec:
    clusterName: demo
    replicas: 3
    template:
      spec:
        failureDomain: zone-b
        infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: HarvesterMachineTemplate, name: template}
template:
  apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
  kind: HarvesterMachineTemplate
  metadata: {name: template, namespace: clusters}
  spec: {template: {spec: {volumes: [{volumeType: storageClass, storageClass: fast}]}}}
machine:
  apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
  kind: HarvesterMachine
  metadata: {name: one, namespace: clusters, labels: {cluster.x-k8s.io/cluster-name: demo}}
  spec: {networks: [net], networkConfig: {address: 172.17.1.10, gateway: 172.17.1.1}}
pool:
  apiVersion: loadbalancer.harvesterhci.io/v1beta1
  kind: IPPool
  metadata: {name: vm-pool}
  spec:
    selector: {network: demo/net}
    ranges: [{subnet: 172.17.1.0/24, rangeStart: 172.17.1.100, rangeEnd: 172.17.1.120}]
storage:
  apiVersion: storage.k8s.io/v1
  kind: StorageClass
  metadata: {name: fast}
  provisioner: driver.longhorn.io
  parameters: {migratable: "true"}
class:
  apiVersion: cluster.x-k8s.io/v1beta2
  kind: ClusterClass
  metadata: {name: class, namespace: clusters}
  spec:
    controlPlane:
      machineInfrastructure:
        templateRef:
          apiVersion: infrastructure.cluster.x-k8s.io/v1beta1
          kind: HarvesterMachineTemplate
          name: template
    workers: {machineDeployments: [{class: default-worker}]}
    variables:
      - {name: cpu, required: true, schema: {openAPIV3Schema: {type: integer}}}
      - name: disk
        required: true
        schema:
          openAPIV3Schema:
            type: object
            default: {size: 40Gi}
            required: [size, class]
            properties: {size: {type: string}, class: {type: string, default: fast}}
topology:
  apiVersion: cluster.x-k8s.io/v1beta2
  kind: Cluster
  metadata: {name: made, namespace: clusters}
  spec:
    topology:
      classRef: {name: class}
      controlPlane: {replicas: 3}
      workers: {machineDeployments: [{class: default-worker, name: a}]}
      variables: [{name: cpu, value: 4}, {name: disk, value: {size: 40Gi}}]
"""

REF = "infrastructureRef"
TEMPLATE = "spec.template.spec"
# Name of the check, which object is changed where (values by path, None removes), and where it is reported.
WRONG: list[tuple[str, str, Obj, str]] = [
    ("metadata", "template", {"metadata.name": None}, "metadata.name"),
    ("metadata", "template", {"metadata.name": "Upper"}, "metadata.name"),
    ("metadata", "cluster", {"metadata.namespace": "a.b"}, "metadata.namespace"),
    ("metadata", "machine", {"metadata.labels": {"a": 1}}, "metadata.labels.a"),
    ("metadata", "machine", {"metadata.labels": {"a": "b c"}}, "metadata.labels.a"),
    ("metadata", "machine", {"metadata.annotations": ["a"]}, "metadata.annotations"),
    ("api-group", "machine", {"apiVersion": "infrastructure.cluster.x-k8s.oi/v1beta1"}, "apiVersion"),
    ("defined-twice", "others", {"metadata.name": "workers"}, "metadata.name"),
    (
        "cluster-endpoint",
        "cluster",
        {"spec.controlPlaneEndpoint": {"host": "1.2.3.400"}},
        "spec.controlPlaneEndpoint.host",
    ),
    ("cluster-endpoint", "cluster", {"spec.controlPlaneEndpoint": {"port": 70000}}, "spec.controlPlaneEndpoint.port"),
    (
        "cluster-endpoint-given",
        "cluster",
        {"spec.controlPlaneEndpoint": {"port": 443}},
        "spec.controlPlaneEndpoint.port",
    ),
    (
        "park-schedule",
        "cluster",
        {"metadata.annotations": {"caphv.io/park-schedule": "Mon-Fri 8pm-6am"}},
        "metadata.annotations[caphv.io/park-schedule]",
    ),
    (
        "park-schedule",
        "cluster",
        {"metadata.annotations": {"caphv.io/park-schedule": "Sat-Sun Europe/Brelin"}},
        "metadata.annotations[caphv.io/park-schedule]",
    ),
    ("reference-kind", "cluster", {f"spec.{REF}.kind": "HarvesterMachine"}, f"spec.{REF}.kind"),
    ("reference-kind", "workers", {f"{TEMPLATE}.{REF}.kind": "HarvesterMachine"}, f"{TEMPLATE}.{REF}.kind"),
    ("reference-kind", "workers", {"kind": "MachinePool"}, f"{TEMPLATE}.{REF}.kind"),
    ("reference-api", "cluster", {f"spec.{REF}.apiVersion": "x/v1"}, f"spec.{REF}.apiVersion"),
    ("reference-api", "control_plane", {f"spec.{REF}.apiVersion": None}, f"spec.{REF}.apiVersion"),
    (
        "reference-api",
        "control_plane",
        {f"spec.{REF}.apiVersion": "infrastructure.cluster.x-k8s.io/v1"},
        f"spec.{REF}.apiVersion",
    ),
    ("reference-namespace", "control_plane", {f"spec.{REF}.namespace": "default"}, f"spec.{REF}.namespace"),
    ("reference-absent", "cluster", {f"spec.{REF}.name": "demmo"}, f"spec.{REF}.name"),
    ("identity-absent", "secret", {"metadata.name": "identit"}, "spec.identitySecret.name"),
    ("identity-key", "secret", {"data": {"config": "eA=="}}, "spec.identitySecret.name"),
    (
        "pool-name",
        "infrastructure",
        {"spec.vmNetworkConfig.ipPoolRefs": ["vm-pol"]},
        "spec.vmNetworkConfig.ipPoolRefs[0]",
    ),
    (
        "cluster-network",
        "cluster",
        {"spec.clusterNetwork.pods.cidrBlocks": ["10.42.0.0/33"]},
        "spec.clusterNetwork.pods.cidrBlocks[0]",
    ),
    (
        "cluster-network",
        "cluster",
        {"spec.clusterNetwork.pods.cidrBlocks": ["10.42.0.0/15"]},
        "spec.clusterNetwork.services.cidrBlocks[0]",
    ),
    (
        "cluster-network-overlap",
        "cluster",
        {"spec.clusterNetwork.pods.cidrBlocks": ["172.17.0.0/16"]},
        "spec.clusterNetwork.pods.cidrBlocks[0]",
    ),
    (
        "cluster-network-overlap",
        "template",
        {f"{TEMPLATE}.vmNetworkConfig": {"gateway": "10.42.1.1", "subnetMask": "255.255.255.0"}},
        "spec.clusterNetwork.pods.cidrBlocks[0]",
    ),
    (
        "pool-overlap",
        "pool",
        {"spec.ranges": [{"subnet": "172.17.1.0/24", "rangeStart": "172.17.1.60"}]},
        "spec.ranges[0]",
    ),
    (
        "pool-subnet",
        "infrastructure",
        {"spec.vmNetworkConfig.subnetMask": "255.255.0.0"},
        "spec.vmNetworkConfig.subnetMask",
    ),
    (
        "pool-subnet",
        "template",
        {f"{TEMPLATE}.vmNetworkConfig": {"ipPoolRef": "vm-pool", "gateway": "172.18.0.1"}},
        f"{TEMPLATE}.vmNetworkConfig.gateway",
    ),
    (
        "static-address-in-pool",
        "machine",
        {"spec.networkConfig.address": "172.17.1.50"},
        "spec.networkConfig.address",
    ),
    (
        "static-address-network",
        "machine",
        {"spec.networkConfig.gateway": "172.17.2.1"},
        "spec.networkConfig.gateway",
    ),
    (
        "static-address-network",
        "template",
        {f"{TEMPLATE}.networkConfig": {"address": "172.17.1.11", "gateway": "172.17.2.1"}},
        f"{TEMPLATE}.networkConfig.gateway",
    ),
    (
        "static-address-template",
        "template",
        {f"{TEMPLATE}.networkConfig": {"address": "172.17.1.11"}},
        f"{TEMPLATE}.networkConfig.address",
    ),
    ("control-plane-count", "control_plane", {"spec.replicas": 2}, "spec.replicas"),
    (
        "control-plane-count",
        "topology",
        {"spec.topology.controlPlane.replicas": 4},
        "spec.topology.controlPlane.replicas",
    ),
    (
        "rke2-bootstrap-unusable",
        "control_plane",
        {"spec.privateRegistriesConfig": {"configs": {"r": {"tls": {"insecureSkipVerify": True}}}}},
        "spec.privateRegistriesConfig.configs.r.tls.tlsConfigSecret",
    ),
    (
        "rke2-bootstrap-unusable",
        "control_plane",
        {"spec.version": "v1.36.2+rke2r1", "spec.agentConfig": {"cisProfile": "cis-1.6"}},
        "spec.agentConfig.cisProfile",
    ),
    (
        "rke2-registries-lost",
        "control_plane",
        {"spec.privateRegistriesConfig": {"configs": {"r": {}, "s": {}}}},
        "spec.privateRegistriesConfig.configs",
    ),
    (
        "rke2-etcd-store-unverified",
        "control_plane",
        {"spec.serverConfig": {"etcd": {"backupConfig": {"s3": {"endpoint": "s3.example.com"}}}}},
        "spec.serverConfig.etcd.backupConfig.s3.enforceSslVerify",
    ),
    ("one-zone", "template", {f"{TEMPLATE}.failureDomain": "zone-a"}, f"{TEMPLATE}.failureDomain"),
    ("one-zone", "others", {f"{TEMPLATE}.failureDomain": "zone-a"}, f"{TEMPLATE}.failureDomain"),
    ("storage-class-migration", "storage", {"parameters": {}}, f"{TEMPLATE}.volumes[0].storageClass"),
    ("storage-class-absent", "storage", {"metadata.name": "fasts"}, f"{TEMPLATE}.volumes[0].storageClass"),
    (
        "topology-class",
        "topology",
        {"spec.topology.workers.machineDeployments": [{"class": "worker"}]},
        "spec.topology.workers.machineDeployments[0].class",
    ),
    ("topology-variable", "topology", {"spec.topology.variables": []}, "spec.topology.variables"),
    (
        "topology-objects",
        "topology",
        {
            "spec.topology.classRef.name": "harvester-k3s",
            "spec.topology.variables": [
                {"name": "vmNetworks", "value": ["default/net"]},
                {"name": "sshKeyPair", "value": "default/admin"},
                {"name": "image", "value": "default/image"},
                {"name": "cpuCount", "value": 4000},
            ],
        },
        "spec.topology.variables[3].value",
    ),
    *[
        ("topology-variable", "topology", {"spec.topology.variables": [{"name": "cpu", "value": 4}, variable]}, where)
        for variable, where in [
            ({"name": "cpuu", "value": 4}, "spec.topology.variables[1].name"),
            ({"name": "cpu", "value": "four"}, "spec.topology.variables[1].value"),
            ({"name": "disk", "value": {"class": "a"}}, "spec.topology.variables[1].value.size"),
            ({"name": "disk", "value": {"size": "1", "sise": "1"}}, "spec.topology.variables[1].value.sise"),
        ]
    ],
]


def changed(obj: Obj, changes: Obj) -> None:
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = obj
        for part in parents:
            place = place.setdefault(part, {})
        if value is None:
            del place[last]
        else:
            place[last] = value


def findings(objects: dict[str, Obj]) -> set[tuple[str, str]]:
    return {(located.finding.rule, located.finding.field) for located in check_together(list(objects.values()))}


@pytest.fixture
def objects() -> dict[str, Obj]:
    # Through JSON, so that objects share no part with each other.
    return json.loads(json.dumps(yaml.safe_load(OBJECTS)))


def second_cluster(objects: dict[str, Obj]) -> dict[str, Obj]:
    """The same cluster again, in another namespace."""
    more = {name: copy.deepcopy(objects[name]) for name in ("cluster", "infrastructure", "machine")}
    for obj in more.values():
        obj["metadata"]["namespace"] = "other"
    return more


def test_nothing_is_wrong_to_begin_with(objects: dict[str, Obj]) -> None:
    assert findings(objects) == set()


@pytest.mark.parametrize(("rule", "name", "changes", "field"), WRONG)
def test_wrong_is_reported(objects: dict[str, Obj], rule: str, name: str, changes: Obj, field: str) -> None:
    changed(objects[name], changes)
    found = findings(objects)
    assert any(one == rule and where.startswith(field) for one, where in found), found


def test_every_check_is_tested() -> None:
    others = {"machine-name-taken", "cluster-name-taken", "static-address-duplicate", "identity-namespace"}
    others |= {"identity-account", "interface-route-dhcp"}
    assert {check.name for check in CROSS_OBJECT_RULES} == {row[0] for row in WRONG} | others


@pytest.mark.parametrize(
    ("name", "allowed", "problem"),
    [
        ("shared", {"list": ["clusters"]}, ""),
        ("shared", {"list": ["*"]}, ""),
        ("shared", {"selector": {"matchLabels": {"a": "b"}}}, ""),
        ("shared", {"list": ["others"]}, "does not allow namespace clusters: add it to allowedNamespaces.list of"),
        ("shared", {}, "does not allow namespace clusters"),
        ("sharde", {"list": ["clusters"]}, "did you mean"),
        ("elsewhere", {"list": ["clusters"]}, ""),
    ],
)
def test_a_shared_identity_allows_the_namespace(objects: dict[str, Obj], name: str, allowed: Obj, problem: str) -> None:
    objects["infrastructure"]["spec"]["identityRef"] = {"name": name}
    del objects["infrastructure"]["spec"]["identitySecret"]
    head = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "HarvesterClusterIdentity"}
    spec = {"secretRef": {"name": "shared", "namespace": "caphv-system"}, "allowedNamespaces": allowed}
    shared = {**head, "metadata": {"name": "shared"}, "spec": spec}
    found = [located.finding for located in check_together([*objects.values(), shared])]
    assert [finding.rule for finding in found] == (["identity-namespace"] if problem else [])
    assert all(finding.field == "spec.identityRef.name" and problem in finding.detail for finding in found)


def test_the_example_of_a_shared_identity_is_right(checkout: Path) -> None:
    text = (checkout / "examples" / "identities" / "shared.yaml").read_text()
    example, renewed = yaml.safe_load_all(text)
    assert check(example) == check(renewed) == []
    assert allows(example, "team-a", None)
    assert allows(example, "team-b", {"harvester": "shared"})
    assert not allows(example, "team-b", {})


def test_the_account_of_renewed_tokens_is_in_no_target_namespace(checkout: Path) -> None:
    path = checkout / "examples" / "identities" / "shared.yaml"
    shared, renewed = yaml.safe_load_all(path.read_text())
    assert [located.finding.rule for located in check_together([shared, renewed])] == []
    renewed["spec"]["tokenRenewal"]["serviceAccount"]["targetNamespaces"].append("caphv-system")
    (located,) = check_together([shared, renewed])
    assert located.finding.rule == "identity-account"
    assert located.finding.field == "spec.tokenRenewal.serviceAccount.namespace"


def test_a_shared_identity_is_checked_by_its_schema() -> None:
    head = {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "HarvesterClusterIdentity"}
    identity = {**head, "metadata": {"name": "shared"}, "spec": {"allowedNamespaces": {"names": ["team-a"]}}}
    found = {(finding.field, finding.rule) for finding in check(identity)}
    assert {("spec.secretRef", "schema-required")} < found
    assert any(field.startswith("spec.allowedNamespaces") for field, _ in found)


def test_two_clusters_in_one_target_namespace(objects: dict[str, Obj]) -> None:
    more = second_cluster(objects)
    rules = {rule for rule, _ in findings(objects | {f"second {name}": obj for name, obj in more.items()})}
    assert rules == {"machine-name-taken", "cluster-name-taken", "static-address-duplicate", "pool-overlap"}


def test_static_addresses_of_interfaces_are_unique_and_outside_of_pools(objects: dict[str, Obj]) -> None:
    machines = {}
    for name, last in (("one", 200), ("two", 200), ("three", 201)):
        machine = copy.deepcopy(objects["machine"])
        machine["metadata"]["name"] = name
        machine["spec"].pop("networkConfig", None)
        entries = [{"address": f"10.99.0.{last}/24"}, {"address": f"fd00::{last}/64"}]
        machine["spec"]["networkInterfaces"] = [{"network": machine["spec"]["networks"][0], "addresses": entries}]
        machines[name] = machine
    located = check_together([*machines.values()])
    found = {(item.finding.rule, item.finding.field) for item in located}
    assert found >= {
        ("static-address-duplicate", "spec.networkInterfaces[0].addresses[0].address"),
        ("static-address-duplicate", "spec.networkInterfaces[0].addresses[1].address"),
    }
    assert [item.finding.rule for item in located].count("static-address-duplicate") == 2


def test_routes_need_an_address_of_the_first_interface_or_of_the_cluster(objects: dict[str, Obj]) -> None:
    routes = [{"to": "10.20.0.0/16", "via": "172.17.1.254"}]
    settings: Obj = {"networks": ["net"], "networkInterfaces": [{"network": "net", "routes": routes}]}
    objects["template"]["spec"]["template"]["spec"] |= settings
    objects["machine"]["spec"] |= settings
    assert "interface-route-dhcp" not in {rule for rule, _ in findings(objects)}

    del objects["infrastructure"]["spec"]["vmNetworkConfig"]
    found = {field for rule, field in findings(objects) if rule == "interface-route-dhcp"}
    # The machine has a static address.
    assert found == {"spec.template.spec.networkInterfaces[0].routes"}
    del objects["machine"]["spec"]["networkConfig"]
    found = {field for rule, field in findings(objects) if rule == "interface-route-dhcp"}
    assert found == {"spec.template.spec.networkInterfaces[0].routes", "spec.networkInterfaces[0].routes"}


def test_two_clusters_apart(objects: dict[str, Obj]) -> None:
    more = second_cluster(objects)
    # Another namespace is another VM network `net`, too: Harvester refuses its pool nevertheless.
    more["infrastructure"]["spec"]["targetNamespace"] = "other"
    both = objects | {f"second {name}": obj for name, obj in more.items()}
    assert findings(both) == {("pool-overlap", "spec.loadBalancerConfig.ipPool.rangeStart")}
    more["infrastructure"]["spec"]["identitySecret"]["name"] = "another"
    more["secret"] = copy.deepcopy(objects["secret"])
    more["secret"]["metadata"]["name"] = "another"
    both = objects | {f"second {name}": obj for name, obj in more.items()}
    assert findings(both) == set()


def test_a_pool_that_overlaps_only_a_pool_with_an_overlap_is_reported(objects: dict[str, Obj]) -> None:
    ranges = {"first": ("50", "60"), "second": ("55", "100"), "third": ("90", "120")}
    pools = {}
    for name, (start, end) in ranges.items():
        pool = copy.deepcopy(objects["pool"])
        pool["metadata"]["name"] = name
        addresses = {"rangeStart": f"172.18.1.{start}", "rangeEnd": f"172.18.1.{end}"}
        pool["spec"]["ranges"] = [{"subnet": "172.18.1.0/24", **addresses}]
        pools[name] = pool
    located = check_together(list(pools.values()))
    assert [(finding.place, finding.other) for finding in located] == [(1, 0), (2, 1)]


def test_an_endpoint_that_differs_from_the_infrastructure_is_reported(objects: dict[str, Obj]) -> None:
    changed(objects["cluster"], {"spec.controlPlaneEndpoint": {"host": "172.17.1.51", "port": 6443}})
    assert findings(objects) == set()
    changed(objects["infrastructure"], {"spec.controlPlaneEndpoint": {"host": "172.17.1.50"}})
    assert findings(objects) == {("cluster-endpoint-given", "spec.controlPlaneEndpoint.host")}


def test_an_external_endpoint_may_have_another_port(objects: dict[str, Obj]) -> None:
    external = {
        "spec.loadBalancerConfig": {"ipamType": "none"},
        "spec.controlPlaneEndpoint": {"host": "a", "port": 443},
    }
    changed(objects["infrastructure"], external)
    changed(objects["cluster"], {"spec.controlPlaneEndpoint": {"host": "a", "port": 443}})
    assert findings(objects) == set()
    changed(objects["cluster"], {"spec.controlPlaneEndpoint": {"host": "a", "port": 6443}})
    assert findings(objects) == {("cluster-endpoint-given", "spec.controlPlaneEndpoint.port")}


@pytest.mark.parametrize("verified", [True, False])
def test_a_store_whose_verification_is_decided_is_no_finding(objects: dict[str, Obj], verified: bool) -> None:
    s3 = {"endpoint": "s3.example.com", "enforceSslVerify": verified}
    objects["control_plane"]["spec"]["serverConfig"] = {"etcd": {"backupConfig": {"s3": s3}}}
    assert check_together(list(objects.values())) == []


def test_a_schedule_that_can_be_read_is_no_finding(objects: dict[str, Obj]) -> None:
    schedule = {"caphv.io/park-schedule": "Mon-Fri 20:00-06:00 Europe/Berlin; Sat-Sun"}
    changed(objects["cluster"], {"metadata.annotations": schedule})
    assert findings(objects) == set()


def test_a_name_that_is_nearly_one_is_suggested(objects: dict[str, Obj]) -> None:
    changed(objects["workers"], {f"{TEMPLATE}.{REF}.name": "tempalte"})
    (located,) = check_together(list(objects.values()))
    assert located.finding.advice
    assert 'did you mean "template"?' in located.finding.detail


def test_what_other_providers_do_is_not_checked(objects: dict[str, Obj]) -> None:
    foreign = {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "DockerCluster", "name": "x"}
    cluster = copy.deepcopy(objects["cluster"])
    cluster["spec"] |= {
        REF: foreign | {"apiGroup": "infrastructure.example.com"},
        "controlPlaneEndpoint": {"port": 443},
    }
    assert findings({"cluster": cluster}) == set()


def test_findings_name_the_other_object(objects: dict[str, Obj]) -> None:
    changed(objects["pool"], {"spec.ranges": [{"subnet": "172.17.1.0/24", "rangeStart": "172.17.1.55"}]})
    names = list(objects)
    (located,) = check_together(list(objects.values()))
    assert located.other is not None
    assert {names[located.place], names[located.other]} == {"pool", "infrastructure"}
