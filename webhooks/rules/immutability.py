"""Rules about what must not change any more.

They compare with the object before the change, so they find nothing in one that is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from caphv.api import names
from caphv.api.quantity import quantity
from caphv.validation.finding import Finding
from caphv.validation.rule import Rules
from webhooks.rules.cluster import API_PORT, UNSET_HOST
from webhooks.rules.model import CLUSTER, CLUSTER_TEMPLATE, MACHINE, MACHINE_TEMPLATE, Field, Subject, as_advice

RULES = Rules()

# Server side apply of Cluster API's topology controller asks by such a request whether a template has to be replaced.
_TOPOLOGY_DRY_RUN = "topology.cluster.x-k8s.io/dry-run"
_LIVE_FIELDS = (
    "cpu",
    "memory",
    "volumes",
    "networks",
    "networkConfig",
    "vmNetworkConfig",
    "firmware",
    "tpm",
    "failureDomain",
    "nodeAffinity",
    "workloadAffinity",
    "sshUser",
    "sshKeyPair",
    "guestConfig",
)
# How the message of condition VMUpToDate names the fields; what it cannot name has no entry.
_DRIFT = {
    "cpu": ("cores is ", "CPU limit is "),
    "memory": ("memory limit is ",),
    "volumes": ("disks is ",),
    "networks": ("networks is ", "interfaces is "),
    "firmware": ("firmware is ",),
    "tpm": ("TPM is ",),
    "failureDomain": ("nodeAffinity lacks the failure domain",),
    "nodeAffinity": ("nodeAffinity lacks rules",),
    "workloadAffinity": ("podAffinity lacks rules",),
}
_INVALID_SPEC = "the machine's spec is not valid"
_QUANTITIES = frozenset({"memory", "volumeSize"})


@RULES.rule(
    "template-immutable",
    (CLUSTER_TEMPLATE, MACHINE_TEMPLATE),
    "Templates must not change: a change would not reach existing machines. Create a new template and reference it.",
    "spec.template.spec",
    before="cpu: 4",
    example="cpu: 8",
)
def _template_immutable(subject: Subject) -> Iterator[Finding]:
    if subject.old is None or (subject.dry_run and _TOPOLOGY_DRY_RUN in subject.annotations):
        return
    if not _same(subject.spec.value, subject.old.spec.value):
        yield subject.spec.forbidden("is immutable: make a new template and refer to that")


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
    now, before = subject.spec.at("targetNamespace"), subject.old.spec.at("targetNamespace")
    if before.text and now.value != before.value:
        yield now.forbidden(f"is immutable: the cluster's VMs are in {before.text}")


@RULES.rule(
    "endpoint-immutable",
    (CLUSTER,),
    "The endpoint of a provisioned cluster must not change: certificates, kubeconfigs and nodes use it.",
    "controlPlaneEndpoint",
    before="{controlPlaneEndpoint: {host: 172.17.1.50, port: 6443}, status: {ready: true}}",
    example="controlPlaneEndpoint: {host: 172.17.1.60, port: 6443}",
)
def _endpoint_immutable(subject: Subject) -> Iterator[Finding]:
    if subject.old is None or not _provisioned(subject.old):
        return
    now, before = subject.spec.at("controlPlaneEndpoint"), subject.old.spec.at("controlPlaneEndpoint")
    if before.at("host").text not in ("", UNSET_HOST) and _endpoint(now) != _endpoint(before):
        yield now.forbidden("is immutable once the cluster is provisioned: nodes and kubeconfigs use it")


@RULES.rule(
    "load-balancer-address-source",
    (CLUSTER,),
    "`ipamType` and IPPool of the load balancer must not change once the cluster is provisioned: its address does not "
    "move, so the change is not applied.",
    "loadBalancerConfig.ipamType",
    "loadBalancerConfig.ipPoolRef",
    "vmNetworkConfig",
    before="{loadBalancerConfig: {ipamType: pool, ipPoolRef: lb-a}, status: {ready: true}}",
    example="loadBalancerConfig: {ipamType: pool, ipPoolRef: lb-b}",
    advice=True,
)
def _load_balancer_address_source(subject: Subject) -> Iterator[Finding]:
    old = subject.old
    if old is None or not _provisioned(old) or _has_unused_source(old):
        return
    now, before = _address_source(subject.spec), _address_source(old.spec)
    ipam, known = (spec.at("loadBalancerConfig", "ipamType") for spec in (subject.spec, old.spec))
    detail = "is not applied: the control plane address does not move; set it back, or create a new cluster"
    if ipam.value != known.value:
        yield ipam.invalid(detail)
    # The controller itself writes the name of a pool that it has created.
    elif ipam.text == "pool" and before.text and now.text.rpartition("/")[2] != before.text.rpartition("/")[2]:
        yield now.invalid(detail)


@RULES.rule(
    "provider-id-immutable",
    (MACHINE,),
    "`providerID` must not change once it is set: Machine and Node carry it, too. The ID that the controller derived "
    "from the VM's UID may be replaced by that of the Node. Annotation `caphv.io/adopt`, which assigns another VM to "
    "a machine, allows a change.",
    "providerID",
    before='providerID: "harvester://a"',
    example='providerID: "harvester://b"',
)
def _provider_id_immutable(subject: Subject) -> Iterator[Finding]:
    if subject.old is None or names.ADOPT_ANNOTATION in subject.annotations:
        return
    now, before = subject.spec.at("providerID"), subject.old.spec.at("providerID")
    vm = subject.old.obj.at("status", "virtualMachine", "uid").text
    # A cloud provider in the workload cluster may name the Node in its own way after the controller named the VM.
    renamed = now.text and vm and before.text == f"{names.PROVIDER_ID_PREFIX}{vm}"
    if before.text and now.value != before.value and not renamed:
        yield now.forbidden("is immutable once it is set: Machine and Node carry it as well")


@RULES.rule(
    "machine-immutable",
    (MACHINE,),
    "Fields of a machine whose VM exists must not change: nothing would apply the change. Annotation "
    "`caphv.io/adopt`, which assigns another VM to a machine, allows it. A change of a field that "
    "condition `VMUpToDate` names as different is a warning, so that the spec can be made equal to the VM again.",
    *_LIVE_FIELDS,
    before="{cpu: 2, status: {ready: true}}",
    example="cpu: 4",
)
def _machine_immutable(subject: Subject) -> Iterator[Finding]:
    old = subject.old
    if old is None or names.ADOPT_ANNOTATION in subject.annotations:
        return
    if not (old.spec.at("providerID").text or _provisioned(old) or _has_vm(old)):
        return
    for name in _LIVE_FIELDS:
        now, before = subject.spec.at(name), old.spec.at(name)
        if not (now.present or before.present) or _same(now.value, before.value, name):
            continue
        if _differs(old, name):
            detail = (
                "is not applied to the VM: set what the VM has, as condition VMUpToDate says, or make a new machine"
            )
            yield as_advice(now.forbidden(detail))
        else:
            yield now.forbidden("cannot be changed on a VM that exists: make a new machine, by a new template")


def _differs(subject: Subject, name: str) -> bool:
    """Whether condition VMUpToDate says that the VM has another value of a field, or that the spec is not valid."""
    if _condition(subject, names.ConditionType.VM_UP_TO_DATE) != "False":
        return False
    message = _condition(subject, names.ConditionType.VM_UP_TO_DATE, "message")
    return message.startswith(_INVALID_SPEC) or any(each in message for each in _DRIFT.get(name, ()))


def _endpoint(field: Field) -> dict[str, Any]:
    """An endpoint with the port that admission fills in: the Go provider stored some without."""
    return {"port": API_PORT, **field.mapping}


def _address_source(spec: Field) -> Field:
    """The name of the IPPool for the load balancer: its own, else the first of the machines."""
    balancer, machines = spec.at("loadBalancerConfig"), spec.at("vmNetworkConfig")
    if balancer.at("ipPoolRef").present or balancer.at("ipPool").present:
        return balancer.at("ipPoolRef")
    return next(iter(machines.at("ipPoolRefs").each()), machines.at("ipPoolRef"))


def _has_unused_source(subject: Subject) -> bool:
    """Whether the controller reports such a change already: the next one may set it back."""
    conditions = subject.obj.at("status", "conditions").each()
    ready = [each for each in conditions if each.at("type").text == names.ConditionType.LOAD_BALANCER_READY]
    return any(each.at("status").text == "True" and each.at("message").present for each in ready)


def _has_vm(subject: Subject) -> bool:
    """Whether the VM of a machine has been created; it may not run yet."""
    created = _condition(subject, names.ConditionType.MACHINE_CREATED) == "True"
    return created or bool(subject.obj.at("status", "virtualMachine", "uid").text)


def _condition(subject: Subject, wanted: str, member: str = "status") -> str:
    """The status of a condition, or another member, empty for none."""
    conditions = subject.obj.at("status", "conditions").each()
    return next((each.at(member).text for each in conditions if each.at("type").text == wanted), "")


def _provisioned(subject: Subject) -> bool:
    status = subject.obj.at("status")
    return status.at("initialization", "provisioned").value is True or status.at("ready").value is True


def _same(now: Any, before: Any, name: str = "") -> bool:
    """Whether two values mean the same; `4096Mi` is `4Gi`."""
    if now == before:
        return True
    if name in _QUANTITIES and (size := quantity(now)) is not None:
        return size == quantity(before)
    if isinstance(now, dict) and isinstance(before, dict):
        return now.keys() == before.keys() and all(_same(now[key], before[key], key) for key in now)
    if isinstance(now, list) and isinstance(before, list):
        return len(now) == len(before) and all(_same(one, other) for one, other in zip(now, before, strict=True))
    return False
