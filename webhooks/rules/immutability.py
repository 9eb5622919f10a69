"""Rules about fields that must not change.

They compare an object with its state before the change, so they report nothing about a new object.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caphv.api import names
from caphv.api.quantity import quantity
from caphv.api.vmdifferences import names_field
from caphv.validation.finding import Finding
from caphv.validation.rule import Rules
from webhooks.rules.cluster import API_PORT, UNSET_HOST, has_external_endpoint
from webhooks.rules.model import (
    CLUSTER,
    CLUSTER_TEMPLATE,
    MACHINE,
    MACHINE_TEMPLATE,
    Field,
    Subject,
    as_advice,
)

RULES = Rules()

# By a request with this annotation, Cluster API's topology controller asks whether a template has
# to be replaced.
_TOPOLOGY_DRY_RUN = "topology.cluster.x-k8s.io/dry-run"
_LIVE_FIELDS = (
    "cpu",
    "cpuMax",
    "memory",
    "memoryMax",
    "volumes",
    "networks",
    "networkConfig",
    "vmNetworkConfig",
    "networkInterfaces",
    "firmware",
    "tpm",
    "devices",
    "cpuPinning",
    "isolateEmulatorThread",
    "numaPassthrough",
    "hugepages",
    "failureDomain",
    "nodeAffinity",
    "workloadAffinity",
    "sshUser",
    "sshKeyPair",
    "guestConfig",
)
# Switches, which are off without a value.
_SWITCHES = frozenset({"cpuPinning", "isolateEmulatorThread", "numaPassthrough"})
_QUANTITIES = frozenset({"memory", "memoryMax", "volumeSize"})


@RULES.rule(
    "template-immutable",
    (CLUSTER_TEMPLATE, MACHINE_TEMPLATE),
    "Templates must not change: a change would not reach existing machines. Create a new template "
    "and reference it.",
    "spec.template.spec",
    before="cpu: 4",
    example="cpu: 8",
)
def _template_immutable(subject: Subject) -> Iterator[Finding]:
    if subject.old is None or (subject.dry_run and _TOPOLOGY_DRY_RUN in subject.annotations):
        return
    if not _same(subject.spec.value, subject.old.spec.value):
        yield subject.spec.forbidden("is immutable: create one of another name, and reference that")


@RULES.rule(
    "target-namespace-immutable",
    (CLUSTER,),
    "`targetNamespace` must not change: the VMs of the cluster are in it.",
    "targetNamespace",
    before="targetNamespace: demo",
    example="targetNamespace: production",
)
def _target_namespace_immutable(subject: Subject) -> Iterator[Finding]:
    if subject.old is None:
        return

    new = subject.spec.at("targetNamespace")
    old = subject.old.spec.at("targetNamespace")
    if old.text and new.value != old.value:
        yield new.forbidden(f"is immutable: the cluster's VMs are in {old.text}")


@RULES.rule(
    "endpoint-immutable",
    (CLUSTER,),
    "The endpoint of a provisioned cluster must not change: certificates, kubeconfigs and nodes "
    "use it.",
    "controlPlaneEndpoint",
    before="{controlPlaneEndpoint: {host: 172.17.1.50, port: 6443}, status: {ready: true}}",
    example="controlPlaneEndpoint: {host: 172.17.1.60, port: 6443}",
)
def _endpoint_immutable(subject: Subject) -> Iterator[Finding]:
    if subject.old is None or not _is_provisioned(subject.old):
        return

    new = subject.spec.at("controlPlaneEndpoint")
    old = subject.old.spec.at("controlPlaneEndpoint")
    is_set = old.at("host").text not in ("", UNSET_HOST)
    if is_set and _endpoint(new) != _endpoint(old):
        yield new.forbidden(
            "is immutable once the cluster is provisioned: nodes and kubeconfigs use it"
        )


@RULES.rule(
    "load-balancer-address-source",
    (CLUSTER,),
    "`ipamType` and IPPool of the load balancer must not change once the cluster is provisioned: "
    "its address does not move, so the change is not applied.",
    "loadBalancerConfig.ipamType",
    "loadBalancerConfig.ipPoolRef",
    "vmNetworkConfig",
    before="{loadBalancerConfig: {ipamType: pool, ipPoolRef: lb-a}, status: {ready: true}}",
    example="loadBalancerConfig: {ipamType: pool, ipPoolRef: lb-b}",
    advice=True,
)
def _load_balancer_address_source(subject: Subject) -> Iterator[Finding]:
    old = subject.old
    if old is None or not _is_provisioned(old) or _has_unused_source(old):
        return
    detail = (
        "is not applied: the control plane address does not move; set it back, or create a new "
        "cluster"
    )

    # Rule external-endpoint-immutable refuses such a change.
    if has_external_endpoint(subject.spec) or has_external_endpoint(old.spec):
        return
    ipam_type = subject.spec.at("loadBalancerConfig", "ipamType")
    if ipam_type.value != old.spec.at("loadBalancerConfig", "ipamType").value:
        yield ipam_type.invalid(detail)
        return

    # Setting an empty name is allowed, because the controller itself writes the name of a pool that
    # it has created.
    new_pool = _address_source(subject.spec)
    old_pool = _address_source(old.spec)
    is_changed = new_pool.text.rpartition("/")[2] != old_pool.text.rpartition("/")[2]
    if ipam_type.text == "pool" and old_pool.text and is_changed:
        yield new_pool.invalid(detail)


@RULES.rule(
    "external-endpoint-immutable",
    (CLUSTER,),
    "`ipamType` must not change from or to `none` once the cluster is provisioned: the endpoint "
    "does not move between a load balancer on Harvester and another one.",
    "loadBalancerConfig.ipamType",
    before="{loadBalancerConfig: {ipamType: dhcp}, controlPlaneEndpoint: {host: 172.17.1.50, port: "
    "6443}, status: {ready: true}}",
    example=(
        "{loadBalancerConfig: {ipamType: none}, controlPlaneEndpoint: {host: 172.17.1.50, port: "
        "6443}}"
    ),
)
def _external_endpoint_immutable(subject: Subject) -> Iterator[Finding]:
    old = subject.old
    if old is None or not _is_provisioned(old):
        return
    if has_external_endpoint(subject.spec) != has_external_endpoint(old.spec):
        ipam_type = old.spec.at("loadBalancerConfig", "ipamType")
        yield subject.spec.at("loadBalancerConfig", "ipamType").forbidden(
            f"must not change from {ipam_type.text} once the cluster is provisioned, because the "
            "control plane address does not move: set it back, or create a new cluster"
        )


@RULES.rule(
    "provider-id-immutable",
    (MACHINE,),
    "`providerID` must not change once it is set: Machine and Node carry it, too. The ID that the "
    "controller derived from the VM's UID may be replaced by that of the Node, and another ID by "
    "the one with the VM's UID. Annotation `caphv.io/adopt`, which assigns another VM to a "
    "machine, allows a change.",
    "providerID",
    before='providerID: "harvester://a"',
    example='providerID: "harvester://b"',
)
def _provider_id_immutable(subject: Subject) -> Iterator[Finding]:
    if subject.old is None or names.ADOPT_ANNOTATION in subject.annotations:
        return

    new = subject.spec.at("providerID")
    old = subject.old.spec.at("providerID")
    # The controller writes the Node's ID. After it has derived one from the VM's UID, the cloud
    # provider in the workload cluster may give the Node another one. Once that provider is
    # disabled, the Node may register again with the ID of the VM.
    vm_uid = subject.old.obj.at("status", "virtualMachine", "uid").text
    vm_id = f"{names.PROVIDER_ID_PREFIX}{vm_uid}"
    is_replaced = new.text and vm_uid and vm_id in (old.text, new.text)

    if old.text and new.value != old.value and not is_replaced:
        yield new.forbidden("is immutable once it is set: Machine and Node carry it as well")


@RULES.rule(
    "machine-immutable",
    (MACHINE,),
    "Fields of a machine whose VM exists must not change: nothing would apply the change. "
    "Annotation `caphv.io/adopt`, which assigns another VM to a machine, allows it, and so does "
    "`in-place-updates.internal.cluster.x-k8s.io/update-in-progress`, which Cluster API sets while "
    "a runtime extension updates the machine in place. A dry run is answered with a warning: "
    "control plane providers ask by one whether a machine has to be replaced. A change of a field "
    "that condition `VMUpToDate` names as different is a warning, so that the spec can be made "
    "equal to the VM again.",
    *_LIVE_FIELDS,
    before="{cpu: 2, status: {ready: true}}",
    example="cpu: 4",
)
def _machine_immutable(subject: Subject) -> Iterator[Finding]:
    old = subject.old
    exempting = {names.ADOPT_ANNOTATION, names.UPDATE_IN_PROGRESS_ANNOTATION}
    if old is None or exempting & subject.annotations.keys():
        return
    if not (old.spec.at("providerID").text or _is_provisioned(old) or _has_vm(old)):
        return

    for name in _LIVE_FIELDS:
        new_field = subject.spec.at(name)
        old_field = old.spec.at(name)
        is_set = new_field.present or old_field.present
        # Empty and missing values mean the same (see `present`).
        if not is_set or _same(new_field.value, old_field.value, name):
            continue
        if name in _SWITCHES and not (new_field.value or old_field.value):
            continue
        if name == "devices" and _device_set(new_field.value) == _device_set(old_field.value):
            continue

        # A spec that differs from the VM may be set back to the values of the VM.
        if _differs_from_vm(old, name):
            finding = new_field.forbidden(
                "is not applied to the VM: set what the VM has, as condition VMUpToDate says, or "
                "make a new machine"
            )
            yield as_advice(finding)
        else:
            finding = new_field.forbidden(
                "cannot be changed on a VM that exists: make a new machine, by a new template"
            )
            # The RKE2 control plane provider treats a refusal as an error, and its rollout stops.
            yield as_advice(finding) if subject.dry_run else finding


def _differs_from_vm(subject: Subject, name: str) -> bool:
    """Return whether condition VMUpToDate reports a different field or an invalid spec."""
    condition = _condition(subject, names.ConditionType.VM_UP_TO_DATE)
    if condition.at("status").text != "False":
        return False
    return names_field(condition.at("message").text, name)


def _endpoint(field: Field) -> dict[str, Any]:
    """Return an endpoint with the default port, because the Go provider stored none."""
    return {"port": API_PORT, **field.mapping}


def _address_source(spec: Field) -> Field:
    """Return the load balancer's reference to an IPPool, or the first one of the machines."""
    balancer = spec.at("loadBalancerConfig")
    machines = spec.at("vmNetworkConfig")
    if balancer.at("ipPoolRef").present or balancer.at("ipPool").present:
        return balancer.at("ipPoolRef")
    references = machines.at("ipPoolRefs").each()
    return references[0] if references else machines.at("ipPoolRef")


