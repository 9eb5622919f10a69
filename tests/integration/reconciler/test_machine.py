"""A machine from its Machine to a running VM: what it waits for, and what arrives on Harvester."""

from __future__ import annotations

import base64
import json

import pytest

from caphv.api.names import LEGACY_MACHINE_FINALIZER, MACHINE_FINALIZER
from caphv.api.object import EVENTS, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES, Obj, uid_of
from caphv.api.resources import STORAGE_PROFILES
from reconciler.machine.vmstatus import typed_addresses
from sandbox.harvester import fixtures, kinds
from tests.support.reconciler.case import (
    AT_ONCE,
    BOOTSTRAP,
    CLUSTERS,
    HARVESTER_CLUSTERS,
    HARVESTER_MACHINES,
    MACHINES,
    Case,
)
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true

pytestmark = pytest.mark.integration

WAITS = "InfrastructureProvisioningInProgress"


# What it waits for


async def test_machine_waits_for_the_infrastructure_of_its_cluster(case: Case) -> None:
    await case.cluster()
    await case.until(HARVESTER_CLUSTERS, case.name, is_ready)
    await case.create_machine("one")
    await case.until(HARVESTER_MACHINES, "one", is_false("InfrastructureReady", WAITS, "infrastructure of Cluster"))
    assert await case.names(kinds.VIRTUAL_MACHINES) == []
    await case.ready()
    await case.vm("one", timeout=AT_ONCE)


async def test_machine_waits_for_its_bootstrap_data_to_be_named_and_to_be_there(case: Case) -> None:
    await case.ready_cluster()
    await case.create_machine("one", bootstrap=None)
    await case.until(HARVESTER_MACHINES, "one", is_false("InfrastructureReady", WAITS, "dataSecretName"))
    await case.management.patch(MACHINES, "one", case.name, {"spec": {"bootstrap": {"dataSecretName": "one-data"}}})
    says = is_false("InfrastructureReady", WAITS, "waiting for bootstrap Secret one-data")
    # A second transient state is written five seconds after the first.
    await case.until(HARVESTER_MACHINES, "one", says)
    assert await case.names(kinds.VIRTUAL_MACHINES) == []
    await case.write_secret("one-data", {"value": BOOTSTRAP, "format": "cloud-config"})
    await case.vm("one", timeout=AT_ONCE)


async def test_bootstrap_data_that_cannot_be_used_is_reported_and_replaced(case: Case) -> None:
    await case.ready_cluster()
    await case.write_secret("bootstrap", {"value": "#!/bin/sh\necho\n"})
    await case.create_machine("one")
    await case.until(
        HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "VMProvisioningFailed", "a shell script")
    )
    await case.write_secret("bootstrap", {"value": BOOTSTRAP})
    await case.vm("one", timeout=AT_ONCE)


async def test_hostile_bootstrap_data_is_refused_and_stops_no_other_machine(case: Case) -> None:
    """60 KB of brackets ended the process once, and again after each restart."""
    await case.ready_cluster()
    hostile = {
        "deep": "a: " + "[" * 30_000 + "]" * 30_000,
        "deep-template": "## template: jinja\n#cloud-config\na: " + "[" * 30_000 + "]" * 30_000,
        "slow-template": "## template: jinja\n#cloud-config\na: " + "{{ " * 200_000,
    }
    for name, value in hostile.items():
        await case.write_secret(f"{name}-data", {"value": value})
        await case.create_machine(name, bootstrap=f"{name}-data")
    await case.write_secret("bootstrap", {"value": BOOTSTRAP})
    await case.create_machine("one")
    await case.vm("one")
    for name in hostile:
        await case.until(
            HARVESTER_MACHINES, name, is_false("VMProvisioningReady", "VMProvisioningFailed", "bootstrap data")
        )


