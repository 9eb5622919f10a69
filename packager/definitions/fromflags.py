"""Builds a definition from flags of `caphv generate`, and finds the flag of a field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from caphv.api.object import Obj, at
from caphv.validation import schema
from caphv.validation.finding import Fault, FieldPath, Finding
from packager.addons.merge import merge, nest
from packager.definitions.flags import EACH, FLAGS, KUBERNETES_VERSION, Flag
from packager.definitions.model import API_VERSION, KIND, SCHEMA


def definition_of(values: Mapping[str, str], base: Obj | None = None) -> Obj:
    """Return the definition of flags, on top of `base` or of the old generator's defaults.

    `values` are the values of given flags, by flag. The result is not checked.
    """
    obj = base if base is not None else {}
    for flag in FLAGS:
        if values.get(flag.name):
            value = flag.value(values[flag.name])
            if flag.joined_by:
                value = _join_items(at(obj, *flag.path) or [], value, flag.joined_by)
            obj = _set(obj, flag.path, value)
    return obj if base is not None else merge(_defaults(obj), obj)


def _defaults(given: Obj) -> Obj:
    """Return the defaults of the old generator for the given fields."""
    name = at(given, "metadata", "name")
    delivery = "ClusterResourceSet"
    if "fleet" in given.get("spec", {}):
        delivery = "Fleet"
    elif at(given, "spec", "distribution") == "kubeadm":
        delivery = "None"

    secret = {"name": f"{name}-harvester-identity"} if name else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"namespace": name} if name else {},
        "spec": {
            "kubernetesVersion": KUBERNETES_VERSION,
            **({} if at(given, "spec", "identityRef") else {"identitySecret": secret}),
            "machines": {},
            "addonDelivery": delivery,
        },
    }


def fault_of(flag: Flag, text: str) -> str:
    """Return the schema's fault of a single value, empty if there is none."""
    for finding in schema.load(SCHEMA).findings(definition_of({flag.name: text}, {})):
        if _is_below(finding.path, flag.path) and finding.fault is not Fault.REQUIRED:
            return finding.detail
    return ""


def flag_of(finding: Finding, values: Mapping[str, str]) -> str:
    """Return the flag that sets the field of a finding, preferably a given one; empty for none."""
    flags = [flag for flag in FLAGS if _is_below(finding.path, flag.path)]
    # A flag for a field of all pools is closer than the flag for the pools.
    flags.sort(key=lambda flag: len(flag.path), reverse=True)
    for flag in flags:
        if values.get(flag.name):
            return flag.name
    return flags[0].name if flags else ""


def _is_below(path: FieldPath, top: FieldPath) -> bool:
    """Return whether a path is that of a flag's field, or below it."""
    upper = path[: len(top)]
    return len(upper) == len(top) and all(
        pattern in (part, EACH) for part, pattern in zip(upper, top, strict=True)
    )


def _join_items(items: Any, more: list[Obj], key: str) -> Any:
    """Return items of a list with the fields that a flag sets, known by the value of a key.

    A flag that names one twice has two items for it, which rules refuse.
    """
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return items  # the schema reports it
    joined = list(items)
    indices: dict[Any, int] = {}
    for index, item in enumerate(items):
        indices.setdefault(item.get(key), index)
    for item in more:
        if item[key] in indices:
            index = indices.pop(item[key])
            joined[index] = joined[index] | item
        else:
            joined.append(item)
    return joined


def _set(obj: Obj, path: FieldPath, value: Any) -> Obj:
    """Return an object with a value at the path of a flag."""
    if EACH not in path:
        return merge(obj, nest(path, value))
    # The flag sets a field of each pool, or of the default pool if no other flag names pools.
    inner = nest(path[path.index(EACH) + 1 :], value)
    pools = at(obj, "spec", "workers") or [{"name": "workers"}]
    if not isinstance(pools, list) or not all(isinstance(pool, dict) for pool in pools):
        return obj
    return merge(obj, {"spec": {"workers": [merge(pool, inner) for pool in pools]}})
