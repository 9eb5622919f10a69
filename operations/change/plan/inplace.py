"""Predict whether Cluster API updates machines in place, by the decision of the extension.

What cannot be known counts as a replacement, for example the gates of providers of control planes.
The exception is Cluster API's own feature gate InPlaceUpdates, which the output names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from caphv.api.livechanges import Policy, live_changes, machine_obstacles
from caphv.api.object import Obj, at, dict_at, labels_of, list_at
from operations.capacity.machinechanges import NO_EXTENSION
from operations.capacity.machinepools import CONTROL_PLANE, Pool
from operations.read.objects import condition_of
from operations.read.selectors import selects

_HOOKS = frozenset({"CanUpdateMachine", "CanUpdateMachineSet", "UpdateMachine"})
# Cluster API appends the name of the ExtensionConfig to the name of a handler.
_HANDLER = "caphv-canupdatemachineset."
# Inputs of a pool that a change of its HarvesterMachineTemplate changes.
_MACHINE = frozenset({"machine", "machine template"})


@dataclass(frozen=True)
class InPlaceUpdates:
    """What decides whether machines of a cluster are updated in place.

    :param policy: the setting of the extension; None if no extension updates the machines
    :param machines: the HarvesterMachines of each pool by its name
    """

    policy: str | None = None
    machines: Mapping[str, Sequence[Obj]] = field(default_factory=dict)

    def obstacles(self, before: Pool, after: Pool) -> tuple[str, ...]:
        """Return the reasons why a change replaces the machines of a pool; empty if in place.

        The answer is `NO_EXTENSION` where no extension updates machines.
        """
        if self.policy is None:
            return NO_EXTENSION
        policy = after.in_place_policy or self.policy
        if policy not in list(Policy):
            return (f"policy {policy} is not known: use {', '.join(Policy)}",)
        if policy == Policy.NEVER:
            return (f"the policy is {policy}",)
        reasons = self._reasons(before, after)
        if reasons and policy == Policy.ONLY:
            return (*reasons, f"the policy is {policy}: Cluster API stops the rollout instead")
        return reasons

    def _reasons(self, before: Pool, after: Pool) -> tuple[str, ...]:
        """Return what keeps the extension from updating the machines of a pool."""
        if after.name == CONTROL_PLANE:
            return ("whether its provider updates control planes in place is not known",)
        if not after.updates_in_place:
            return ("its rollout is not RollingUpdate with maxSurge 0",)

        others = [
            f"{name} changes"
            for name in sorted({*before.inputs, *after.inputs} - _MACHINE)
            if before.inputs.get(name) != after.inputs.get(name)
        ]
        if not before.machine or not after.machine:
            return (*others, "its HarvesterMachineTemplate cannot be read")
        changes = live_changes(before.machine, after.machine)
        machines = self.machines.get(after.name, ())
        obstacles = list(machine_obstacles(machines, changes))
        if unseen := max(0, before.replicas - len(machines)):
            obstacles.append(f"{unseen} of {before.replicas} machines cannot be seen")
        return (*others, *changes.reasons, *obstacles)


def extension_policy(configs: Sequence[Obj], namespace: Obj) -> str | None:
    """Return the policy of the extension that updates the machines of a namespace.

    None if there is none, or not this provider's alone: with a second one, Cluster API stops every
    rollout.
    """
    serving = [
        config
        for config in configs
        if _hooks(config) & _HOOKS
        and selects(dict_at(config, "spec", "namespaceSelector"), labels_of(namespace))
    ]
    if len(serving) != 1:
        return None
    (config,) = serving
    handlers = [str(handler.get("name")) for handler in list_at(config, "status", "handlers")]
    is_ours = any(name.startswith(_HANDLER) for name in handlers)
    if not is_ours or condition_of(config, "Discovered").get("status") != "True":
        return None
    return str(at(config, "spec", "settings", "policy") or Policy.PREFER)


def _hooks(config: Obj) -> set[str]:
    handlers = list_at(config, "status", "handlers")
    return {str(at(handler, "requestHook", "hook")) for handler in handlers}
