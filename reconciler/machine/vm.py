"""The VirtualMachine of a HarvesterMachine, exactly as the contract describes it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from caphv.api import names
from caphv.api.object import Key, Obj
from reconciler.harvester.ownership import Owner, record
from reconciler.harvester.storageprofiles import ClaimModes
from reconciler.machine.cloudinit import secret_name
from reconciler.machine.disks import claim, is_machine_pvc, pvc_name, storage_class_of
from reconciler.machine.guestlabels import template_labels, vm_labels
from reconciler.machine.images import ResolvedImage, qualified, resolve_image
from reconciler.machine.placement import (
    CLUSTER_LABEL,
    affinity,
    cluster_label,
    control_plane_selector,
    domain_requirement,
    group_labels,
    label_value,
)
from reconciler.machine.validation import InvalidSpecError, SpecError, spec_errors

__all__ = [
    "RUN_STRATEGY",
    "InvalidSpecError",
    "ResolvedImage",
    "SpecError",
    "VirtualMachineInputs",
    "control_plane_selector",
    "is_machine_pvc",
    "resolve_image",
    "spec_errors",
    "virtual_machine",
]


RUN_STRATEGY = "Always"
"""The VM runs until it is deleted."""


@dataclass(frozen=True)
class VirtualMachineInputs:
    """All a VirtualMachine depends on.

    `machine` is the HarvesterMachine, `cluster` the key of its Cluster, `images` has the image for each `imageName` of
    its volumes that was found, `failure_domains` is the HarvesterCluster's `status.failureDomains`. `domain_strict`
    says whether the failure domain has other hosts to which the VM can migrate. `guest_name_taken` and
    `announces_network` decide on the labels of `reconciler.machine.guestlabels`. `offered` has the modes that a
    StorageClass provides, where they are known.
    """

    machine: Obj
    cluster: Key
    target_namespace: str
    owner: Owner
    images: Mapping[str, ResolvedImage]
    control_plane: bool = False
    failure_domain: str = ""
    failure_domains: Sequence[Obj] = ()
    domain_strict: bool = True
    guest_name_taken: bool = False
    announces_network: bool = True
    offered: Mapping[str, Sequence[ClaimModes]] = field(default_factory=dict)

    @property
    def requirement(self) -> Obj | None:
        """Node selector requirement of the failure domain, None without one."""
        return domain_requirement(self.failure_domain, self.failure_domains)


def virtual_machine(inputs: VirtualMachineInputs) -> Obj:
    """Return the VirtualMachine to create. Raises InvalidSpecError with every field that is wrong."""
    if errors := spec_errors(inputs.machine, inputs.images):
        raise InvalidSpecError(errors)
    name = inputs.machine["metadata"]["name"]
    owned = record(inputs.owner)
    claims = _claims(inputs, owned)
    labels = _labels(inputs)
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
                **owned,
            },
        },
        "spec": {
            "runStrategy": RUN_STRATEGY,
            "template": {
                "metadata": {
                    "labels": _template_labels(inputs, labels),
                    "annotations": _template_annotations(inputs, claims),
                },
                "spec": _instance_spec(inputs, claims),
            },
        },
    }


def _claims(inputs: VirtualMachineInputs, annotations: dict[str, str]) -> list[Obj]:
    metadata = inputs.machine["metadata"]
    claims = []
    for index, volume in enumerate(inputs.machine["spec"]["volumes"]):
        image = inputs.images.get(volume.get("imageName", ""))
        offered = inputs.offered.get(storage_class_of(volume, image) or "", ())
        name = pvc_name(metadata["name"], metadata["uid"], index)
        claims.append(claim(name, volume, image, annotations, offered))
    return claims


def _group(inputs: VirtualMachineInputs) -> dict[str, str]:
    machine_labels = inputs.machine["metadata"].get("labels") or {}
    return group_labels(inputs.cluster, machine_labels, control_plane=inputs.control_plane)


def _labels(inputs: VirtualMachineInputs) -> dict[str, str]:
    name = label_value(inputs.machine["metadata"]["name"])
    return {
        **vm_labels(inputs.cluster, name_taken=inputs.guest_name_taken),
        names.VM_NAME_LABEL: name,
        names.VM_NAME_PREFIX_LABEL: name,
        CLUSTER_LABEL: cluster_label(inputs.cluster),
        **_group(inputs),
    }


def _template_labels(inputs: VirtualMachineInputs, labels: Mapping[str, str]) -> dict[str, str]:
    guest = vm_labels(inputs.cluster, name_taken=inputs.guest_name_taken)
    changes = template_labels(guest, announces_network=inputs.announces_network)
    return {name: value for name, value in {**labels, **changes}.items() if value is not None}


def _template_annotations(inputs: VirtualMachineInputs, claims: Sequence[Obj]) -> dict[str, str]:
    key_pair = inputs.machine["spec"].get("sshKeyPair")
    key_pairs = ["/".join(qualified(key_pair, inputs.target_namespace))] if key_pair else []
    return {
        names.DISK_NAMES_ANNOTATION: json.dumps([claim["metadata"]["name"] for claim in claims]),
        names.SSH_NAMES_ANNOTATION: json.dumps(key_pairs),
        # On workers too, as the Go provider has it; only the label says what is a control plane.
        names.MACHINE_TYPE_LABEL: control_plane_selector(inputs.cluster.name),
    }


def _instance_spec(inputs: VirtualMachineInputs, claims: Sequence[Obj]) -> Obj:
    spec = inputs.machine["spec"]
    secret = {"name": secret_name(inputs.machine["metadata"]["name"])}
    volumes: list[Obj] = [
        {"name": f"disk-{index}", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
        for index, claim in enumerate(claims)
    ]
    volumes.append(
        {"name": "cloudinitdisk", "cloudInitNoCloud": {"secretRef": secret, "networkDataSecretRef": dict(secret)}}
    )
    return {
        "hostname": inputs.machine["metadata"]["name"],
        "networks": [
            # Harvester 1.5 and later look a bare name up in namespace `default` as well, and deny the VM.
            {"name": f"nic-{number}", "multus": {"networkName": "/".join(qualified(network, inputs.target_namespace))}}
            for number, network in enumerate(spec["networks"], start=1)
        ],
        "volumes": volumes,
        "domain": _domain(spec, inputs.machine["metadata"]["uid"]),
        "affinity": affinity(spec, _group(inputs), inputs.requirement, strict=inputs.domain_strict),
        # KubeVirt's default stops the VM when its host is drained, and starts it elsewhere.
        "evictionStrategy": "LiveMigrateIfPossible",
    }


def _domain(spec: Obj, uid: str) -> Obj:
    cores, memory = int(spec["cpu"]), str(spec["memory"])
    domain: Obj = {
        "cpu": {"cores": cores, "sockets": 1, "threads": 1},
        "memory": {"guest": memory},
        "resources": {"requests": {"memory": memory}, "limits": {"cpu": str(cores), "memory": memory}},
        "devices": {
            "inputs": [{"name": "tablet", "bus": "usb", "type": "tablet"}],
            "interfaces": [
                {"name": f"nic-{number}", "model": "virtio", "bridge": {}}
                for number in range(1, len(spec["networks"]) + 1)
            ],
            "disks": [
                *(_disk(f"disk-{index}", volume.get("bootOrder")) for index, volume in enumerate(spec["volumes"])),
                _disk("cloudinitdisk"),
            ],
        },
        # KubeVirt up to 1.5 derives it from the VM's name, which a later machine may have.
        "firmware": {"uuid": uid},
    }
    firmware, tpm = spec.get("firmware") or {}, spec.get("tpm") or {}
    if firmware.get("efi"):
        secure = bool(firmware.get("secureBoot"))
        # Explicit, because KubeVirt takes an absent secureBoot for true.
        domain["firmware"]["bootloader"] = {"efi": {"secureBoot": secure}}
        if secure:
            domain["features"] = {"smm": {"enabled": True}}
    if tpm.get("enabled"):
        domain["devices"]["tpm"] = {"persistent": bool(tpm.get("persistent"))}
    return domain


def _disk(name: str, boot_order: int | None = None) -> Obj:
    disk: Obj = {"name": name, "disk": {"bus": "virtio"}}
    return {**disk, "bootOrder": int(boot_order)} if boot_order else disk
