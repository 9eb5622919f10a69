import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.labels import label_value
from caphv.api.object import Key, Obj
from caphv.api.ownership import record
from caphv.api.virtualmachine import is_machine_pvc
from reconciler.machine.disks import pvc_name
from reconciler.machine.placement import control_plane_selector
from reconciler.machine.validation import InvalidSpecError
from reconciler.machine.vm import virtual_machine
from tests.support.reconciler.machines import OWNER, inputs

pytestmark = pytest.mark.unit

DEPLOYMENT = {"cluster.x-k8s.io/deployment-name": "md-0"}


def template(vm: Obj) -> Obj:
    found: Obj = vm["spec"]["template"]
    return found


def claims(vm: Obj) -> list[Obj]:
    found: list[Obj] = json.loads(vm["metadata"]["annotations"]["harvesterhci.io/volumeClaimTemplates"])
    return found


class TestVirtualMachine:
    def test_identity(self) -> None:
        vm = virtual_machine(inputs())
        assert (vm["apiVersion"], vm["kind"]) == ("kubevirt.io/v1", "VirtualMachine")
        assert (vm["metadata"]["namespace"], vm["metadata"]["name"]) == ("target", "node-1")
        assert template(vm)["spec"]["hostname"] == "node-1"
        assert vm["spec"]["runStrategy"] == "Always"
        assert vm["metadata"]["annotations"]["networks.harvesterhci.io/ips"] == "[]"
        assert record(OWNER).items() <= vm["metadata"]["annotations"].items()

    def test_labels_are_on_vm_and_template(self) -> None:
        vm = virtual_machine(inputs())
        expected = {
            "harvesterhci.io/creator": "docker-machine-driver-harvester",
            "harvesterhci.io/vmName": "node-1",
            "harvesterhci.io/vmNamePrefix": "node-1",
            "caphv.io/cluster": "ns.prod",
        }
        assert expected.items() <= vm["metadata"]["labels"].items()
        assert template(vm)["metadata"]["labels"] == vm["metadata"]["labels"]
        assert "harvestercluster/machinetype" not in vm["metadata"]["labels"]

    def test_control_planes_carry_what_the_load_balancer_selects(self) -> None:
        vm = virtual_machine(replace(inputs(), control_plane=True))
        assert template(vm)["metadata"]["labels"]["harvestercluster/machinetype"] == "controlplane-prod"
        assert control_plane_selector("prod") == "controlplane-prod"

    @pytest.mark.parametrize("control_plane", [True, False])
    def test_template_annotations(self, control_plane: bool) -> None:
        vm = virtual_machine(replace(inputs(), control_plane=control_plane))
        annotations = template(vm)["metadata"]["annotations"]
        assert json.loads(annotations["harvesterhci.io/diskNames"]) == [c["metadata"]["name"] for c in claims(vm)]
        assert json.loads(annotations["harvesterhci.io/sshNames"]) == ["default/key"]
        assert annotations["harvestercluster/machinetype"] == "controlplane-prod"

    def test_key_pair_without_namespace_is_in_the_target_namespace(self) -> None:
        annotations = template(virtual_machine(inputs(sshKeyPair="key")))["metadata"]["annotations"]
        assert json.loads(annotations["harvesterhci.io/sshNames"]) == ["target/key"]

    def test_disks_and_volumes(self) -> None:
        vm = virtual_machine(inputs())
        spec = template(vm)["spec"]
        virtio = {"bus": "virtio"}
        assert spec["domain"]["devices"]["disks"] == [
            {"name": "disk-0", "disk": virtio, "bootOrder": 1},
            {"name": "disk-1", "disk": virtio},
            {"name": "cloudinitdisk", "disk": virtio},
        ]
        names = [claim["metadata"]["name"] for claim in claims(vm)]
        secret = {"name": "node-1-cloud-init"}
        assert spec["volumes"] == [
            {"name": "disk-0", "persistentVolumeClaim": {"claimName": names[0]}},
            {"name": "disk-1", "persistentVolumeClaim": {"claimName": names[1]}},
            {"name": "cloudinitdisk", "cloudInitNoCloud": {"secretRef": secret, "networkDataSecretRef": secret}},
        ]

    def test_claims(self) -> None:
        boot, data = claims(virtual_machine(inputs()))
        assert boot["metadata"]["annotations"] == {"harvesterhci.io/imageId": "default/image-x", **record(OWNER)}
        assert data["metadata"]["annotations"] == record(OWNER)
        assert boot["spec"] == {
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Block",
            "storageClassName": "lh-uuid",
            "resources": {"requests": {"storage": "40Gi"}},
        }
        assert data["spec"]["storageClassName"] == "longhorn"
        assert data["spec"]["resources"]["requests"]["storage"] == "10737418240"

    def test_networks(self) -> None:
        spec = template(virtual_machine(inputs()))["spec"]
        assert spec["networks"] == [
            {"name": "nic-1", "multus": {"networkName": "default/production"}},
            {"name": "nic-2", "multus": {"networkName": "target/storage"}},
        ]
        assert spec["domain"]["devices"]["interfaces"] == [
            {"name": "nic-1", "model": "virtio", "bridge": {}},
            {"name": "nic-2", "model": "virtio", "bridge": {}},
        ]

    def test_cpu_and_memory(self) -> None:
        domain = template(virtual_machine(inputs()))["spec"]["domain"]
        assert domain["cpu"] == {"cores": 4, "sockets": 1, "threads": 1}
        assert domain["memory"] == {"guest": "8Gi"}
        assert domain["resources"] == {"requests": {"memory": "8Gi"}, "limits": {"cpu": "4", "memory": "8Gi"}}
        assert domain["devices"]["inputs"] == [{"name": "tablet", "bus": "usb", "type": "tablet"}]

    @pytest.mark.parametrize(
        ("maxima", "cpu", "memory", "limits"),
        [
            ({"cpuMax": 16}, 16, {"guest": "8Gi"}, {"cpu": "16", "memory": "8Gi"}),
            ({"memoryMax": "32Gi"}, 4, {"guest": "8Gi", "maxGuest": "32Gi"}, {"cpu": "4", "memory": "32Gi"}),
            (
                {"cpuMax": 16, "memoryMax": "32Gi"},
                16,
                {"guest": "8Gi", "maxGuest": "32Gi"},
                {"cpu": "16", "memory": "32Gi"},
            ),
        ],
    )
    def test_vm_with_maxima_grows_by_sockets(self, maxima: Obj, cpu: int, memory: Obj, limits: Obj) -> None:
        vm = virtual_machine(replace(inputs(**maxima), hotplug=True))
        domain = template(vm)["spec"]["domain"]
        assert vm["metadata"]["annotations"]["harvesterhci.io/enableCPUAndMemoryHotplug"] == "true"
        assert domain["cpu"] == {"cores": 1, "sockets": 4, "threads": 1, "maxSockets": cpu}
        assert domain["memory"] == memory
        assert domain["resources"]["limits"] == limits

    def test_maxima_change_nothing_where_vms_cannot_grow(self) -> None:
        assert virtual_machine(inputs(cpuMax=16, memoryMax="32Gi")) == virtual_machine(inputs())

    def test_vm_without_maxima_is_the_same_everywhere(self) -> None:
        """So an upgrade of Harvester or of the provider changes no VM."""
        assert virtual_machine(replace(inputs(), hotplug=True)) == virtual_machine(inputs())

    @pytest.mark.parametrize(
        ("firmware", "bootloader", "features"),
        [
            (None, None, None),
            ({}, None, None),
            ({"secureBoot": True}, None, None),
            ({"efi": True}, {"bootloader": {"efi": {"secureBoot": False}}}, None),
            (
                {"efi": True, "secureBoot": True},
                {"bootloader": {"efi": {"secureBoot": True}}},
                {"smm": {"enabled": True}},
            ),
        ],
    )
    def test_firmware(self, firmware: Any, bootloader: Any, features: Any) -> None:
        domain = template(virtual_machine(inputs(firmware=firmware)))["spec"]["domain"]
        assert domain.get("firmware") == {"uuid": "uid-1", **(bootloader or {})}
        assert domain.get("features") == features

    @pytest.mark.parametrize(
        ("tpm", "device"),
        [
            (None, None),
            ({"enabled": False, "persistent": True}, None),
            ({"enabled": True}, {"persistent": False}),
            ({"enabled": True, "persistent": True}, {"persistent": True}),
        ],
    )
    def test_tpm(self, tpm: Any, device: Any) -> None:
        assert template(virtual_machine(inputs(tpm=tpm)))["spec"]["domain"]["devices"].get("tpm") == device

    def test_is_the_same_every_time(self) -> None:
        assert virtual_machine(inputs()) == virtual_machine(inputs())

    def test_inputs_are_left_alone(self) -> None:
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}}
        given_inputs = replace(inputs(nodeAffinity=required), failure_domain="z", failure_domains=())
        before = copy.deepcopy(given_inputs.machine)
        virtual_machine(given_inputs)
        assert given_inputs.machine == before


