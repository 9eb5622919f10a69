"""The VirtualMachine of a HarvesterMachine, exactly as the contract describes it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from caphv.api import names
from caphv.api.labels import cluster_label, label_value
from caphv.api.object import Key, Obj, annotations_of
from caphv.api.ownership import Owner, record
from caphv.api.virtualmachine import cloud_init_secret_name
from reconciler.harvester.storageprofiles import ClaimModes
from reconciler.machine.disks import claim, pvc_name, storage_class_of
from reconciler.machine.guestinterfaces import mac_addresses
from reconciler.machine.guestlabels import template_labels, vm_labels
from reconciler.machine.hostresources import add_host_resources, has_host_resources
from reconciler.machine.images import ResolvedImage, split_reference
from reconciler.machine.placement import (
    CLUSTER_LABEL,
    affinity,
    control_plane_selector,
    domain_requirement,
    etcd_group,
    group_labels,
)
from reconciler.machine.validation import InvalidSpecError, spec_errors

RUN_STRATEGY = "Always"
"""The VM runs until it is deleted."""


@dataclass(frozen=True)
class VirtualMachineInputs:
    """All that a VirtualMachine depends on."""

    machine: Obj
    """The HarvesterMachine."""
    cluster: Key
    """Key of the Cluster."""
    target_namespace: str
    owner: Owner
    """The record that the VM carries."""
    images: Mapping[str, ResolvedImage]
    """Images by `imageName`, for those names in the volumes that Harvester has."""
    control_plane: bool = False
    etcd: bool = False
    """Whether Rancher gives the machine the role etcd."""
    failure_domain: str = ""
    failure_domains: Sequence[Obj] = ()
    """The HarvesterCluster's `status.failureDomains`."""
    domain_strict: bool = True
    """Whether the failure domain has other hosts to which the VM can migrate."""
    guest_name_taken: bool = False
    """Whether the VM lacks the guest's name; see `reconciler.machine.guestlabels`."""
    announces_network: bool = True
    """Whether the template has the labels of a guest; see `reconciler.machine.guestlabels`."""
    offered: Mapping[str, Sequence[ClaimModes]] = field(default_factory=dict)
    """The modes that each StorageClass provides, if they are known."""
    hotplug: bool = False
    """Whether a VM with maxima can grow while it runs. Of an existing VM: whether this one can."""

    @property
    def requirement(self) -> Obj | None:
        """Node selector requirement of the failure domain, None without one."""
        return domain_requirement(self.failure_domain, self.failure_domains)

    @property
    def grows(self) -> bool:
        """Whether CPU and memory of the VM can be increased while it runs."""
        spec = self.machine["spec"]
        return self.hotplug and has_maxima(spec) and not has_host_resources(spec)


def has_maxima(spec: Obj) -> bool:
    """Return whether the spec of a HarvesterMachine declares to what the VM can grow."""
    return bool(spec.get("cpuMax") or spec.get("memoryMax"))


def can_grow(vm: Obj) -> bool:
    """Return whether Harvester lets CPU and memory of a VM grow while it runs."""
    return annotations_of(vm).get(names.HOTPLUG_ANNOTATION, "").lower() == "true"


def virtual_machine(inputs: VirtualMachineInputs) -> Obj:
    """Return the VirtualMachine to create.

    Raises `InvalidSpecError` with every field that is invalid.
    """
    if errors := spec_errors(inputs.machine, inputs.images):
        raise InvalidSpecError(errors)

    name = inputs.machine["metadata"]["name"]
    owner_record = record(inputs.owner)
    claims = _claims(inputs, owner_record)
    labels = _labels(inputs)
    template = {
        "metadata": {
            "labels": _template_labels(inputs, labels),
            "annotations": _template_annotations(inputs, claims),
        },
        "spec": _instance_spec(inputs, claims),
    }

    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": name,
            "namespace": inputs.target_namespace,
            "labels": labels,
            "annotations": {
                names.VOLUME_CLAIM_TEMPLATES_ANNOTATION: json.dumps(claims, separators=(",", ":")),
                names.NETWORK_IPS_ANNOTATION: "[]",
                **({names.HOTPLUG_ANNOTATION: "true"} if inputs.grows else {}),
                **owner_record,
            },
        },
        "spec": {"runStrategy": RUN_STRATEGY, "template": template},
    }


