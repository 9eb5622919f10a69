"""What a machine and its VM are made from."""

from __future__ import annotations

from typing import Any

from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner
from reconciler.machine.images import ResolvedImage
from reconciler.machine.vm import VirtualMachineInputs

OWNER = Owner("HarvesterMachine", "ns", "node-1", "uid-1", "mgmt")


IMAGE = ResolvedImage("default", "image-x", "lh-uuid")


def inputs(*, labels: dict[str, str] | None = None, name: str = "node-1", **spec: Any) -> VirtualMachineInputs:
    full = {
        "cpu": 4,
        "memory": "8Gi",
        "sshUser": "sles",
        "sshKeyPair": "default/key",
        "networks": ["default/production", "storage"],
        "volumes": [
            {"volumeType": "image", "imageName": "default/sles", "volumeSize": "40Gi", "bootOrder": 1},
            {"volumeType": "storageClass", "storageClass": "longhorn", "volumeSize": 10737418240},
        ],
        **spec,
    }
    return VirtualMachineInputs(
        machine={"metadata": {"namespace": "ns", "name": name, "uid": "uid-1", "labels": labels or {}}, "spec": full},
        cluster=Key("ns", "prod"),
        target_namespace="target",
        owner=OWNER,
        images={"default/sles": IMAGE},
    )


def machine_spec() -> Obj:
    """The least that a HarvesterMachine needs."""
    return {
        "cpu": 2,
        "memory": "4Gi",
        "sshUser": "sles",
        "sshKeyPair": "default/caphv",
        "networks": ["default/production"],
        "volumes": [{"volumeType": "image", "imageName": "default/sles-15", "volumeSize": "40Gi", "bootOrder": 1}],
    }
