"""VMs of the records of Harvester's and KubeVirt's admission, as they were given to the programs and as they became."""

from __future__ import annotations

import copy
from typing import Any

from caphv.api.object import Obj
from tests.support.observed import Record


def merged(target: Any, patch: Obj) -> Obj:
    """Return an object with a JSON merge patch applied."""
    result = copy.deepcopy(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value) if isinstance(value, dict) else copy.deepcopy(value)
    return result


def given_vm(records: dict[str, Record], record: Record) -> Obj:
    """Return the VM of a request: a new one, or one after a change."""
    if "before" in record.input:
        return merged(vm_before(records, record), record.input["change"])
    return merged(records["plain"].input["vm"], record.input.get("change") or {})


def vm_before(records: dict[str, Record], record: Record) -> Obj | None:
    """Return the VM before a change, None for a new one."""
    if "before" not in record.input:
        return None
    return merged(records["label-changed"].input["stored"], record.input["before"])


def admitted_vm(records: dict[str, Record], record: Record) -> Obj:
    """Return the VM that was admitted."""
    vm = copy.deepcopy(given_vm(records, record))
    if "changed" in record.outcome:
        return merged(vm, record.outcome["changed"])
    for operation in patch_of(records, record):
        _apply(vm, operation)
    return vm


def patch_of(records: dict[str, Record], record: Record) -> list[Obj]:
    """Return the operations of the JSON patch of an admitted VM."""
    own: list[Obj] = record.outcome.get("patch") or []
    if "like" not in record.outcome:
        return own

    left_out = {*record.outcome.get("without", ()), *(operation["path"] for operation in own)}
    like = patch_of(records, records[record.outcome["like"]])
    return [*(operation for operation in like if operation["path"] not in left_out), *own]


def _apply(vm: Obj, operation: Obj) -> None:
    """Apply one operation of a JSON patch. As in the API server, `replace` also adds."""
    parent: Any = vm
    *path, last = operation["path"].strip("/").split("/")
    for name in path:
        parent = parent[int(name)] if isinstance(parent, list) else parent.setdefault(name, {})
    if operation["op"] == "remove":
        parent.pop(last, None)
    else:
        parent[last] = copy.deepcopy(operation["value"])
