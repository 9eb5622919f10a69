"""Whether a running VM can get more CPUs and memory, and what it lacks: pure.

KubeVirt adds sockets and memory up to the maxima of the VM, by a live migration. All else in a VM
needs a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import orjson

from caphv.api.conditions import get_condition
from caphv.api.hosts import accepts_machines
from caphv.api.object import Obj, at, dict_at, list_at
from caphv.api.quantity import quantity
from reconciler.machine.placement import admits_host, as_harvester_keeps
from reconciler.machine.vm import can_grow

_AFFINITIES = ("nodeAffinity", "workloadAffinity")
_MAX_RULES_BYTES = 16 * 1024
_DOMAIN = ("spec", "template", "spec", "domain")


def growth_obstacle(vm: Obj, vmi: Obj | None, hosts: Iterable[Obj]) -> str:
    """Return why a VM cannot grow while it runs; empty if it can.

    :param vm: the VM of a machine with maxima
    :param vmi: its instance, None if it does not run
    :param hosts: Nodes of Harvester
    """
    if not can_grow(vm):
        return "it was created without maxima, or where VMs cannot grow: replace the machine"
    if vmi is None:
        return "it does not run: start it on Harvester"

    if restart := restart_obstacle(vm):
        return restart
    migratable = _condition(vmi, "LiveMigratable")
    if migratable.get("status") == "False":
        return (
            "it cannot migrate, which is how it gets its new size "
            f"({migratable.get('message', '')}): correct that on Harvester, or replace the machine"
        )
    if not _has_target(vm, vmi, hosts):
        return (
            "Harvester has no other host that accepts VMs and that the VM's affinity allows: "
            "uncordon a host, or relax the affinity"
        )
    return ""


def restart_obstacle(vm: Obj) -> str:
    """Return that a VM has to be restarted before it can change; empty if it need not be."""
    condition = _condition(vm, "RestartRequired")
    if condition.get("status") != "True":
        return ""
    text = condition.get("message", "")
    return f"a change needs a restart first ({text}): restart the VM on Harvester"


def growth_patch(vm: Obj, expected: Obj) -> Obj:
    """Return the merge patch that lets a VM grow; empty if it is as large as expected.

    Never makes a VM smaller, because that needs a restart.

    :param expected: the VM of the machine's spec
    """
    domain: Obj = {}
    sockets = at(expected, *_DOMAIN, "cpu", "sockets")
    if sockets > (at(vm, *_DOMAIN, "cpu", "sockets") or 1):
        domain["cpu"] = {"sockets": sockets}

    # Harvester itself may take from the memory of a guest that cannot grow.
    memory = at(expected, *_DOMAIN, "memory", "guest")
    if can_grow(vm) and _bytes(memory) > _bytes(at(vm, *_DOMAIN, "memory", "guest")):
        domain["memory"] = {"guest": memory}
    return {"spec": {"template": {"spec": {"domain": domain}}}} if domain else {}


def is_growing(vm: Obj, vmi: Obj | None) -> bool:
    """Return whether the instance has less than its VM, because it has not migrated yet."""
    sockets = at(vmi, "status", "currentCPUTopology", "sockets")
    if sockets != (at(vm, *_DOMAIN, "cpu", "sockets") or 1):
        return True
    # Only the guest of a VM with a maximum reports memory that was added.
    if not at(vm, *_DOMAIN, "memory", "maxGuest"):
        return False
    memory = at(vmi, "status", "memory", "guestCurrent")
    return _bytes(memory) < _bytes(at(vm, *_DOMAIN, "memory", "guest"))


def growth_fields(obj: Obj) -> list[object]:
    """Return the fields of the status of a VM or its instance on which these functions depend."""
    return [
        at(obj, "status", "currentCPUTopology", "sockets"),
        at(obj, "status", "memory", "guestCurrent"),
        _condition(obj, "RestartRequired").get("status"),
        _condition(obj, "LiveMigratable").get("status"),
    ]


def describe_size(spec: Obj) -> str:
    """Return CPU and memory of a HarvesterMachine in words."""
    return f"{spec.get('cpu')} CPUs and {spec.get('memory')} of memory"


def followed_fields(spec: Obj) -> Obj:
    """Return the values of a machine's spec that a running VM follows."""
    return {
        "cpu": str(spec.get("cpu")),
        "memory": str(spec.get("memory")),
        "volumes": [str(volume.get("volumeSize")) for volume in spec.get("volumes") or ()],
        "affinities": {name: spec[name] for name in _AFFINITIES if spec.get(name)},
    }


def updated_message(spec: Obj) -> str:
    """Return the message of condition `VMUpToDate` once an update in place is complete.

    It differs for specs that differ in a field that a running VM follows.
    """
    fields = followed_fields(spec)
    parts = [f"{fields['cpu']} CPUs", f"{fields['memory']} of memory"]
    if sizes := fields["volumes"]:
        parts.append(f"disks of {' and '.join(sizes)}")
    if rules := fields["affinities"]:
        digest = hashlib.sha256(orjson.dumps(rules, option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]
        parts.append(f"affinity {digest}")
    return f"the VM has {', '.join(parts)}"


def _has_target(vm: Obj, vmi: Obj, hosts: Iterable[Obj]) -> bool:
    """Return whether a VM could migrate to a host, as far as its rules about hosts say."""
    source = at(vmi, "status", "nodeName")
    rules = dict_at(vm, "spec", "template", "spec", "affinity", "nodeAffinity")
    # A hostile Harvester must not make the comparison with all its hosts expensive.
    rules = as_harvester_keeps(rules) if len(orjson.dumps(rules)) <= _MAX_RULES_BYTES else {}
    return any(
        host["metadata"]["name"] != source and accepts_machines(host) and admits_host(rules, host)
        for host in hosts
    )


def _condition(obj: Obj, kind: str) -> Obj:
    return get_condition(list_at(obj, "status", "conditions"), kind) or {}


def _bytes(size: object) -> float:
    return float(quantity(size) or 0)