async def test_disk_of_an_image_of_cdi_is_made_and_deleted(case: Case) -> None:
    """CDI makes the claim: without our record, and with the modes of the StorageProfile."""
    await case.ready_cluster()
    image = f"{case.name}-cdi"
    spec = {"displayName": image, "sourceType": "download", "url": "https://images.example.com/x.qcow2"}
    cdi = {"backend": "cdi", "targetStorageClassName": "harvester-longhorn"}
    await case.harvester.create(
        kinds.IMAGES,
        kinds.typed(kinds.IMAGES, {"metadata": {"name": image, "namespace": "default"}, "spec": {**spec, **cdi}}),
    )
    volume = {"volumeType": "image", "imageName": f"default/{image}", "volumeSize": "10Gi"}
    await case.ready_machine("one", volumes=[volume])
    (name,) = await case.names(PERSISTENT_VOLUME_CLAIMS)
    claim = await case.get(PERSISTENT_VOLUME_CLAIMS, name)
    assert (claim["spec"]["storageClassName"], claim["spec"]["volumeMode"]) == ("harvester-longhorn", "Block")
    assert (await case.get(kinds.DATA_VOLUMES, name))["status"]["phase"] == "Succeeded"

    await case.delete_machine("one")
    assert await case.names(PERSISTENT_VOLUME_CLAIMS) == []
    await case.until_gone(kinds.DATA_VOLUMES, name)
    await case.harvester.delete(kinds.IMAGES, image, "default")


async def test_image_that_appears_later_unblocks(case: Case) -> None:
    await case.ready_cluster()
    image = f"{case.name}-image"
    volume = {"volumeType": "image", "imageName": f"default/{image}", "volumeSize": "10Gi"}
    await case.create_machine("one", volumes=[volume])
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", f"spec.volumes[0].imageName is 'default/{image}'")
    await case.until(HARVESTER_MACHINES, "one", says)
    obj = {
        "metadata": {"name": image, "namespace": "default"},
        "spec": {"displayName": image, "sourceType": "upload"},
    }
    await case.harvester.create(kinds.IMAGES, kinds.typed(kinds.IMAGES, obj))

    # Harvester names the class of an image when it begins to import it, and refuses no VM before it has done so.
    says = is_false("VMProvisioningReady", "VMProvisioningInProgress", "Harvester is importing the image")
    await case.until(HARVESTER_MACHINES, "one", says)
    unknown = {"type": "Imported", "status": "Unknown", "reason": "Importing"}
    status = {"storageClassName": "harvester-longhorn", "progress": 57, "conditions": [unknown]}
    await case.harvester.patch(kinds.IMAGES, image, "default", {"status": status})
    says = is_false("VMProvisioningReady", "VMProvisioningInProgress", "importing the image, at least 50 % done")
    await case.until(HARVESTER_MACHINES, "one", says)

    imported = {"progress": 100, "virtualSize": 11 * 1024**3, "conditions": [{"type": "Imported", "status": "True"}]}
    await case.harvester.patch(kinds.IMAGES, image, "default", {"status": imported})
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", "spec.volumes[0].volumeSize is '10Gi'")
    await case.until(HARVESTER_MACHINES, "one", says)
    await case.patch(HARVESTER_MACHINES, "one", {"spec": {"volumes": [{**volume, "volumeSize": "11Gi"}]}})
    vm = await case.vm("one", timeout=AT_ONCE)
    await case.harvester.delete(kinds.IMAGES, image, "default")
    (claim,) = json.loads(vm["metadata"]["annotations"]["harvesterhci.io/volumeClaimTemplates"])
    assert claim["metadata"]["annotations"]["harvesterhci.io/imageId"] == f"default/{image}"
    assert claim["spec"]["storageClassName"] == "harvester-longhorn"


async def test_absent_image_says_where_it_was_searched_and_what_to_do_about_a_template(case: Case) -> None:
    await case.ready_cluster()
    volume = {"volumeType": "image", "imageName": "sles-15", "volumeSize": "10Gi"}
    await case.create_machine("one", volumes=[volume])
    cloned = {"metadata": {"annotations": {"cluster.x-k8s.io/cloned-from-name": "control-plane"}}}
    await case.patch(HARVESTER_MACHINES, "one", cloned)
    for text in (
        f"'sles-15' is not in namespace {case.target}, where names without a namespace are searched; "
        "Harvester has default/sles-15",
        "HarvesterMachineTemplate control-plane is immutable: create a corrected one under another name",
        "and delete Machine one",
    ):
        await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "VMProvisioningFailed", text))