class TestPlacement:
    ZONES = ({"name": "z1", "attributes": {"topologyKey": "topology.kubernetes.io/zone"}},)

    @staticmethod
    def spread(vm: Obj) -> dict[str, str]:
        (term,) = template(vm)["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert term["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname"
        selector: dict[str, str] = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
        return selector

    @staticmethod
    def selected(selector: dict[str, str], vm: Obj) -> bool:
        return selector.items() <= template(vm)["metadata"]["labels"].items()

    def test_control_planes_of_a_cluster_keep_apart(self) -> None:
        one = replace(inputs(name="a"), control_plane=True)
        selector = self.spread(virtual_machine(one))
        assert self.selected(selector, virtual_machine(replace(inputs(name="b"), control_plane=True)))
        assert not self.selected(selector, virtual_machine(inputs(labels=DEPLOYMENT)))
        assert not self.selected(selector, virtual_machine(replace(one, cluster=Key("ns", "other"))))

    def test_all_that_rancher_gives_the_role_etcd_keep_apart(self) -> None:
        """In any pool: with etcd alone, or with the control plane, which keeps its own group, too."""
        pools = {"cluster.x-k8s.io/deployment-name": "etcd-a"}, DEPLOYMENT
        alone, other = (replace(inputs(name="a", labels=labels), etcd=True) for labels in pools)
        server = replace(inputs(name="b"), control_plane=True, etcd=True)
        selector = self.spread(virtual_machine(alone))
        assert all(self.selected(selector, virtual_machine(vm)) for vm in (alone, other, server))
        assert not self.selected(selector, virtual_machine(replace(inputs(name="c"), control_plane=True)))
        assert not self.selected(selector, virtual_machine(replace(alone, cluster=Key("ns", "other"))))

        rules = template(virtual_machine(server))["spec"]["affinity"]["podAntiAffinity"]
        terms = rules["preferredDuringSchedulingIgnoredDuringExecution"]
        groups = [term["podAffinityTerm"]["labelSelector"]["matchLabels"] for term in terms]
        assert groups == [self.spread(virtual_machine(replace(inputs(), control_plane=True))), selector]

    def test_machines_with_etcd_alone_are_no_backends(self) -> None:
        labels = template(virtual_machine(replace(inputs(labels=DEPLOYMENT), etcd=True)))["metadata"]["labels"]
        assert "harvestercluster/machinetype" not in labels

    def test_workers_of_a_deployment_keep_apart(self) -> None:
        one = inputs(name="a", labels=DEPLOYMENT)
        selector = self.spread(virtual_machine(one))
        assert self.selected(selector, virtual_machine(inputs(name="b", labels=DEPLOYMENT)))
        other = {"cluster.x-k8s.io/deployment-name": "md-1"}
        assert not self.selected(selector, virtual_machine(inputs(labels=other)))
        assert not self.selected(selector, virtual_machine(replace(one, control_plane=True)))
        assert not self.selected(selector, virtual_machine(replace(one, cluster=Key("other", "prod"))))

    def test_failure_domain_is_added_to_every_term(self) -> None:
        terms = [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}, {"matchFields": [{"key": "x"}]}]
        affinity = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
        }
        vm = virtual_machine(replace(inputs(nodeAffinity=affinity), failure_domain="z1", failure_domains=self.ZONES))
        zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z1"]}
        found = template(vm)["spec"]["affinity"]["nodeAffinity"]
        assert found["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == [
            {"matchExpressions": [{"key": "gpu", "operator": "Exists"}, zone]},
            {"matchFields": [{"key": "x"}], "matchExpressions": [zone]},
        ]
        assert found["preferredDuringSchedulingIgnoredDuringExecution"] == [{"weight": 1, "preference": {}}]

    @pytest.mark.parametrize(
        ("name", "key"), [("z1", "topology.kubernetes.io/zone"), ("host-7", "kubernetes.io/hostname")]
    )
    def test_failure_domain_alone(self, name: str, key: str) -> None:
        vm = virtual_machine(replace(inputs(), failure_domain=name, failure_domains=self.ZONES))
        required = template(vm)["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        expression = {"key": key, "operator": "In", "values": [name]}
        assert required == {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}

    def test_failure_domain_of_one_host_is_a_strong_preference(self) -> None:
        user = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
        vm = virtual_machine(replace(inputs(nodeAffinity=user), failure_domain="host-7", domain_strict=False))
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-7"]}
        preferred = {"weight": 100, "preference": {"matchExpressions": [expression]}}
        assert template(vm)["spec"]["affinity"]["nodeAffinity"] == {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}, preferred]
        }

    def test_drained_host_migrates_the_vm(self) -> None:
        assert template(virtual_machine(inputs()))["spec"]["evictionStrategy"] == "LiveMigrateIfPossible"

    def test_affinities_of_the_user(self) -> None:
        workload = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
        node = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "preference": {}}]}
        affinity = template(virtual_machine(inputs(workloadAffinity=workload, nodeAffinity=node)))["spec"]["affinity"]
        assert affinity["podAffinity"] == workload
        assert affinity["nodeAffinity"] == node

    def test_without_wishes_only_the_spreading(self) -> None:
        assert set(template(virtual_machine(inputs()))["spec"]["affinity"]) == {"podAntiAffinity"}