def _claims(inputs: VirtualMachineInputs, owner_record: dict[str, str]) -> list[Obj]:
    """Return the claims of the machine's disks, in the order of its volumes."""
    metadata = inputs.machine["metadata"]
    claims = []
    for index, volume in enumerate(inputs.machine["spec"]["volumes"]):
        image = inputs.images.get(volume.get("imageName", ""))
        offered = inputs.offered.get(storage_class_of(volume, image) or "", ())
        name = pvc_name(metadata["name"], metadata["uid"], index)
        claims.append(claim(name, volume, image, owner_record, offered))
    return claims


def _groups(inputs: VirtualMachineInputs) -> list[dict[str, str]]:
    """Return the labels of the VMs that should be spread over hosts with this one, by group."""
    groups = []
    # Machines with etcd alone belong to one group, whatever their pools are.
    if inputs.control_plane or not inputs.etcd:
        labels = inputs.machine["metadata"].get("labels") or {}
        group = group_labels(inputs.cluster, labels, control_plane=inputs.control_plane)
        groups.append(group)
    if inputs.etcd:
        groups.append(etcd_group(inputs.cluster))
    return groups


def _labels(inputs: VirtualMachineInputs) -> dict[str, str]:
    name = label_value(inputs.machine["metadata"]["name"])
    return {
        **vm_labels(inputs.cluster, name_taken=inputs.guest_name_taken),
        names.VM_NAME_LABEL: name,
        names.VM_NAME_PREFIX_LABEL: name,
        CLUSTER_LABEL: cluster_label(inputs.cluster),
        **{name: value for group in _groups(inputs) for name, value in group.items()},
    }