def _has_unused_source(subject: Subject) -> bool:
    """Return whether the controller reports that it does not apply the source in the spec.

    A further change may be the one that sets the source back.
    """
    ready = _condition(subject, names.ConditionType.LOAD_BALANCER_READY)
    return ready.at("status").text == "True" and ready.at("message").present


def _has_vm(subject: Subject) -> bool:
    """Return whether the VM of a machine was created, even if it does not run yet."""
    created = _condition(subject, names.ConditionType.MACHINE_CREATED)
    vm_uid = subject.obj.at("status", "virtualMachine", "uid")
    return created.at("status").text == "True" or bool(vm_uid.text)


def _condition(subject: Subject, condition_type: str) -> Field:
    """Return a condition by its type. All its fields are absent if there is none."""
    for condition in subject.obj.at("status", "conditions").each():
        if condition.at("type").text == condition_type:
            return condition
    return Field(None, ())


def _is_provisioned(subject: Subject) -> bool:
    """Return whether a cluster or machine was ever provisioned."""
    status = subject.obj.at("status")
    # Contract v1beta2 has the first field, contract v1beta1 the second one.
    provisioned = status.at("initialization", "provisioned")
    ready = status.at("ready")
    return provisioned.value is True or ready.value is True


def _device_set(devices: Any) -> list[Any]:
    """Return devices in a form that is equal if machines have the same ones.

    Their order has no meaning, and one is their default number.
    """
    listed = devices if isinstance(devices, list) else []
    complete = [{"count": 1, **device} if isinstance(device, dict) else device for device in listed]
    return sorted(
        (sorted(device.items()) if isinstance(device, dict) else device for device in complete),
        key=repr,
    )


def _same(new: Any, old: Any, name: str = "") -> bool:
    """Return whether two values of the field with this name are equal, like `4096Mi` and `4Gi`."""
    if new == old:
        return True

    if name in _QUANTITIES and (size := quantity(new)) is not None:
        return size == quantity(old)
    if isinstance(new, dict) and isinstance(old, dict):
        return new.keys() == old.keys() and all(_same(new[key], old[key], key) for key in new)
    if isinstance(new, list) and isinstance(old, list):
        return len(new) == len(old) and all(map(_same, new, old))
    return False
