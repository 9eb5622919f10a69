"""Every field we write exists in the real CRDs, which would drop it silently otherwise."""

import json

import pytest
import yaml

from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner
from reconciler.cluster.loadbalancer import load_balancer_spec
from reconciler.cluster.pools import pool_object
from reconciler.harvester.addressplan import AddressRequest, plan_allocations, plan_releases
from reconciler.machine.images import ResolvedImage
from reconciler.machine.vm import VirtualMachineInputs, virtual_machine
from tests.support.foreign_crds import violations
from tests.support.paths import SHARED_CRDS as CRDS

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not CRDS.is_dir(), reason="the CRDs of others are not available"),
]


def schema(file: str, version: str) -> Obj:
    crd = yaml.load((CRDS / file).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    found: Obj = next(v for v in crd["spec"]["versions"] if v["name"] == version)["schema"]["openAPIV3Schema"]
    return found


@pytest.fixture
def machine() -> Obj:
    term = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}
    pod_term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "db"}}}
    return virtual_machine(
        VirtualMachineInputs(
            machine={
                "metadata": {"namespace": "ns", "name": "m", "uid": "u"},
                "spec": {
                    "cpu": 2,
                    "memory": "4Gi",
                    "sshKeyPair": "default/key",
                    "networks": ["default/a", "b"],
                    "volumes": [
                        {"volumeType": "image", "imageName": "i", "volumeSize": "40Gi", "bootOrder": 1},
                        {"volumeType": "storageClass", "storageClass": "longhorn", "volumeSize": 1024},
                    ],
                    "firmware": {"efi": True, "secureBoot": True},
                    "tpm": {"enabled": True, "persistent": True},
                    "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}},
                    "workloadAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [pod_term]},
                },
            },
            cluster=Key("ns", "c"),
            target_namespace="target",
            owner=Owner("HarvesterMachine", "ns", "m", "u", "mgmt"),
            images={"i": ResolvedImage("default", "i", "lh-i")},
            failure_domain="z",
        )
    )


def test_the_check_itself_finds_what_is_wrong(machine: Obj) -> None:
    machine["spec"]["template"]["spec"]["domain"]["cpu"] = {"cores": "2", "chores": 1}
    found = violations(machine, schema("kubevirt.io_virtualmachines.yaml", "v1"))
    assert len(found) == 2


def test_virtual_machine(machine: Obj) -> None:
    assert violations(machine, schema("kubevirt.io_virtualmachines.yaml", "v1")) == []


def test_claims(machine: Obj) -> None:
    # KubeVirt's templates of data volumes contain the specification of a claim.
    spec = schema("kubevirt.io_virtualmachines.yaml", "v1")["properties"]["spec"]["properties"]
    claim_spec = spec["dataVolumeTemplates"]["items"]["properties"]["spec"]["properties"]["pvc"]
    claims = json.loads(machine["metadata"]["annotations"]["harvesterhci.io/volumeClaimTemplates"])
    assert len(claims) == 2
    for claim in claims:
        assert set(claim) == {"metadata", "spec"}
        assert violations(claim["spec"], claim_spec, "spec") == []


def test_pool_patches() -> None:
    pool: Obj = {
        "metadata": {"name": "p", "resourceVersion": "1"},
        "spec": {"ranges": [{"subnet": "10.0.0.0/24"}]},
        "status": {"allocated": {"10.0.0.9": "ns/b"}},
    }
    plan = plan_allocations({"p": pool}, [AddressRequest("ns/a", ("p",))])
    release = plan_releases(pool, [("10.0.0.9", "ns/b", "")])
    ippool = schema("loadbalancer.harvesterhci.io_ippools.yaml", "v1beta1")
    for patch in (plan.patches["p"], release.patch):
        assert patch is not None
        # In a merge patch, null removes a key.
        status = {
            key: {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
            for key, value in patch["status"].items()
        }
        assert violations({"spec": pool["spec"], "status": status}, ippool) == []


def test_created_pool() -> None:
    description = {
        "vmNetwork": "production",
        "subnet": "10.0.0.0/24",
        "gateway": "10.0.0.1",
        "rangeStart": "10.0.0.10",
        "rangeEnd": "10.0.0.20",
    }
    pool = pool_object("made", description, "vms", {"caphv.io/owner": "HarvesterCluster/ns/c"})
    assert pool["spec"]["selector"] == {"network": "vms/production"}
    assert violations(pool, schema("loadbalancer.harvesterhci.io_ippools.yaml", "v1beta1")) == []


def test_load_balancer() -> None:
    listener = {"name": "rke2", "port": 9345, "protocol": "TCP", "backendPort": 9345}
    config = {"ipamType": "pool", "ipPoolRef": "balancers", "description": "of a cluster", "listeners": [listener]}
    spec = load_balancer_spec({"loadBalancerConfig": config}, {"harvestercluster/machinetype": ["controlplane-c"]})
    assert set(spec) == {
        "workloadType",
        "ipam",
        "ipPool",
        "description",
        "listeners",
        "healthCheck",
        "backendServerSelector",
    }
    found = {"metadata": {"name": "lb"}, "spec": spec}
    assert violations(found, schema("loadbalancer.harvesterhci.io_loadbalancers.yaml", "v1beta1")) == []
