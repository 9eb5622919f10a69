"""Answer the hooks of Cluster API's Runtime SDK for updates in place: pure.

No answer changes anything: the reconciler of machines lets a VM grow as soon as Cluster API has
written the larger size and its annotation. Answers are equal for equal facts, texts included.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from caphv.api import names
from caphv.api.conditions import get_condition
from caphv.api.livechanges import (
    Policy,
    live_changes,
    machine_obstacles,
    other_changes,
)
from caphv.api.names import ConditionType, Reason
from caphv.api.object import Key, Obj, annotations_of, at
from caphv.api.resources import HARVESTER_MACHINE_TEMPLATES, HARVESTER_MACHINES
from reconciler.machine.growth import followed_fields, updated_message
from reconciler.machine.inplace import is_update_in_progress

API_VERSION = "hooks.runtime.cluster.x-k8s.io/v1alpha1"
HANDLER = "caphv"
"""Name of the handlers. Each extension has its own namespace of names."""
DISCOVERY = "Discovery"

_TEMPLATE = ("spec", "template", "spec")
_TIMEOUT_SECONDS = 10
_RETRY_SECONDS = 5
_SETTING = "policy"
# Conditions that say why an update waits, the most specific first.
_WAITS = (
    ConditionType.VM_CAN_GROW,
    ConditionType.VM_UP_TO_DATE,
    ConditionType.READY,
    ConditionType.INFRASTRUCTURE_READY,
)


@dataclass(frozen=True)
class Facts:
    """What the provider knows of machines on the management cluster.

    :param machine: returns the HarvesterMachine of a key, None if there is none
    :param machines_of_set: returns the HarvesterMachines of the MachineSet of a key
    """

    machine: Callable[[Key], Obj | None]
    machines_of_set: Callable[[Key], Collection[Obj]]


Hook = Callable[[Obj, Facts], Obj]


def discover(_request: Obj, _facts: Facts) -> Obj:
    """Name the hooks that this extension serves."""
    handlers = [
        {
            "name": f"{HANDLER}-{hook.lower()}",
            "requestHook": {"apiVersion": API_VERSION, "hook": hook},
            "timeoutSeconds": _TIMEOUT_SECONDS,
            "failurePolicy": "Fail",
        }
        for hook in HOOKS
        if hook != DISCOVERY
    ]
    return {"status": "Success", "handlers": handlers}


def can_update_machine_set(request: Obj, facts: Facts) -> Obj:
    """Say which changes of a MachineDeployment the VMs of a MachineSet can follow."""
    current, desired = _sides(request)
    machine_set = desired.get("machineSet") or {}
    templates = [side.get("infrastructureMachineTemplate") or {} for side in (current, desired)]
    other_reasons = tuple(
        change
        for part, name in (("machineSet", "Machine"), ("bootstrapConfigTemplate", "bootstrap"))
        for change in other_changes(
            at(current, part, *_TEMPLATE) or {}, at(desired, part, *_TEMPLATE) or {}, name
        )
    )
    key = _key(current.get("machineSet") or {})

    decision = _Decision(
        policy=_policy(request, machine_set),
        is_ours=all(item.get("kind") == HARVESTER_MACHINE_TEMPLATES.kind for item in templates),
        current=at(templates[0], *_TEMPLATE) or {},
        desired=at(templates[1], *_TEMPLATE) or {},
        other_reasons=other_reasons,
        machines=lambda: facts.machines_of_set(key),
    )
    return decision.answer("infrastructureMachineTemplatePatch", "/spec/template/spec")


def can_update_machine(request: Obj, facts: Facts) -> Obj:
    """Say which changes of a control plane the VM of one of its machines can follow."""
    current, desired = _sides(request)
    machines = [side.get("infrastructureMachine") or {} for side in (current, desired)]
    other_reasons = tuple(
        change
        for part, name in (("machine", "Machine"), ("bootstrapConfig", "bootstrap"))
        for change in other_changes(
            at(current, part, "spec") or {}, at(desired, part, "spec") or {}, name
        )
    )

    decision = _Decision(
        policy=_policy(request, desired.get("machine") or {}),
        is_ours=all(item.get("kind") == HARVESTER_MACHINES.kind for item in machines),
        current=at(machines[0], "spec") or {},
        desired=at(machines[1], "spec") or {},
        other_reasons=other_reasons,
        # Nothing is known of a machine that is not in the cache yet.
        machines=lambda: [facts.machine(_key(machines[0])) or {}],
    )
    return decision.answer("infrastructureMachinePatch", "/spec")


def update_machine(request: Obj, facts: Facts) -> Obj:
    """Say whether the VM of a machine has followed its spec."""
    desired = at(request, "desired", "infrastructureMachine") or {}
    if desired.get("kind") != HARVESTER_MACHINES.kind:
        return {"status": "Success", "retryAfterSeconds": 0}

    machine = facts.machine(_key(desired))
    conditions = at(machine, "status", "conditions") or []
    message = updated_message(desired.get("spec") or {})
    if machine is not None and _has_followed(machine, desired):
        return {"status": "Success", "message": message, "retryAfterSeconds": 0}

    waiting = _reported_wait(conditions) if _knows_machine(desired, machine) else ""
    return {
        "status": "Success",
        "message": waiting or f"waiting until {message}",
        "retryAfterSeconds": _RETRY_SECONDS,
    }


def _has_followed(machine: Obj, desired: Obj) -> bool:
    """Return whether the VM of a HarvesterMachine is as Cluster API wants it.

    The cached machine may be older than its new spec, and its condition older than the machine.
    """
    conditions = at(machine, "status", "conditions") or []
    up_to_date = get_condition(conditions, ConditionType.VM_UP_TO_DATE) or {}
    is_current = up_to_date.get("observedGeneration") == at(machine, "metadata", "generation")
    if not is_current or not is_update_in_progress(machine):
        return False
    if followed_fields(machine.get("spec") or {}) != followed_fields(desired.get("spec") or {}):
        return False
    return up_to_date.get("status") == "True"


def _knows_machine(desired: Obj, machine: Obj | None) -> bool:
    """Return whether a request proves that its sender may read the HarvesterMachine.

    Anyone can send a request, and messages of conditions are only for readers of the object.
    """
    provider_id = at(machine, "spec", "providerID")
    return bool(provider_id) and at(desired, "spec", "providerID") == provider_id


def _reported_wait(conditions: list[Obj]) -> str:
    """Return the first message that says what a machine waits for; empty without one."""
    up_to_date = get_condition(conditions, ConditionType.VM_UP_TO_DATE) or {}
    # The update itself knows best. A machine that waits for a disk may never be able to grow.
    is_updating = up_to_date.get("reason") == Reason.VM_UPDATING
    kinds = (ConditionType.VM_UP_TO_DATE, *_WAITS) if is_updating else _WAITS
    for kind in kinds:
        condition = get_condition(conditions, kind) or {}
        if condition.get("status", "True") != "True" and condition.get("message"):
            return str(condition["message"])
    return ""


HOOKS: dict[str, Hook] = {
    DISCOVERY: discover,
    "CanUpdateMachine": can_update_machine,
    "CanUpdateMachineSet": can_update_machine_set,
    "UpdateMachine": update_machine,
}


def paths() -> dict[str, str]:
    """Return the hook of each path that Cluster API calls."""
    root = f"/{API_VERSION}"
    return {f"{root}/{DISCOVERY.lower()}": DISCOVERY} | {
        f"{root}/{hook.lower()}/{HANDLER}-{hook.lower()}": hook
        for hook in HOOKS
        if hook != DISCOVERY
    }


def answer(hook: str, request: Obj, facts: Facts) -> Obj:
    """Return the response to a hook."""
    return {
        "apiVersion": API_VERSION,
        "kind": f"{hook}Response",
        **HOOKS[hook](request, facts),
    }


@dataclass(frozen=True)
class _Decision:
    """The facts of one decision.

    :param policy: None if it is not known
    :param is_ours: whether both objects are of this provider
    :param current: the spec that the machines have
    :param desired: the spec that Cluster API wants
    :param other_reasons: changes of other objects, which need another VM
    :param machines: returns the HarvesterMachines; the status of one that is not known is empty
    """

    policy: Policy | None
    is_ours: bool
    current: Obj
    desired: Obj
    other_reasons: tuple[str, ...]
    machines: Callable[[], Collection[Obj]]

    def answer(self, field: str, path: str) -> Obj:
        """Return the answer.

        :param field: name of the patch in the answer
        :param path: JSON pointer to the spec in the object
        """
        if self.policy is None:
            valid = ", ".join(Policy)
            message = f"annotation {names.IN_PLACE_ANNOTATION} or setting {_SETTING}: use {valid}"
            return {"status": "Failure", "message": message}
        if not self.is_ours or self.policy is Policy.NEVER:
            return {"status": "Success"}

        changes = live_changes(self.current, self.desired)
        reasons = (*changes.reasons, *self.other_reasons)
        if changes.live:
            obstacles = machine_obstacles(self.machines(), changes)
            reasons = (*reasons, *obstacles)
        if reasons and self.policy is Policy.ONLY:
            message = f"machines must not be replaced ({Policy.ONLY}): {'; '.join(reasons)}"
            return {"status": "Failure", "message": message}
        if reasons:
            return {"status": "Success", "message": f"machines are replaced: {'; '.join(reasons)}"}
        if not changes.live:
            return {"status": "Success"}

        # A merge patch would leave rules of an affinity that the new one lacks.
        operations = [
            {"op": "remove", "path": f"{path}/{name}"}
            if value is None
            else {"op": "add", "path": f"{path}/{name}", "value": value}
            for name, value in changes.live.items()
        ]
        patch = base64.b64encode(orjson.dumps(operations)).decode()
        return {
            "status": "Success",
            field: {"patchType": "JSONPatch", "patch": patch},
            # A VM that grows keeps running. Releases that do not know the field ignore it.
            "affectsAvailability": False,
        }


class _Sides(NamedTuple):
    """The objects of a request as they are, and as Cluster API wants them."""

    current: Obj
    desired: Obj


def _sides(request: Obj) -> _Sides:
    """Return the objects of a request, empty where they are missing."""
    return _Sides(request.get("current") or {}, request.get("desired") or {})


def _key(obj: Obj) -> Key:
    """Return the key of an object. Unlike `key_of`, accept one without metadata."""
    metadata = obj.get("metadata") or {}
    return Key(str(metadata.get("namespace") or ""), str(metadata.get("name") or ""))


def _policy(request: Obj, obj: Obj) -> Policy | None:
    """Return the policy by the annotation of an object, else by the setting of the extension."""
    setting = (request.get("settings") or {}).get(_SETTING, Policy.PREFER)
    annotations = annotations_of(obj) if obj.get("metadata") else {}
    try:
        return Policy(annotations.get(names.IN_PLACE_ANNOTATION, setting))
    except ValueError:
        return None