class TestSpecErrors:
    def test_all_at_once_with_field_and_remedy(self) -> None:
        wrong = inputs(
            cpu=0,
            memory="lots",
            networks=[],
            volumes=[
                {"volumeType": "image", "imageName": "gone", "volumeSize": "40Gi", "bootOrder": 1},
                {"volumeType": "image", "volumeSize": "0"},
                {"volumeType": "storageClass", "bootOrder": 1},
                {"volumeType": "floppy", "volumeSize": "-1Gi"},
            ],
        )
        with pytest.raises(InvalidSpecError) as caught:
            virtual_machine(wrong)
        assert [error.field for error in caught.value.errors] == [
            "spec.cpu",
            "spec.memory",
            "spec.networks",
            "spec.volumes[0].imageName",
            "spec.volumes[1].imageName",
            "spec.volumes[1].volumeSize",
            "spec.volumes[2].storageClass",
            "spec.volumes[2].volumeSize",
            "spec.volumes[3].volumeType",
            "spec.volumes[3].volumeSize",
            "spec.volumes[].bootOrder",
        ]
        assert all(error.remedy for error in caught.value.errors)
        assert "spec.memory is 'lots': give a quantity" in str(caught.value)
        assert "spec.volumes[2].volumeSize is not set" in str(caught.value)

    def test_no_volumes(self) -> None:
        with pytest.raises(InvalidSpecError, match="at least one volume"):
            virtual_machine(inputs(volumes=[]))

    @pytest.mark.parametrize("name", ["x" * 64, "a.b", "-a"])
    def test_name_that_is_no_host_name(self, name: str) -> None:
        with pytest.raises(InvalidSpecError, match=r"metadata\.name"):
            virtual_machine(inputs(name=name))

    @pytest.mark.parametrize("memory", ["4Gi", "8192Mi", "4", "1.5G", "1e9", "0.5Ti"])
    def test_memory_is_kept_as_written(self, memory: str) -> None:
        assert template(virtual_machine(inputs(memory=memory)))["spec"]["domain"]["memory"]["guest"] == memory

    @pytest.mark.parametrize("memory", ["", "0", "0Gi", "0e9", "4 Gi", "4gb", "-4Gi", "Gi", "."])
    def test_memory_that_is_no_size(self, memory: str) -> None:
        with pytest.raises(InvalidSpecError, match=r"spec\.memory"):
            virtual_machine(inputs(memory=memory))