async def test_key_pair_that_appears_later_unblocks(case: Case) -> None:
    await case.ready_cluster()
    await case.create_machine("one", sshKeyPair=f"default/{case.name}")
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", "Harvester has no such KeyPair")
    await case.until(HARVESTER_MACHINES, "one", says)
    pair = {"metadata": {"name": case.name, "namespace": "default"}, "spec": {"publicKey": "ssh-ed25519 AAAAtest"}}
    await case.harvester.create(kinds.KEY_PAIRS, kinds.typed(kinds.KEY_PAIRS, pair))
    await case.vm("one", timeout=AT_ONCE)
    user, _ = await case.user_data("one")
    assert user["ssh_authorized_keys"] == ["ssh-ed25519 AAAAtest"]
    await case.harvester.delete(kinds.KEY_PAIRS, case.name, "default")


async def test_spec_that_cannot_work_is_reported_in_full_and_can_be_corrected(case: Case) -> None:
    await case.ready_cluster()
    volumes = [
        {"volumeType": "image", "imageName": "default/sles-15"},
        {"volumeType": "storageClass", "storageClass": "harvester-longhorn"},
    ]
    await case.create_machine("one", volumes=volumes)
    found = await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "VMProvisioningFailed"))
    message = condition_of(found, "VMProvisioningReady")["message"]
    assert "spec.volumes[0].volumeSize is not set" in message
    assert "spec.volumes[1].volumeSize is not set" in message
    await case.until_event("one", "Warning", "VMProvisioningFailed")
    corrected = [{**volume, "volumeSize": "1Gi"} for volume in volumes]
    await case.patch(HARVESTER_MACHINES, "one", {"spec": {"volumes": corrected}})
    await case.vm("one", timeout=AT_ONCE)


async def test_refusal_of_harvester_is_passed_on(case: Case) -> None:
    await case.ready_cluster()
    await case.create_machine("one", networks=["default/nowhere"])
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", "network default/nowhere not found")
    await case.until(HARVESTER_MACHINES, "one", says)
    await case.patch(HARVESTER_MACHINES, "one", {"spec": {"networks": ["default/production"]}})
    await case.until(HARVESTER_MACHINES, "one", is_ready)


# What it becomes


async def test_ready_machine_says_what_the_core_wants_to_know(case: Case) -> None:
    await case.ready_cluster()
    machine = await case.ready_machine("one", failure_domain="zone-2")
    vm = await case.vm("one")
    vmi = await case.get(kinds.INSTANCES, "one")
    assert machine["spec"]["providerID"] == f"harvester://{uid_of(vm)}"
    reported = vmi["status"]["interfaces"][0]["ipAddress"]
    assert machine["status"]["addresses"] == typed_addresses([reported])
    assert machine["status"]["failureDomain"] == "zone-2"
    assert vmi["status"]["nodeName"] == "harvester-2"
    assert machine["metadata"]["finalizers"] == [MACHINE_FINALIZER]
    for kind in ("InfrastructureReady", "VMProvisioningReady", "MachineCreated"):
        condition = condition_of(machine, kind)
        assert (condition["status"], condition["reason"]) == ("True", kind)
    await case.until_event("one", "Normal", "VMCreated")


async def test_legacy_finalizer_is_swapped(case: Case) -> None:
    await case.ready_cluster()
    machine = await case.ready_machine("one", finalizers=[LEGACY_MACHINE_FINALIZER])
    assert machine["metadata"]["finalizers"] == [MACHINE_FINALIZER]