def _template_labels(inputs: VirtualMachineInputs, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of the instances. Labels for guest clusters differ from the VM's labels."""
    guest = vm_labels(inputs.cluster, name_taken=inputs.guest_name_taken)
    changes = template_labels(guest, announces_network=inputs.announces_network)
    return {name: value for name, value in {**labels, **changes}.items() if value is not None}


def _template_annotations(inputs: VirtualMachineInputs, claims: Sequence[Obj]) -> dict[str, str]:
    key_pair = inputs.machine["spec"].get("sshKeyPair")
    key_pairs = ["/".join(split_reference(key_pair, inputs.target_namespace))] if key_pair else []
    return {
        names.DISK_NAMES_ANNOTATION: json.dumps([claim["metadata"]["name"] for claim in claims]),
        names.SSH_NAMES_ANNOTATION: json.dumps(key_pairs),
        # Workers have this annotation, too, as with the Go provider. Only the label marks VMs of
        # the control plane.
        names.MACHINE_TYPE_LABEL: control_plane_selector(inputs.cluster.name),
    }


def _instance_spec(inputs: VirtualMachineInputs, claims: Sequence[Obj]) -> Obj:
    """Return the spec of the instances: networks, volumes, devices, and where they run."""
    spec = inputs.machine["spec"]
    metadata = inputs.machine["metadata"]
    # Names are qualified, because Harvester 1.5 and later also look up a bare name in namespace
    # `default`, and deny the VM.
    networks = [
        {
            "name": f"nic-{number}",
            "multus": {"networkName": "/".join(split_reference(network, inputs.target_namespace))},
        }
        for number, network in enumerate(spec["networks"], start=1)
    ]

    volumes: list[Obj] = [
        {
            "name": f"disk-{index}",
            "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]},
        }
        for index, claim in enumerate(claims)
    ]
    secret = {"name": cloud_init_secret_name(metadata["name"])}
    cloud_init = {"secretRef": secret, "networkDataSecretRef": dict(secret)}
    volumes.append({"name": "cloudinitdisk", "cloudInitNoCloud": cloud_init})

    return {
        "hostname": metadata["name"],
        "networks": networks,
        "volumes": volumes,
        "domain": _domain(inputs.machine, grows=inputs.grows),
        "affinity": affinity(
            spec, _groups(inputs), inputs.requirement, strict=inputs.domain_strict
        ),
        # With KubeVirt's default, a drain of the host stops the VM and starts it elsewhere. Of a VM
        # with devices, that is all that a drain can do.
        "evictionStrategy": "LiveMigrateIfPossible",
    }


def _domain(machine: Obj, *, grows: bool) -> Obj:
    """Return CPU, memory, devices and firmware of a VM.

    :param machine: the HarvesterMachine
    :param grows: whether CPU and memory can be increased while the VM runs
    """
    spec = machine["spec"]
    disks = [
        _disk(f"disk-{index}", volume.get("bootOrder"))
        for index, volume in enumerate(spec["volumes"])
    ]
    domain: Obj = {
        **(_growing_resources(spec) if grows else _fixed_resources(spec)),
        "devices": {
            "inputs": [{"name": "tablet", "bus": "usb", "type": "tablet"}],
            "interfaces": _interfaces(machine),
            "disks": [*disks, _disk("cloudinitdisk")],
        },
        # KubeVirt up to 1.5 derives the UUID from the VM's name, which a later machine may reuse.
        "firmware": {"uuid": machine["metadata"]["uid"]},
    }

    firmware = spec.get("firmware") or {}
    tpm = spec.get("tpm") or {}
    if firmware.get("efi"):
        is_secure = bool(firmware.get("secureBoot"))
        # Set secureBoot explicitly, because KubeVirt's default is true.
        domain["firmware"]["bootloader"] = {"efi": {"secureBoot": is_secure}}
        if is_secure:
            domain["features"] = {"smm": {"enabled": True}}
    if tpm.get("enabled"):
        domain["devices"]["tpm"] = {"persistent": bool(tpm.get("persistent"))}
    add_host_resources(domain, spec)
    return domain


def _interfaces(machine: Obj) -> list[Obj]:
    """Return the interfaces of a VM. Without MAC addresses, Harvester assigns them."""
    macs = mac_addresses(machine)
    return [
        {
            "name": f"nic-{number}",
            "model": "virtio",
            "bridge": {},
            **({"macAddress": macs[number - 1]} if macs else {}),
        }
        for number in range(1, len(machine["spec"]["networks"]) + 1)
    ]


def _fixed_resources(spec: Obj) -> Obj:
    """Return CPU and memory of a VM that only a restart can change."""
    # Several sockets would not do: Harvester 1.6 to 1.8 sets the maximum to one, and KubeVirt
    # refuses a VM with more sockets than the maximum. See docs/adr/0013-sockets.md.
    cores = int(spec["cpu"])
    memory = str(spec["memory"])
    return {
        "cpu": {"cores": cores, "sockets": 1, "threads": 1},
        "memory": {"guest": memory},
        "resources": {
            "requests": {"memory": memory},
            "limits": {"cpu": str(cores), "memory": memory},
        },
    }


def _growing_resources(spec: Obj) -> Obj:
    """Return CPU and memory of a VM that can grow. The limits are its maxima.

    KubeVirt adds sockets to a running VM, but no cores.
    """
    sockets = int(spec["cpu"])
    memory = str(spec["memory"])
    most_sockets = int(spec.get("cpuMax") or sockets)
    most_memory = str(spec.get("memoryMax") or memory)
    # Without `memoryMax` KubeVirt's default maximum applies, as to any other VM.
    maximum = {"maxGuest": most_memory} if spec.get("memoryMax") else {}
    return {
        "cpu": {"cores": 1, "sockets": sockets, "threads": 1, "maxSockets": most_sockets},
        "memory": {"guest": memory, **maximum},
        "resources": {
            "requests": {"memory": most_memory},
            "limits": {"cpu": str(most_sockets), "memory": most_memory},
        },
    }


def _disk(name: str, boot_order: int | None = None) -> Obj:
    disk: Obj = {"name": name, "disk": {"bus": "virtio"}}
    if boot_order:
        disk["bootOrder"] = int(boot_order)
    return disk
