"""What is legal and discouraged, and what a change of it means, gets a warning."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from tests.support.admission import base, changed, create, update
from webhooks.admission import RULES, validate

pytestmark = pytest.mark.unit


ADVICE = {
    "small-machine": ("HarvesterMachine", {"cpu": 1, "memory": "2Gi"}, {"spec.cpu", "spec.memory"}),
    "ssh-user-root": ("HarvesterMachine", {"sshUser": "root"}, {"spec.sshUser"}),
    "static-address-of-template": (
        "HarvesterMachineTemplate",
        {"networkConfig": {"address": "172.17.1.10", "gateway": "172.17.1.1"}},
        {"spec.template.spec.networkConfig.address"},
    ),
    "boot-disk": (
        "HarvesterMachine",
        {"volumes": [{"volumeType": "storageClass", "storageClass": "longhorn", "volumeSize": "40Gi"}]},
        {"spec.volumes[0]"},
    ),
    "volume-not-migratable": (
        "HarvesterMachine",
        {
            "volumes": [
                {"volumeType": "image", "imageName": "a/b", "volumeSize": "40Gi", "accessMode": "ReadWriteOnce"},
            ]
        },
        {"spec.volumes[0].accessMode"},
    ),
    "user-data-secret": (
        "HarvesterMachine",
        {"guestConfig": {"userData": "password: swordfish"}},
        {"spec.guestConfig.userData"},
    ),
    "node-affinity-empty-term": (
        "HarvesterMachine",
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{}]}}},
        {"spec.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"},
    ),
    "node-affinity-cpumanager": (
        "HarvesterMachine",
        {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]},
                        {
                            "matchExpressions": [
                                {"key": "gpu", "operator": "Exists"},
                                {"key": "cpumanager", "operator": "In", "values": ["true"]},
                            ]
                        },
                    ]
                }
            }
        },
        {
            "spec.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1]"
            ".matchExpressions[1].key"
        },
    ),
    "pool-ref-unused": (
        "HarvesterCluster",
        {
            "vmNetworkConfig": {
                "gateway": "10.0.0.1",
                "subnetMask": "255.0.0.0",
                "ipPoolRef": "a",
                "ipPoolRefs": ["b"],
            }
        },
        {"spec.vmNetworkConfig.ipPoolRef"},
    ),
    "ip-pool-subnet-host": (
        "HarvesterCluster",
        {
            "loadBalancerConfig": {
                "ipamType": "pool",
                "ipPool": {"subnet": "10.0.0.9/24", "gateway": "10.0.0.1", "vmNetwork": "default/production"},
            }
        },
        {"spec.loadBalancerConfig.ipPool.subnet"},
    ),
    "external-endpoint-in-pool": (
        "HarvesterCluster",
        {
            "loadBalancerConfig": {"ipamType": "none"},
            "controlPlaneEndpoint": {"host": "10.0.0.20", "port": 6443},
            "vmNetworkConfig": {
                "gateway": "10.0.0.1",
                "subnetMask": "255.255.255.0",
                "ipPool": {
                    "subnet": "10.0.0.0/24",
                    "gateway": "10.0.0.1",
                    "vmNetwork": "default/production",
                    "rangeStart": "10.0.0.10",
                    "rangeEnd": "10.0.0.20",
                },
            },
        },
        {"spec.controlPlaneEndpoint.host"},
    ),
    "target-namespace-system": (
        "HarvesterCluster",
        {"targetNamespace": "harvester-system"},
        {"spec.targetNamespace"},
    ),
    "cloud-config-namespace": (
        "HarvesterCluster",
        {
            "updateCloudProviderConfig": {
                "manifestsConfigMapName": "ccm",
                "manifestsConfigMapNamespace": "default",
                "manifestsConfigMapKey": "ccm.yaml",
                "cloudConfigCredentialsSecretName": "cloud-config",
                "cloudConfigCredentialsSecretKey": "cloud-config",
            }
        },
        {"spec.updateCloudProviderConfig.manifestsConfigMapNamespace"},
    ),
    "cross-namespace-reference": (
        "HarvesterCluster",
        {"identitySecret": {"name": "harvester-identity", "namespace": "team-b"}},
        {"spec.identitySecret.namespace"},
    ),
    "failure-domain-affinity": (
        "HarvesterMachine",
        {
            "failureDomain": "zone-a",
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-b"]}
                            ]
                        },
                        {
                            "matchExpressions": [
                                {"key": "topology.kubernetes.io/zone", "operator": "NotIn", "values": ["zone-a"]}
                            ]
                        },
                    ]
                }
            },
        },
        {"spec.failureDomain"},
    ),
    "vm-network-like-pool": (
        "HarvesterCluster",
        {
            "vmNetworkConfig": {
                "gateway": "172.17.0.1",
                "subnetMask": "255.255.0.0",
                "ipPool": {"subnet": "172.17.3.0/24", "gateway": "172.17.3.1", "vmNetwork": "default/production"},
            }
        },
        {"spec.vmNetworkConfig.gateway", "spec.vmNetworkConfig.subnetMask"},
    ),
    "endpoint-port": (
        "HarvesterCluster",
        {"controlPlaneEndpoint": {"host": "172.17.1.50", "port": 443}},
        {"spec.controlPlaneEndpoint.port"},
    ),
    "endpoint-of-template": (
        "HarvesterClusterTemplate",
        {"controlPlaneEndpoint": {"host": "172.17.1.50", "port": 6443}},
        {"spec.template.spec.controlPlaneEndpoint.host"},
    ),
}


def test_every_advice_has_an_example() -> None:
    # Rules about changes have tests of their own.
    assert ADVICE.keys() == {name for name, rule in RULES.items() if rule.advice and not rule.before}


@pytest.mark.parametrize("rule", ADVICE)
def test_what_is_legal_and_discouraged_is_warned_about(rule: str) -> None:
    kind, spec, fields = ADVICE[rule]
    review = create(changed(kind, **spec))
    assert validate(review).errors == ()
    assert {finding.field for finding in validate(review).warnings if finding.rule == rule} == fields
    assert rule not in {finding.rule for finding in validate(review, without={rule}).warnings}
    assert rule not in {finding.rule for finding in validate(create(base(kind))).warnings}


POOLS = {"gateway": "10.0.0.1", "subnetMask": "255.0.0.0"}
DESCRIBED = {"subnet": "10.0.0.0/24", "gateway": "10.0.0.1", "vmNetwork": "default/production"}


def source_warnings(old: Obj, new: Obj, status: Obj) -> list[str]:
    """Fields with a warning that a changed source of the control plane address is not applied."""
    before, after = changed("HarvesterCluster", **old), changed("HarvesterCluster", **new)
    verdict = validate(update({**before, "status": status}, {**after, "status": status}))
    assert verdict.errors == ()
    return [found.field for found in verdict.warnings if found.rule == "load-balancer-address-source"]


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "a"}},
            {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "b"}},
            ["spec.loadBalancerConfig.ipPoolRef"],
            id="another pool",
        ),
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "a"}},
            {"loadBalancerConfig": {"ipamType": "dhcp"}},
            ["spec.loadBalancerConfig.ipamType"],
            id="DHCP",
        ),
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool"}, "vmNetworkConfig": {**POOLS, "ipPoolRef": "a"}},
            {"loadBalancerConfig": {"ipamType": "pool"}, "vmNetworkConfig": {**POOLS, "ipPoolRefs": ["b", "a"]}},
            ["spec.vmNetworkConfig.ipPoolRefs[0]"],
            id="new first pool of the machines",
        ),
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool"}, "vmNetworkConfig": {**POOLS, "ipPoolRef": "a"}},
            {"loadBalancerConfig": {"ipamType": "pool"}, "vmNetworkConfig": {**POOLS, "ipPoolRefs": ["a", "b"]}},
            [],
            id="new last pool of the machines",
        ),
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "default/a"}},
            {"loadBalancerConfig": {"ipamType": "pool", "ipPoolRef": "a"}},
            [],
            id="the same pool",
        ),
        pytest.param(
            {"loadBalancerConfig": {"ipamType": "pool", "ipPool": DESCRIBED}},
            {"loadBalancerConfig": {"ipamType": "pool", "ipPool": DESCRIBED, "ipPoolRef": "clusters-demo-ippool"}},
            [],
            id="name of the created pool",
        ),
    ],
)
def test_changed_source_of_the_address_is_warned_about(old: Obj, new: Obj, fields: list[str]) -> None:
    assert source_warnings(old, new, {"ready": True}) == fields
    assert source_warnings(old, new, {}) == []
    reported = {"type": "LoadBalancerReady", "status": "True", "message": "ipPoolRef: a is not applied"}
    assert source_warnings(old, new, {"ready": True, "conditions": [reported]}) == []


def test_secrets_are_not_repeated() -> None:
    for data in ("password: swordfish", "#!swordfish", "- swordfish", "a: [swordfish"):
        verdict = validate(create(changed("HarvesterMachine", guestConfig={"userData": data})))
        assert verdict.errors or verdict.warnings
        assert "swordfish" not in repr(verdict)