async def test_vm_and_its_disks_are_as_the_contract_describes_them(case: Case) -> None:
    affinity = {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "kubevirt.io/schedulable", "operator": "Exists"}]}]
        }
    }
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"role": "storage"}}}
    workload = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    await case.ready_cluster()
    await case.ready_machine(
        "one",
        control_plane=True,
        failure_domain="zone-1",
        cpu=4,
        memory="8Gi",
        volumes=[
            {"volumeType": "storageClass", "storageClass": "harvester-longhorn", "volumeSize": "10Gi", "bootOrder": 2},
            {"volumeType": "image", "imageName": "default/sles-15", "volumeSize": "40Gi", "bootOrder": 1},
            {"volumeType": "storageClass", "storageClass": "harvester-longhorn", "volumeSize": "5Gi"},
        ],
        firmware={"efi": True, "secureBoot": True},
        tpm={"enabled": True, "persistent": True},
        nodeAffinity=affinity,
        workloadAffinity=workload,
    )
    vm = await case.vm("one")
    labels = {
        "harvesterhci.io/creator": "docker-machine-driver-harvester",
        "guestcluster.harvesterhci.io/name": case.name,
        "harvesterhci.io/vmName": "one",
        "harvesterhci.io/vmNamePrefix": "one",
        "harvestercluster/machinetype": f"controlplane-{case.name}",
    }
    template = vm["spec"]["template"]
    for found in (vm["metadata"]["labels"], template["metadata"]["labels"]):
        assert found.items() >= labels.items()
    assert vm["metadata"]["annotations"]["networks.harvesterhci.io/ips"] == "[]"
    assert json.loads(template["metadata"]["annotations"]["harvesterhci.io/sshNames"]) == ["default/caphv"]
    assert vm["spec"]["runStrategy"] == "Always"
    domain = template["spec"]["domain"]
    disks = [(disk["name"], disk["disk"]["bus"], disk.get("bootOrder")) for disk in domain["devices"]["disks"]]
    assert disks == [
        ("disk-0", "virtio", 2),
        ("disk-1", "virtio", 1),
        ("disk-2", "virtio", None),
        ("cloudinitdisk", "virtio", None),
    ]
    assert domain["cpu"].items() >= {"cores": 4, "sockets": 1, "threads": 1}.items()
    assert domain["resources"]["limits"] == {"cpu": "4", "memory": "8Gi"}
    assert domain["firmware"]["bootloader"] == {"efi": {"secureBoot": True}}
    assert domain["features"]["smm"] == {"enabled": True}
    assert domain["devices"]["tpm"] == {"persistent": True}
    assert template["spec"]["affinity"]["podAffinity"] == workload
    (selector,) = nodes_required(template)
    wanted = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["zone-1"]}
    # The zone has a single host, which Harvester must be able to empty.
    preferred = template["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert {"weight": 100, "preference": {"matchExpressions": [wanted]}} in preferred
    assert template["spec"]["evictionStrategy"] == "LiveMigrateIfPossible"
    assert {"key": "kubevirt.io/schedulable", "operator": "Exists"} in selector["matchExpressions"]
    await the_claims_are(case, vm)


def nodes_required(template: Obj) -> list[Obj]:
    affinity = template["spec"]["affinity"]["nodeAffinity"]
    return affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


async def the_claims_are(case: Case, vm: Obj) -> None:
    """One bound claim a volume of the spec, under the name that VM and annotation give it."""
    volumes = vm["spec"]["template"]["spec"]["volumes"]
    names = [entry["persistentVolumeClaim"]["claimName"] for entry in volumes[:3]]
    annotations = vm["spec"]["template"]["metadata"]["annotations"]
    assert json.loads(annotations["harvesterhci.io/diskNames"]) == names
    sizes = ["10Gi", "40Gi", "5Gi"]
    for index, (name, size) in enumerate(zip(names, sizes, strict=True)):
        assert name.startswith(f"one-disk-{index}-")
        claim = await case.until(PERSISTENT_VOLUME_CLAIMS, name, lambda obj: obj["status"].get("phase") == "Bound")
        assert claim["spec"]["resources"]["requests"]["storage"] == size
        assert (claim["spec"]["accessModes"], claim["spec"]["volumeMode"]) == (["ReadWriteMany"], "Block")
    image = await case.get(PERSISTENT_VOLUME_CLAIMS, names[1])
    assert image["metadata"]["annotations"]["harvesterhci.io/imageId"] == "default/sles-15"
    vm_image = await case.harvester.get(kinds.IMAGES, "sles-15", "default")
    assert image["spec"]["storageClassName"] == vm_image["status"]["storageClassName"] == f"lh-{uid_of(vm_image)}"


async def test_modes_of_disks_are_those_of_the_spec_or_the_best_of_the_storage_profile(case: Case) -> None:
    await case.ready_cluster()
    local = f"local-{case.name}"
    storage_class = {**fixtures.storage_class(local), "provisioner": "lvm.driver.harvesterhci.io"}
    await case.harvester.create(STORAGE_CLASSES, kinds.typed(STORAGE_CLASSES, storage_class))
    modes = [{"accessModes": ["ReadWriteOnce"], "volumeMode": mode} for mode in ("Filesystem", "Block")]
    profile = {"metadata": {"name": local}, "spec": {}, "status": {"claimPropertySets": modes}}
    await case.harvester.create(STORAGE_PROFILES, kinds.typed(STORAGE_PROFILES, profile))

    disk = {"volumeType": "storageClass", "storageClass": local, "volumeSize": "1Gi"}
    volumes = [
        {"volumeType": "image", "imageName": "default/sles-15", "volumeSize": "10Gi"},
        disk,
        {**disk, "volumeMode": "Filesystem"},
        {**disk, "storageClass": "harvester-longhorn", "accessMode": "ReadWriteOnce"},
    ]
    await case.create_machine("one", volumes=volumes)
    vm = await case.vm("one")
    claims = json.loads(vm["metadata"]["annotations"]["harvesterhci.io/volumeClaimTemplates"])
    assert [(*claim["spec"]["accessModes"], claim["spec"]["volumeMode"]) for claim in claims] == [
        ("ReadWriteMany", "Block"),
        ("ReadWriteOnce", "Block"),
        ("ReadWriteOnce", "Filesystem"),
        ("ReadWriteOnce", "Block"),
    ]
    await case.until_event("one", "Normal", "VMCreated")
    events = (await case.management.list(EVENTS, case.name))["items"]
    (message,) = [event["message"] for event in events if event["reason"] == "VMCreated"]
    bound = ", ".join(claim["metadata"]["name"] for claim in claims[1:])
    assert message.endswith(f"it cannot migrate while it runs, because disks are not ReadWriteMany: {bound}")


async def test_secure_boot_is_explicit_when_it_is_off(case: Case) -> None:
    await case.ready_cluster()
    await case.ready_machine("one", firmware={"efi": True})
    domain = (await case.vm("one"))["spec"]["template"]["spec"]["domain"]
    assert domain["firmware"]["bootloader"] == {"efi": {"secureBoot": False}}
    assert "smm" not in (domain.get("features") or {})


async def test_bootstrap_data_is_joined_with_what_the_guest_needs(case: Case) -> None:
    await case.ready_cluster()
    await case.write_secret(
        "bootstrap", {"value": "#cloud-config\npackages: [jq]\nruncmd: [date]\ntimezone: Europe/Berlin\n"}
    )
    await case.ready_machine("one")
    user, _ = await case.user_data("one")
    assert {"qemu-guest-agent", "iptables", "jq"} <= set(user["packages"])
    assert "date" in user["runcmd"]
    assert user["timezone"] == "Europe/Berlin"
    assert len(user["ssh_authorized_keys"]) == 1


async def test_template_header_of_bootstrap_data_is_kept(case: Case) -> None:
    await case.ready_cluster()
    text = "## template: jinja\n#cloud-config\nhostname: '{{ v1.local_hostname }}'\n"
    await case.write_secret("bootstrap", {"value": text})
    await case.create_machine("one")
    await case.vm("one")
    secret = await case.harvester.request("GET", f"/api/v1/namespaces/{case.target}/secrets/one-cloud-init")
    written = base64.b64decode(secret["data"]["userdata"]).decode()
    assert written.startswith("## template: jinja\n#cloud-config\n")
    assert "{{ v1.local_hostname }}" in written


async def test_stopped_vm_is_reported_and_ready_again_when_it_runs(case: Case) -> None:
    await case.ready_cluster()
    ready = await case.ready_machine("one")
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"spec": {"runStrategy": "Halted"}})
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", "the VM is stopped: start it on Harvester")
    stopped = await case.until(HARVESTER_MACHINES, "one", says)
    assert not stopped["status"]["ready"]
    assert stopped["status"]["initialization"]["provisioned"]
    await case.patch(kinds.VIRTUAL_MACHINES, "one", {"spec": {"runStrategy": "Always"}})
    again = await case.until(HARVESTER_MACHINES, "one", is_ready)
    assert again["spec"]["providerID"] == ready["spec"]["providerID"]


async def test_vm_that_fits_no_host_is_reported(case: Case) -> None:
    await case.ready_cluster()
    await case.create_machine("one", failure_domain="zone-9")
    says = is_false("VMProvisioningReady", "VMProvisioningInProgress", "no host of Harvester can run the VM")
    await case.until(HARVESTER_MACHINES, "one", says)


async def test_machine_of_an_old_style_cluster_status_keeps_running(case: Case) -> None:
    """Cores that speak v1beta1 say `infrastructureReady`."""
    await case.cluster()
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("Ready"))
    status = {"status": {"infrastructureReady": True}}
    await case.management.patch(CLUSTERS, case.name, case.name, status, subresource="status")
    await case.ready_machine("one")
