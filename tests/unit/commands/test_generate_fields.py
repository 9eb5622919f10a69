"""Flags of `caphv generate` and the fields of the definition that they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from packager.definitions.fromflags import definition_of
from tests.support.generate import LEAST, call, definition

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        (["--extra-disk", "10Gi:fast"], "machines.extraDisks", [{"size": "10Gi", "storageClass": "fast"}]),
        (["--extra-disk", "10Gi"], "machines.extraDisks", [{"size": "10Gi"}]),
        (["--ssh-user", "root"], "machines.sshUser", "root"),
        (["--class", "mine"], "clusterClass", "mine"),
        (["--cni", "cilium"], "addons.cni.name", "cilium"),
        (["--cni-mtu", "1450"], "addons.cni.mtu", 1450),
        (["--cni-encapsulation", "VXLAN"], "addons.cni.encapsulation", "VXLAN"),
        (["--cni-bgp", "Disabled"], "addons.cni.bgp", "Disabled"),
        (["--pod-cidr", "10.1.0.0/16"], "clusterNetwork.podCIDRs", ["10.1.0.0/16"]),
        (["--service-cidr", "10.2.0.0/16,fd00::/112"], "clusterNetwork.serviceCIDRs", ["10.2.0.0/16", "fd00::/112"]),
        (["--worker-replicas", "0"], "workers", [{"name": "workers", "replicas": 0}]),
        (["--lb-ip-pool", "lb"], "loadBalancer", {"ipamType": "pool", "ipPoolRef": "lb"}),
        (
            ["--external-endpoint", "api.example.com"],
            "loadBalancer",
            {"ipamType": "none", "endpoint": {"host": "api.example.com"}},
        ),
        (
            ["--external-endpoint", "172.16.0.5:443"],
            "loadBalancer",
            {"ipamType": "none", "endpoint": {"host": "172.16.0.5", "port": 443}},
        ),
        (
            ["--kube-vip", "172.16.0.5"],
            "loadBalancer",
            {"ipamType": "none", "endpoint": {"host": "172.16.0.5"}, "kubeVip": {}},
        ),
        (
            ["--kube-vip", "172.16.0.5", "--kube-vip-interface", "eth1", "--kube-vip-image", "example.com/kube-vip:v9"],
            "loadBalancer.kubeVip",
            {"interface": "eth1", "image": "example.com/kube-vip:v9"},
        ),
        (["--distribution", "k3s"], "addonDelivery", "ClusterResourceSet"),
        (["--distribution", "kubeadm"], "addonDelivery", "None"),
        (["--individual-objects"], "individualObjects", True),
        (["--failure-domains", "zone-1,zone-2"], "controlPlane.failureDomains", ["zone-1", "zone-2"]),
        (["--worker-failure-domain", "zone-1"], "workers", [{"name": "workers", "failureDomain": "zone-1"}]),
        (["--cpu-max", "16"], "machines.cpuMax", 16),
        (["--memory-max", "64Gi"], "machines.memoryMax", "64Gi"),
        (
            ["--ipam-pools", "default/production=v4+GlobalInClusterIPPool.ipam.cluster.x-k8s.io/v6@9.9.9.9+1.1.1.1"],
            "machines.networkInterfaces",
            [
                {
                    "network": "default/production",
                    "addressesFromPools": [
                        {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "v4"},
                        {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "GlobalInClusterIPPool", "name": "v6"},
                    ],
                    "dnsServers": ["9.9.9.9", "1.1.1.1"],
                }
            ],
        ),
        (
            [
                *("--network", "default/production,default/storage", "--ipam-pools", "default/storage=v4"),
                *("--mtu", "default/storage=9000"),
                *("--routes", "default/storage=10.20.0.0/16@10.0.0.2+fd01::/48@fe80::1"),
            ],
            "machines.networkInterfaces",
            [
                {
                    "network": "default/storage",
                    "addressesFromPools": [
                        {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "v4"}
                    ],
                    "mtu": 9000,
                    "routes": [{"to": "10.20.0.0/16", "via": "10.0.0.2"}, {"to": "fd01::/48", "via": "fe80::1"}],
                }
            ],
        ),
        (
            [
                *("--network", "default/production,default/storage", "--ipam-pools", "default/production=v4"),
                *("--mtu", "default/storage=9000,default/production=1400"),
            ],
            "machines.networkInterfaces",
            [
                {
                    "network": "default/production",
                    "addressesFromPools": [
                        {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "v4"}
                    ],
                    "mtu": 1400,
                },
                {"network": "default/storage", "mtu": 9000},
            ],
        ),
        (
            ["--worker-devices", "nvidia.com/GA102GL_A10=2, kubevirt.io/node1-usb"],
            "workers",
            [
                {
                    "name": "workers",
                    "devices": [
                        {"resourceName": "nvidia.com/GA102GL_A10", "count": 2},
                        {"resourceName": "kubevirt.io/node1-usb"},
                    ],
                }
            ],
        ),
        (
            [
                *("--worker-cpu-pinning", "true", "--worker-isolate-emulator-thread", "false"),
                *("--worker-numa-passthrough", "true", "--worker-hugepages", "1Gi"),
            ],
            "workers",
            [
                {
                    "name": "workers",
                    "cpuPinning": True,
                    "isolateEmulatorThread": False,
                    "numaPassthrough": True,
                    "hugepages": "1Gi",
                }
            ],
        ),
        (["--cis-profile", "cis-1.23"], "hardening.cisProfile", "cis-1.23"),
        (["--fips-required"], "hardening", {"fipsRequired": True}),
        (["--stig", "--cis-profile", "cis"], "hardening", {"stig": True, "cisProfile": "cis"}),
        (["--stig"], "machines.firmware", {"efi": True, "secureBoot": True}),
        (["--stig"], "machines.tpm", {"enabled": True, "persistent": True}),
        (
            ["--disable-fstrim-timer", "--no-guest-agent"],
            "machines.guestConfig",
            {"disableFstrimTimer": True, "installGuestAgent": False},
        ),
        (
            ["--registry-mirror", "docker.io=https://a.example.com,docker.io=https://b.example.com"],
            "registries.mirrors",
            {"docker.io": {"endpoint": ["https://a.example.com", "https://b.example.com"]}},
        ),
        (
            ["--etcd-snapshot-schedule", "@daily", "--etcd-snapshot-retention", "28"],
            "etcdSnapshots",
            {"schedule": "@daily", "retention": 28},
        ),
        (
            [
                *("--etcd-s3-endpoint", "s3.example.com", "--etcd-s3-bucket", "etcd", "--etcd-s3-folder", "production"),
                *("--etcd-s3-retention", "84", "--etcd-s3-secret", "etcd-s3"),
            ],
            "etcdSnapshots.s3",
            {
                "endpoint": "s3.example.com",
                "bucket": "etcd",
                "folder": "production",
                "retention": 84,
                "credentialsSecretName": "etcd-s3",
            },
        ),
        (["--no-rancher-auto-import"], "rancherAutoImport", False),
        (["--target-namespace", "vms"], "targetNamespace", "vms"),
        (["--fleet-addon-repo", "https://git.example.com/f.git"], "addonDelivery", "Fleet"),
        (
            ["--fleet-addon-repo", "https://git.example.com/f.git", "--fleet-addon-branch", "next"],
            "fleet",
            {"repo": "https://git.example.com/f.git", "branch": "next"},
        ),
    ],
)
def test_a_flag_becomes_a_field(arguments: list[str], path: str, value: Any) -> None:
    found: Any = definition(*LEAST, *arguments)["spec"]
    for part in path.split("."):
        found = found[part]
    assert found == value


def test_flags_of_workers_are_for_all_pools(tmp_path: Path) -> None:
    flags = ["--worker-node-affinity", "example.com/rack=rack-1,gpu", "--worker-workload-affinity", "app=database"]
    (pool,) = definition(*LEAST, "--worker-replicas", "3", *flags)["spec"]["workers"]
    assert (pool["name"], pool["replicas"]) == ("workers", 3)
    (term,) = pool["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "example.com/rack", "operator": "In", "values": ["rack-1"]},
        {"key": "gpu", "operator": "Exists"},
    ]
    (near,) = pool["workloadAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["topologyKey"] == "kubernetes.io/hostname"
    file = tmp_path / "two.yaml"
    two = definition(*LEAST)
    two["spec"]["workers"] = [{"name": "a", "replicas": 1}, {"name": "b", "failureDomain": "zone-1"}]
    file.write_text(yaml.safe_dump(two))
    found = definition("--definition", str(file), "--worker-failure-domain", "zone-2")["spec"]["workers"]
    assert found == [{"name": "a", "replicas": 1, "failureDomain": "zone-2"}, {"name": "b", "failureDomain": "zone-2"}]


def test_fields_that_nothing_sets_are_absent() -> None:
    spec = definition(*LEAST)["spec"]
    assert not {"hardening", "individualObjects", "rancherAutoImport"} & spec.keys()
    assert all(value not in ({}, [], "", None) for value in [*spec.values(), *spec["machines"].values()])


def test_a_wrong_value_for_workers_is_reported_with_its_flag() -> None:
    result = call(*LEAST, "--worker-failure-domain", "zone 1", "--worker-node-affinity", "=x", "--cis-profile", "none")
    assert result.exit_code == 1
    for flag in ("--worker-failure-domain: spec.workers[0].failureDomain", "--cis-profile: spec.hardening.cisProfile"):
        assert f"error: {flag}" in result.stderr


def test_a_wrong_source_of_charts_is_wrong_usage() -> None:
    result = call(*LEAST, "--chart-repo", "ftp://charts.example.com")
    assert (result.exit_code, "is not a chart repository" in result.stderr) == (2, True)


def test_an_address_of_kube_vip_and_an_external_endpoint_exclude_each_other() -> None:
    result = call(*LEAST, "--external-endpoint", "api.example.com", "--kube-vip", "172.16.0.5")
    assert result.exit_code != 0
    assert "--external-endpoint and --kube-vip are mutually exclusive" in result.output
    result = call(*LEAST, "--lb-ip-pool", "balancers", "--kube-vip", "172.16.0.5")
    assert result.exit_code == 1
    assert "has no effect with ipamType none" in result.output


def test_user_data_of_guests_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "user-data.yaml"
    file.write_text("#cloud-config\nntp: {servers: [ntp.example.com]}\n")
    found = definition(*LEAST, "--user-data", str(file))["spec"]["machines"]["guestConfig"]
    assert found == {"userData": file.read_text()}
    absent = call(*LEAST, "--user-data", str(tmp_path / "absent"))
    assert (absent.exit_code, "--user-data" in absent.stderr) == (2, True)


def test_several_pools_are_asked_in_order() -> None:
    more = ["--ip-pool-refs", "pool-a, pool-b,pool-c", "--gateway", "10.0.0.1", "--subnet-mask", "255.255.255.0"]
    assert definition(*LEAST, *more)["spec"]["addresses"]["ipPoolRefs"] == ["pool-a", "pool-b", "pool-c"]


@pytest.mark.parametrize(
    "flag",
    [
        ["--routes", "b=10.20.0.0/16@10.0.0.2,b=10.30.0.0/16@10.0.0.2"],
        ["--mtu", "b=9000,b=1400"],
        ["--ipam-pools", "b=v4,b=v6"],
    ],
)
def test_network_twice_in_one_flag_is_refused(flag: list[str]) -> None:
    more = ["--ipam-pools", "b=v4"] if flag[0] == "--routes" else []
    result = call(*LEAST, "--network", "default/production,b", *more, *flag)
    assert result.exit_code != 0
    assert "has an entry already: join the two" in result.output


def test_pools_of_a_flag_replace_interfaces_of_a_file_and_other_flags_join_them() -> None:
    def interfaces(values: dict[str, str], listed: Any = None) -> Any:
        pools = [{"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "old"}]
        listed = listed or [{"network": "a", "addressesFromPools": pools, "mtu": 1400}]
        base = {"spec": {"machines": {"networkInterfaces": listed}}}
        return definition_of(values, base)["spec"]["machines"]["networkInterfaces"]

    (replaced,) = interfaces({"--ipam-pools": "b=new", "--mtu": "b=9000"})
    assert (replaced["network"], replaced["mtu"]) == ("b", 9000)
    (joined,) = interfaces({"--mtu": "a=9000"})
    assert (joined["addressesFromPools"][0]["name"], joined["mtu"]) == ("old", 9000)
    assert interfaces({"--mtu": "a=9000"}, ["a"]) == ["a"]


@pytest.mark.parametrize("network", [["b"], {"name": "b"}, None])
@pytest.mark.parametrize("flag", [("--mtu", "b=9000"), ("--routes", "b=10.20.0.0/16@10.0.0.2")])
def test_interface_of_a_file_whose_network_is_not_text_is_refused(
    tmp_path: Path, flag: tuple[str, str], network: object
) -> None:
    file = tmp_path / "definition.yaml"
    spec = definition(*LEAST, "--network", "default/production,default/storage")
    spec["spec"]["machines"]["networkInterfaces"] = [{"network": network}]
    file.write_text(yaml.safe_dump(spec))
    result = call("--definition", str(file), *flag)
    assert (result.exit_code, "networkInterfaces[0].network" in result.stderr) == (1, True), result.output