dns_names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)


class TestClaimNames:
    @given(dns_names, st.uuids().map(str), st.integers(0, 30))
    def test_are_recognised_and_stable(self, vm_name: str, uid: str, index: int) -> None:
        name = pvc_name(vm_name, uid, index)
        assert name == pvc_name(vm_name, uid, index)
        assert name.startswith(f"{vm_name}-disk-{index}-")
        assert is_machine_pvc(vm_name, name)

    @given(dns_names, dns_names, st.uuids().map(str))
    def test_never_belong_to_two_machines(self, one: str, other: str, uid: str) -> None:
        assert is_machine_pvc(one, pvc_name(other, uid, 0)) is (one == other)

    def test_prefix_is_not_enough(self) -> None:
        assert not is_machine_pvc("a", pvc_name("a-disk-x", "uid", 0))
        assert not is_machine_pvc("a", pvc_name("a-disk-0-abcde", "uid", 0))
        assert not is_machine_pvc("a", "a-disk-0-abcdef")
        assert not is_machine_pvc("a.b", "axb-disk-0-abcde")

    def test_of_the_go_provider_are_recognised(self) -> None:
        assert is_machine_pvc("node-1", "node-1-disk-0-abc1d")

    def test_differ_between_disks_and_machines(self) -> None:
        suffixes = {pvc_name("a", uid, index)[-5:] for uid in ("u", "v") for index in (0, 1)}
        assert len(suffixes) == 4


@given(st.text(max_size=200), st.text(max_size=200))
def test_label_values_are_valid_and_distinct(one: str, other: str) -> None:
    value = label_value(one)
    assert len(value) <= 63
    assert not value or (
        value.strip("-_.") == value and value.replace("-", "").replace("_", "").replace(".", "").isalnum()
    )
    assert value.isascii()
    assert (value == label_value(other)) is (one == other)


def test_short_label_values_are_kept() -> None:
    assert label_value("controlplane-prod") == "controlplane-prod"
    assert len(label_value("x" * 63)) == 63
    assert label_value("x" * 64) != label_value("x" * 65)
