"""Whether a VM shall run, by its run strategy and the requests of users. Pure."""

from __future__ import annotations

from caphv.api.object import Obj, list_at, uid_of
from sandbox.harvester import instances


def wants_to_run(vm: Obj, vmi: Obj | None) -> bool:
    """Return whether a VM shall have a running instance."""
    strategy = run_strategy_of(vm)
    if strategy == "RerunOnFailure":
        return vmi is None or instances.phase_of(vmi) != "Succeeded"
    # With `Manual`, an instance that a user has started keeps running.
    return strategy == "Always" or (strategy == "Manual" and vmi is not None)


def keeps_ended_instance(vm: Obj) -> bool:
    """Return whether an instance that has ended stays, and prevents a new start.

    It does with `RerunOnFailure`. With `Halted`, no instance stays (`syncRunStrategy` in
    pkg/virt-controller/watch/vm/vm.go of kubevirt).
    """
    return run_strategy_of(vm) != "Halted"


def is_restart_requested(vm: Obj, vmi: Obj) -> bool:
    """Return whether a user has requested that an instance stops, and another one starts."""
    requests = list_at(vm, "status", "stateChangeRequests")
    return any((entry["action"], entry.get("uid")) == ("Stop", uid_of(vmi)) for entry in requests)


def run_strategy_of(vm: Obj) -> str:
    """Return the run strategy of a VM."""
    # `running` is the older form of the field.
    fallback = "Always" if vm["spec"].get("running") else "Halted"
    return str(vm["spec"].get("runStrategy") or fallback)
