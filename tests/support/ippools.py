"""IPPools for tests."""

import copy
from typing import Any

from caphv.api.ippool import pool_capacity
from caphv.api.object import Obj


def pool(name: str = "p", *ranges: Obj, allocated: dict[str, str] | None = None, history: Any = None) -> Obj:
    spec = list(ranges) or [
        {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.14", "gateway": "10.0.0.1"}
    ]
    obj: Obj = {"metadata": {"name": name, "resourceVersion": "7"}, "spec": {"ranges": spec}}
    total = pool_capacity(obj)
    used = dict(allocated or {})
    obj["status"] = {"allocated": used, "total": total, "available": total - len(used), "lastAllocated": ""}
    if history:
        obj["status"]["allocatedHistory"] = dict(history)
    return obj


def merge(target: Obj, patch: Obj) -> Obj:
    """Apply a JSON merge patch as an API server does."""
    result = copy.deepcopy(target)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merge(result.get(key) or {}, value)
        else:
            result[key] = value
    return result
