"""What is wrong with a definition is reported at its field, all of it at once, and never with a secret."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from packager.definitions import rules, validation
from packager.definitions.model import check
from tests.support.packager.definitions import built, definition, k3s, kubeadm

pytestmark = pytest.mark.unit

CALICO = {"cni": {"name": "calico"}}

S3 = {
    "endpoint": "s3.example.com",
    "bucket": "etcd",
    "folder": "team-a/production",
    "retention": 84,
    "credentialsSecretName": "etcd-s3",
}


def without_image(**machines: Any) -> Obj:
    obj = definition(machines=machines)
    del obj["spec"]["machines"]["image"]
    return obj


def image(**fields: str) -> Obj:
    return {"name": "default/a", "url": "https://i.example.com/a.qcow2", "checksum": "a" * 128, **fields}


POOL = {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "v4"}
CASES: dict[str, tuple[Obj, str, str]] = {
    "class and objects": (
        definition(clusterClass="mine", individualObjects=True),
        "spec.clusterClass",
        "definition-class",
    ),
    "class of another distribution": (k3s(clusterClass="harvester-rke2"), "spec.clusterClass", "definition-class"),
    "version": (definition(kubernetesVersion="v1.34.2+k3s1"), "spec.kubernetesVersion", "definition-version"),
    "no credentials": (definition(identitySecret=None), "spec.identitySecret", "definition-identity"),
    "credentials twice": (definition(identityRef={"name": "shared"}), "spec.identityRef", "definition-identity"),
    "no pool": (
        definition(loadBalancer={"ipamType": "pool"}),
        "spec.loadBalancer.ipPoolRef",
        "definition-load-balancer",
    ),
    "needless pool": (
        definition(loadBalancer={"ipamType": "dhcp", "ipPoolRef": "x"}),
        "spec.loadBalancer.ipPoolRef",
        "definition-load-balancer",
    ),
    "no external endpoint": (
        definition(loadBalancer={"ipamType": "none"}),
        "spec.loadBalancer.endpoint",
        "definition-load-balancer",
    ),
    "needless external endpoint": (
        definition(loadBalancer={"ipamType": "dhcp", "endpoint": {"host": "172.16.0.5"}}),
        "spec.loadBalancer.endpoint",
        "definition-load-balancer",
    ),
    "pool with an external endpoint": (
        definition(loadBalancer={"ipamType": "none", "ipPoolRef": "x", "endpoint": {"host": "172.16.0.5"}}),
        "spec.loadBalancer.ipPoolRef",
        "definition-load-balancer",
    ),
    "description of an external endpoint": (
        definition(loadBalancer={"ipamType": "none", "description": "x", "endpoint": {"host": "172.16.0.5"}}),
        "spec.loadBalancer.description",
        "definition-load-balancer",
    ),
    "external endpoint that is no address": (
        definition(loadBalancer={"ipamType": "none", "endpoint": {"host": "172.16.0.500"}}),
        "spec.loadBalancer.endpoint.host",
        "definition-load-balancer",
    ),
    "kube-vip without an address": (
        definition(loadBalancer={"ipamType": "none", "kubeVip": {}}),
        "spec.loadBalancer.endpoint",
        "definition-load-balancer",
    ),
    "kube-vip with a load balancer on Harvester": (
        definition(loadBalancer={"ipamType": "dhcp", "kubeVip": {}}),
        "spec.loadBalancer.kubeVip",
        "definition-load-balancer",
    ),
    "kube-vip with a pool": (
        definition(
            loadBalancer={"ipamType": "none", "ipPoolRef": "x", "kubeVip": {}, "endpoint": {"host": "10.0.0.1"}}
        ),
        "spec.loadBalancer.ipPoolRef",
        "definition-load-balancer",
    ),
    "kube-vip with a DNS name": (
        definition(loadBalancer={"ipamType": "none", "kubeVip": {}, "endpoint": {"host": "api.example.com"}}),
        "spec.loadBalancer.endpoint.host",
        "definition-load-balancer",
    ),
    "kube-vip at another port": (
        definition(loadBalancer={"ipamType": "none", "kubeVip": {}, "endpoint": {"host": "10.0.0.1", "port": 443}}),
        "spec.loadBalancer.endpoint.port",
        "definition-load-balancer",
    ),
    "kube-vip with a kubeadm that gives it no credentials": (
        definition(
            distribution="kubeadm",
            addons=None,
            kubernetesVersion="v1.28.15",
            loadBalancer={"ipamType": "none", "kubeVip": {}, "endpoint": {"host": "10.0.0.1"}},
        ),
        "spec.loadBalancer.kubeVip",
        "definition-load-balancer",
    ),
    "invalid interface of kube-vip": (
        definition(
            loadBalancer={"ipamType": "none", "kubeVip": {"interface": "eth0 "}, "endpoint": {"host": "10.0.0.1"}}
        ),
        "spec.loadBalancer.kubeVip.interface",
        "schema-pattern",
    ),
    "URL as external endpoint": (
        definition(loadBalancer={"ipamType": "none", "endpoint": {"host": "https://api.example.com"}}),
        "spec.loadBalancer.endpoint.host",
        "schema-pattern",
    ),
    "maximum of machines below a pool": (
        definition(machines={"memoryMax": "16Gi"}, workers=[{"name": "w", "memory": "32Gi"}]),
        "spec.workers[0].memoryMax",
        "definition-maxima",
    ),
    "maximum of a pool below its size": (
        definition(workers=[{"name": "a"}, {"name": "b", "cpu": 8, "cpuMax": 2}]),
        "spec.workers[1].cpuMax",
        "definition-maxima",
    ),
    "maximum of the control plane below the size of machines": (
        definition(machines={"cpu": 8}, controlPlane={"cpuMax": 4}),
        "spec.controlPlane.cpuMax",
        "definition-maxima",
    ),
    "maximum of machines below the default": (
        definition(machines={"cpuMax": 1}, controlPlane={"replicas": 1}, workers=[{"name": "w"}]),
        "spec.machines.cpuMax",
        "definition-maxima",
    ),
    "huge pages without pinned CPUs": (
        definition(machines={"hugepages": "1Gi"}),
        "spec.machines.hugepages",
        "definition-host-resources",
    ),
    "pool that pins no CPUs for the huge pages of all": (
        definition(machines={"cpuPinning": True, "hugepages": "1Gi"}, workers=[{"name": "w", "cpuPinning": False}]),
        "spec.machines.hugepages",
        "definition-host-resources",
    ),
    "memory of a pool that is no multiple of the pages of all": (
        definition(
            machines={"cpuPinning": True, "hugepages": "1Gi"},
            workers=[{"name": "w", "memory": "4.5Gi", "hugepages": "1Gi"}],
        ),
        "spec.workers[0].hugepages",
        "definition-host-resources",
    ),
    "devices of a pool that grows": (
        definition(machines={"cpuMax": 8}, workers=[{"name": "w", "devices": [{"resourceName": "n.com/a"}]}]),
        "spec.machines.cpuMax",
        "definition-host-resources",
    ),
    "device twice": (
        definition(workers=[{"name": "w", "devices": [{"resourceName": "n.com/a"}, {"resourceName": "n.com/a"}]}]),
        "spec.workers[0].devices[1].resourceName",
        "definition-host-resources",
    ),
    "interface on a network that machines lack": (
        definition(machines={"networkInterfaces": [{"network": "default/none", "addressesFromPools": [POOL]}]}),
        "spec.machines.networkInterfaces[0].network",
        "definition-interfaces",
    ),
    "pools of an IPAM provider and on Harvester": (
        definition(
            machines={"networkInterfaces": [{"network": "default/production", "addressesFromPools": [POOL]}]},
            addresses={"ipPoolRefs": ["a"], "gateway": "10.0.0.1", "subnetMask": "255.255.0.0"},
        ),
        "spec.machines.networkInterfaces[0].addressesFromPools",
        "definition-interfaces",
    ),
    "pool of an interface twice": (
        definition(
            workers=[
                {
                    "name": "w",
                    "networkInterfaces": [{"network": "default/production", "addressesFromPools": [POOL, POOL]}],
                }
            ]
        ),
        "spec.workers[0].networkInterfaces[0].addressesFromPools[1]",
        "definition-interfaces",
    ),
    "DNS server of an interface that is no address": (
        definition(
            machines={
                "networkInterfaces": [
                    {"network": "default/production", "addressesFromPools": [POOL], "dnsServers": ["fe80::1%x;"]}
                ]
            }
        ),
        "spec.machines.networkInterfaces[0].dnsServers[0]",
        "definition-interfaces",
    ),
    "static addresses of all machines": (
        definition(
            machines={
                "networkInterfaces": [{"network": "default/production", "addresses": [{"address": "10.0.0.5/24"}]}]
            }
        ),
        "spec.machines.networkInterfaces[0].addresses",
        "definition-interfaces",
    ),
    "route by a router outside of the machines' network": (
        definition(
            machines={
                "networkInterfaces": [
                    {"network": "default/production", "routes": [{"to": "10.9.0.0/16", "via": "10.1.0.2"}]}
                ]
            },
            addresses={"ipPoolRefs": ["a"], "gateway": "10.0.0.1", "subnetMask": "255.255.0.0"},
        ),
        "spec.machines.networkInterfaces[0].routes[0].via",
        "definition-interfaces",
    ),
    "routes of a first interface with DHCP": (
        definition(
            addresses=None,
            workers=[
                {
                    "name": "w",
                    "networkInterfaces": [
                        {"network": "default/production", "routes": [{"to": "10.9.0.0/16", "via": "10.1.0.2"}]}
                    ],
                }
            ],
        ),
        "spec.workers[0].networkInterfaces[0].routes",
        "definition-interfaces",
    ),
    "MTU of an interface beyond jumbo frames": (
        definition(workers=[{"name": "w", "networkInterfaces": [{"network": "default/production", "mtu": 65000}]}]),
        "spec.workers[0].networkInterfaces[0].mtu",
        "schema-maximum",
    ),
    "pool of an interface with a version": (
        definition(
            machines={
                "networkInterfaces": [
                    {"network": "default/production", "addressesFromPools": [{**POOL, "apiGroup": "a.io/v1"}]}
                ]
            }
        ),
        "spec.machines.networkInterfaces[0].addressesFromPools[0].apiGroup",
        "schema-pattern",
    ),
    "device without a vendor": (
        definition(workers=[{"name": "w", "devices": [{"resourceName": "gpu"}]}]),
        "spec.workers[0].devices[0].resourceName",
        "schema-pattern",
    ),
    "no image": (without_image(), "spec.machines.image", "definition-image"),
    "image and lookup": (
        definition(machines={"imageLookup": {"format": "default/sles-{{.K8sVersion}}"}}),
        "spec.machines.imageLookup",
        "definition-image",
    ),
    "lookup without a system": (
        without_image(imageLookup={"format": "{{.BaseOS}}-{{.K8sVersion}}"}),
        "spec.machines.imageLookup.baseOS",
        "definition-image",
    ),
    "lookup by an unknown term": (
        without_image(imageLookup={"format": "{{.OS}}"}),
        "spec.machines.imageLookup.format",
        "schema-pattern",
    ),
    "iso": (definition(images=[image(url="https://i.example.com/a.iso")]), "spec.images[0].url", "definition-image"),
    "image twice": (definition(images=[image(), image()]), "spec.images[1].name", "definition-image"),
    "image without a checksum": (
        definition(images=[{"name": "a", "url": "https://i.example.com/a"}]),
        "spec.images[0].checksum",
        "schema-required",
    ),
    "secure boot": (
        definition(machines={"firmware": {"secureBoot": True}}),
        "spec.machines.firmware.efi",
        "definition-firmware",
    ),
    "profile of k3s": (k3s(hardening={"cisProfile": "cis"}), "spec.hardening.cisProfile", "definition-hardening"),
    "stig of kubeadm": (kubeadm(hardening={"stig": True}), "spec.hardening.stig", "definition-hardening"),
    "stig alone": (definition(hardening={"stig": True}), "spec.hardening.cisProfile", "definition-hardening"),
    "stig without secure boot": (
        definition(hardening={"stig": True, "cisProfile": "cis"}),
        "spec.machines.firmware.secureBoot",
        "definition-hardening",
    ),
    "stig without tpm": (
        definition(hardening={"stig": True, "cisProfile": "cis"}),
        "spec.machines.tpm.enabled",
        "definition-hardening",
    ),
    "snapshots of kubeadm": (
        kubeadm(etcdSnapshots={"retention": 3}),
        "spec.etcdSnapshots",
        "definition-etcd-snapshots",
    ),
    "ca that is not used": (
        definition(etcdSnapshots={"s3": {**S3, "caSecretName": "ca", "insecureSkipVerify": True}}),
        "spec.etcdSnapshots.s3.caSecretName",
        "definition-etcd-snapshots",
    ),
    "store as a URL": (
        definition(etcdSnapshots={"s3": {**S3, "endpoint": "https://s3.example.com"}}),
        "spec.etcdSnapshots.s3.endpoint",
        "schema-pattern",
    ),
    "folder that clusters would share": (
        definition(etcdSnapshots={"s3": {name: value for name, value in S3.items() if name != "folder"}}),
        "spec.etcdSnapshots.s3.folder",
        "schema-required",
    ),
    "store that keeps five of all machines": (
        definition(etcdSnapshots={"s3": {name: value for name, value in S3.items() if name != "retention"}}),
        "spec.etcdSnapshots.s3.retention",
        "schema-required",
    ),
    "registries of kubeadm": (
        kubeadm(registries={"mirrors": {"docker.io": {"endpoint": ["https://m.example.com"]}}}),
        "spec.registries",
        "definition-registries",
    ),
    "secrets of k3s": (
        k3s(registries={"configs": {"a.example.com": {"authSecret": {"name": "a", "namespace": "b"}}}}),
        "spec.registries.configs",
        "definition-registries",
    ),
    "registry without access": (
        definition(registries={"configs": {"a.example.com": {}}}),
        "spec.registries.configs[a.example.com]",
        "definition-registries",
    ),
    "mirror with a password": (
        definition(registries={"mirrors": {"docker.io": {"endpoint": ["https://u:p@m.example.com"]}}}),
        "spec.registries.mirrors[docker.io].endpoint[0]",
        "schema-pattern",
    ),
    "field of an affinity": (
        definition(workers=[{"name": "a", "nodeAffinity": {"required": {}}}]),
        "spec.workers[0].nodeAffinity.required",
        "schema-additionalProperties",
    ),
    "gateway": (
        definition(addresses={"ipPoolRefs": ["a"], "gateway": "172.16.0", "subnetMask": "255.255.0.0"}),
        "spec.addresses.gateway",
        "definition-address",
    ),
    "mask": (
        definition(addresses={"ipPoolRefs": ["a"], "gateway": "172.16.0.1", "subnetMask": "255.0.255.0"}),
        "spec.addresses.subnetMask",
        "definition-address",
    ),
    "pools": (definition(workers=[{"name": "a"}, {"name": "a"}]), "spec.workers[1].name", "definition-pool-name"),
    "dash in a pool": (definition(workers=[{"name": "a-b"}]), "spec.workers[0].name", "schema-pattern"),
    "cni of kubeadm": (kubeadm(addons=CALICO), "spec.addons.cni.name", "cni-fleet-agent"),
    "cni that is not installed": (
        kubeadm(addons=CALICO, addonDelivery="None", rancherAutoImport=False),
        "spec.addons.cni.name",
        "definition-addons",
    ),
    "set of kubeadm": (kubeadm(addonDelivery="ClusterResourceSet"), "spec.addonDelivery", "definition-addons"),
    "distribution": (k3s(addons={"distribution": "rke2"}), "spec.addons.distribution", "definition-addons"),
    "bundled provider": (
        definition(addons={"cloudProviderName": "harvester"}),
        "spec.addons.cloudProviderName",
        "definition-addons",
    ),
    "fleet": (definition(fleet={"repo": "ext::sh -c true"}), "spec.fleet", "definition-fleet"),
    "fleet without use": (
        definition(fleet={"repo": "https://git.example.com/x"}, addonDelivery="None"),
        "spec.fleet",
        "definition-fleet",
    ),
    # What the packager says of the Cluster is reported of the definition.
    "mtu": (definition(addons={"cni": {"mtu": 10}}), "spec.addons.cni.mtu", "schema-minimum"),
    "encapsulation": (
        definition(addons={"cni": {"name": "canal", "encapsulation": "IPIP"}}),
        "spec.addons.cni.encapsulation",
        "cni-encapsulation",
    ),
    "networks": (
        definition(clusterNetwork={"podCIDRs": ["10.42.0.1/16"]}),
        "spec.clusterNetwork.podCIDRs[0]",
        "cidr",
    ),
    "overlap": (
        definition(clusterNetwork={"podCIDRs": ["10.43.0.0/16"]}),
        "spec.clusterNetwork.podCIDRs",
        "cidr-overlap",
    ),
    "two worlds": (
        definition(addons={"fleet": {"clusterName": "prod-a"}}),
        "spec.addons.fleet.clusterName",
        "fleet-cluster-name",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fault_is_reported_at_its_field(case: str) -> None:
    obj, field, rule = CASES[case]
    found = built(obj)
    assert (field, rule) in [(finding.field, finding.rule) for finding in found.findings]
    assert not found.ok


def test_kubeadm_has_no_resource_sets_and_is_reported_what_to_take() -> None:
    (reported,) = map(str, built(kubeadm(addonDelivery="ClusterResourceSet")).findings)
    assert reported.startswith("spec.addonDelivery: ")
    assert all(part in reported for part in ("ClusterResourceSet", "Helm controller", "use Fleet", "or None"))


def test_all_faults_are_reported_at_once() -> None:
    bad = definition(kubernetesVersion="v1.34.2+k3s1", loadBalancer={"ipamType": "pool"}, clusterClass="harvester-rke2")
    assert len(check(bad)) == 2
    worse = definition(kubernetesVersion="latest", targetNamespace="No", controlPlane={"replicas": 2})
    assert {finding.field for finding in check(worse)} == {
        "spec.kubernetesVersion",
        "spec.targetNamespace",
        "spec.controlPlane.replicas",
    }


@pytest.mark.parametrize("name", ["cni", "csi", "cluster-api.cattle.io/rancher-auto-import", "caphv.io/addons"])
def test_labels_that_come_from_the_spec_are_refused(name: str) -> None:
    obj = definition()
    obj["metadata"]["labels"] = {name: "x"}
    (found,) = check(obj)
    assert (found.rule, found.path) == ("definition-reserved", ("metadata", "labels", name))


def test_records_of_a_parked_cluster_are_refused() -> None:
    """An exported Cluster has them, and Git would write them again whenever the provider removes them."""
    obj = definition()
    obj["metadata"]["annotations"] = {"caphv.io/parked-since": "x", "caphv.io/park": "true"}
    (found,) = check(obj)
    assert (found.rule, found.path) == ("definition-reserved", ("metadata", "annotations", "caphv.io/parked-since"))


@pytest.mark.parametrize(
    ("text", "part"), [("weekends", "it has window weekends"), ("Sat Mars/Base", "Mars"), ("Sat", "")]
)
def test_a_park_schedule_has_to_be_readable(text: str, part: str) -> None:
    obj = definition()
    obj["metadata"]["annotations"] = {"caphv.io/park-schedule": text}
    findings = check(obj)
    assert [(found.rule, found.path) for found in findings] == (
        [("definition-park-schedule", ("metadata", "annotations", "caphv.io/park-schedule"))] if part else []
    )
    assert all(part in f"{found.value} {found.detail}" for found in findings)


def test_an_identity_is_never_taken_and_never_shown() -> None:
    token = "0123456789abcdef0123456789abcdef"
    kubeconfig = f"apiVersion: v1\nkind: Config\nusers:\n- name: admin\n  user:\n    token: {token}\n"
    for secret in (kubeconfig, {"name": "x", "kubeconfig": kubeconfig}, {"name": kubeconfig}):
        text = "\n".join(map(str, check(definition(identitySecret=secret))))
        assert "spec.identitySecret" in text
        assert "0123456789abcdef" not in text
    obj = definition()
    obj["metadata"]["annotations"] = {"example.com/note": kubeconfig}
    (found,) = check(obj)
    assert found.rule == "no-secrets-in-git"
    assert "0123456789abcdef" not in str(found)


def test_validation_knows_definitions_and_that_two_make_one_cluster() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "production"}}
    objs = [definition(), service, definition(), definition("other")]
    assert [validation.concerns(obj) for obj in objs] == [True, False, True, True]
    (about,) = validation.check_together(objs)
    assert (about.place, about.other, about.finding.rule) == (2, 0, "definition-twice")
    assert validation.check(definition()) == []
    assert validation.check(service) == []
    old = definition() | {"apiVersion": "caphv.io/v1"}
    assert [finding.field for finding in validation.check(old)] == ["apiVersion"]


def test_every_rule_is_described() -> None:
    own = {rule for _, _, rule in CASES.values() if rule.startswith("definition-")} | {
        "definition-reserved",
        "definition-park-schedule",
    }
    assert own | {"definition-twice", "definition-source", "no-secrets-in-git"} == {
        rule.name for rule in rules.all_rules()
    }


def test_rule_that_lacks_a_field_reports_what_it_found_before() -> None:
    obj = definition(addresses={"ipPoolRefs": ["a"], "gateway": "172.16.0"})
    fields = [finding.field for finding in check(obj)]
    assert fields == ["spec.addresses.gateway", "spec.addresses.subnetMask"]
