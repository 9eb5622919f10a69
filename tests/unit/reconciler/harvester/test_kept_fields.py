"""What caches keep of Harvester's objects: all that reconciles read, and as little else as possible."""

from __future__ import annotations

from typing import Any

import pytest

from caphv.api.object import Obj
from reconciler.harvester import slim

pytestmark = pytest.mark.unit

OURS = "management"
METADATA = {"name": "one", "namespace": "vms", "uid": "u", "resourceVersion": "7"}


def vm(cluster: str = OURS, **more: Any) -> Obj:
    notes = {"caphv.io/management-cluster": cluster, "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    metadata = {**METADATA, "annotations": {**notes, "theirs": "x"}, "managedFields": [1], "generation": 3}
    return {"metadata": {**metadata, **more.pop("metadata", {})}, **more}


def test_own_vm_is_kept_but_for_what_no_one_reads() -> None:
    status = {"ready": True, "volumeSnapshotStatuses": [1]}
    found = slim.virtual_machine(vm(spec={"running": True}, status=status), OURS)
    assert found["spec"] == {"running": True}
    assert found["status"] == {"ready": True}
    assert "managedFields" not in found["metadata"]
    assert found["metadata"]["annotations"] == {"caphv.io/management-cluster": OURS, "theirs": "x"}
    assert slim.virtual_machine(vm(), OURS)["status"] == {}


@pytest.mark.parametrize("annotations", [{}, None])
def test_vm_without_a_record_is_not_ours(annotations: Obj | None) -> None:
    assert "status" not in slim.virtual_machine(vm(metadata={"annotations": annotations}, status={"ready": True}), OURS)


def test_of_another_vm_marks_and_claims_are_kept() -> None:
    volumes = [{"name": "a", "persistentVolumeClaim": {"claimName": "disk"}}, {"name": "b", "cloudInitNoCloud": {}}]
    labels = {
        "harvestercluster/machinetype": "controlplane-demo",
        "guestcluster.harvesterhci.io/name": "demo",
        "x": "y",
    }
    template = {"metadata": {"labels": labels}, "spec": {"volumes": volumes, "domain": {}}}
    found = slim.virtual_machine(vm("other", spec={"template": template, "running": True}), OURS)
    marks = {name: value for name, value in labels.items() if name != "x"}
    claims = {"volumes": [{"persistentVolumeClaim": {"claimName": "disk"}}]}
    assert found["spec"] == {"template": {"metadata": {"labels": marks}, "spec": claims}}
    assert found["metadata"] == {
        **METADATA,
        "generation": 3,
        "annotations": {"caphv.io/management-cluster": "other"},
    }
    bare: dict[str, Any]
    for bare in ({}, {"spec": None}, {"spec": {"template": None}}, {"spec": {"template": {"spec": None}}}):
        assert slim.virtual_machine(vm("other", **bare), OURS)["spec"] == {}


def test_instance_keeps_phase_host_addresses_and_conditions() -> None:
    interface = {"name": "nic-1", "interfaceName": "eth0", "ipAddress": "10.0.0.5", "ipAddresses": ["10.0.0.5"]}
    condition = {"type": "Ready", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": "t"}
    kept = {"phase": "Running", "nodeName": "host", "reason": "r"}
    status = {
        **kept,
        "interfaces": [{**interface, "mac": "x"}],
        "conditions": [{**condition, "lastProbeTime": None}],
        "guestOSInfo": {"name": "x"},
    }
    found = slim.instance({"metadata": {**METADATA, "labels": {"caphv.io/cluster": "a.b", "x": "y"}}, "status": status})
    assert found["status"] == {**kept, "interfaces": [interface], "conditions": [condition]}
    assert found["metadata"] == {**METADATA, "labels": {"caphv.io/cluster": "a.b"}}
    assert slim.instance({"metadata": METADATA}) == {"metadata": METADATA, "status": {}}
    assert slim.instance({"metadata": METADATA, "status": {"interfaces": [], "conditions": []}})["status"] == {}


def test_size_is_kept_of_instances_with_marks_only() -> None:
    sizes = {"currentCPUTopology": {"sockets": 4}, "memory": {"guestCurrent": "8Gi"}}
    reported = {
        "currentCPUTopology": {"sockets": 4, "cores": 1},
        "memory": {"guestCurrent": "8Gi", "guestAtBoot": "4Gi"},
    }
    ours = {**METADATA, "labels": {"caphv.io/cluster": "a.b"}}
    assert slim.instance({"metadata": ours, "status": reported})["status"] == sizes
    assert slim.instance({"metadata": METADATA, "status": reported})["status"] == {}


@pytest.mark.parametrize(
    ("status", "kept"),
    [({"phase": "Bound"}, None), ({"phase": "Pending", "x": 1}, {"phase": "Pending"}), ({}, {"phase": ""})],
)
def test_claim_keeps_its_owner_and_its_phase_until_it_is_bound(status: Obj, kept: Obj | None) -> None:
    metadata = {**METADATA, "deletionTimestamp": "t", "annotations": {"caphv.io/owner": "x", "other": "y"}}
    found = slim.claim({"metadata": metadata, "spec": {"storageClassName": "x"}, "status": status})
    assert found["metadata"] == {**METADATA, "deletionTimestamp": "t", "annotations": {"caphv.io/owner": "x"}}
    assert found.get("status") == kept


def test_deployment_keeps_its_conditions() -> None:
    found = slim.deployment({"metadata": METADATA, "status": {"conditions": [1], "replicas": 1}})
    assert found["status"] == {"conditions": [1]}
    assert slim.deployment({"metadata": METADATA})["status"] == {}


def test_host_keeps_whether_vms_may_run_there() -> None:
    annotations = {"harvesterhci.io/maintain-status": "completed", "other": "x"}
    metadata = {**METADATA, "labels": {"zone": "a"}, "annotations": annotations}
    found = slim.host({"metadata": metadata, "spec": {"unschedulable": True, "taints": [1], "podCIDR": "x"}})
    assert found["spec"] == {"unschedulable": True, "taints": [1]}
    assert found["metadata"]["labels"] == {"zone": "a"}
    assert found["metadata"]["annotations"] == {"harvesterhci.io/maintain-status": "completed"}
    assert slim.host({"metadata": METADATA})["spec"] == {"unschedulable": False}


def test_image_keeps_name_source_type_import_and_size() -> None:
    conditions = [{"type": "Imported", "status": "True", "message": "", "x": 1}, {"type": "Initialized"}]
    conditions.append({"type": "RetryLimitExceeded", "status": "False"})
    status = {"storageClassName": "c", "progress": 100, "virtualSize": 5, "size": 1, "conditions": conditions}
    spec = {"displayName": "d", "url": "u", "checksum": "c", "backend": "cdi"}
    metadata = {**METADATA, "labels": {"harvesterhci.io/image-type": "iso", "other": "x"}}
    found = slim.image({"metadata": metadata, "spec": {**spec, "sourceType": "download"}, "status": status})
    assert found["spec"] == spec
    assert found["metadata"]["labels"] == {"harvesterhci.io/image-type": "iso"}
    assert "labels" not in slim.image({"metadata": METADATA})["metadata"]
    imported = [{"type": "Imported", "status": "True", "message": ""}]
    imported.append({"type": "RetryLimitExceeded", "status": "False"})
    assert found["status"] == {"storageClassName": "c", "progress": 100, "virtualSize": 5, "conditions": imported}
    assert slim.image({"metadata": METADATA}) == {"metadata": METADATA, "spec": {}, "status": {"conditions": []}}


def test_key_pair_keeps_the_public_key() -> None:
    found = slim.key_pair({"metadata": METADATA, "spec": {"publicKey": "k"}, "status": {"fingerPrint": "x"}})
    assert found == {"metadata": METADATA, "spec": {"publicKey": "k"}}
