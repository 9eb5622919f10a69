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
    """Return the definition that flags describe. The result is not validated.

    :param values: the texts of the flags, by name of the flag; an empty text counts as no flag
    :param base: the definition of a file, over which flags take precedence; it need not be valid.
        Without a file, the old generator's defaults fill in the fields that no flag sets.
    """
    obj = base if base is not None else {}
    for flag in FLAGS:
        if values.get(flag.name):
            value = flag.value(values[flag.name])
            if flag.merge_field:
                value = _merge_items(at(obj, *flag.path) or [], value, flag.merge_field)
            obj = _set(obj, flag.path, value)
    return obj if base is not None else merge(_defaults(obj), obj)


def _defaults(fields: Obj) -> Obj:
    """Return the old generator's defaults, some of which depend on the fields set by flags."""
    name = at(fields, "metadata", "name")
    delivery = "ClusterResourceSet"
    if "fleet" in fields.get("spec", {}):
        delivery = "Fleet"
    elif at(fields, "spec", "distribution") == "kubeadm":
        delivery = "None"

    secret = {"name": f"{name}-harvester-identity"} if name else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"namespace": name} if name else {},
        "spec": {
            "kubernetesVersion": KUBERNETES_VERSION,
            **({} if at(fields, "spec", "identityRef") else {"identitySecret": secret}),
            "machines": {},
            "addonDelivery": delivery,
        },
    }


def fault_of(flag: Flag, text: str) -> str:
    """Return what the schema refuses in the text of a flag, empty if it accepts the text."""
    # The definition has no other fields, so the schema also reports missing ones.
    for finding in schema.load(SCHEMA).findings(definition_of({flag.name: text}, {})):
        if _is_below(finding.path, flag.path) and finding.fault is not Fault.REQUIRED:
            return finding.detail
    return ""


def flag_of(finding: Finding, values: Mapping[str, str]) -> str:
    """Return the name of the flag that sets the field of a finding, empty if no flag does.

    If several flags set the field, a flag that the user gave is returned.
    """
    flags = [flag for flag in FLAGS if _is_below(finding.path, flag.path)]
    # The longest path comes first: --worker-devices sets a field of the pools, and is closer to a
    # finding about that field than --worker-replicas, which sets the pools.
    flags.sort(key=lambda flag: len(flag.path), reverse=True)
    for flag in flags:
        if values.get(flag.name):
            return flag.name
    return flags[0].name if flags else ""


def _is_below(path: FieldPath, top: FieldPath) -> bool:
    """Return whether a path is `top`, the path of a flag's field, or a path below it."""
    return len(path) >= len(top) and all(
        pattern in (part, EACH) for part, pattern in zip(path, top, strict=False)
    )


def _merge_items(items: Any, flag_items: list[Obj], key: str) -> Any:
    """Return the items of a list, each merged with the flag's item that has the same `key`.

    Items of the flag without a counterpart are appended.

    :param items: the list in the definition; a list of anything but objects is returned unchanged,
        because the schema reports it
    :param flag_items: the items that the flag sets, whose `key` is a text
    :param key: the field that identifies an item, such as `network`
    """
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return items

    # The definition is not validated yet, so the field may hold a value of any type.
    index_of: dict[str, int] = {}
    for index, item in enumerate(items):
        if isinstance(text := item.get(key), str):
            index_of.setdefault(text, index)

    merged = list(items)
    for item in flag_items:
        # Each counterpart is used once. So a flag that names a network twice leaves two items for
        # it, which the rules report, instead of one item with the last value.
        counterpart = index_of.pop(item[key], None)
        if counterpart is None:
            merged.append(item)
        else:
            merged[counterpart] = merged[counterpart] | item
    return merged


def _set(obj: Obj, path: FieldPath, value: Any) -> Obj:
    """Return an object with a value at the path of a flag.

    A path with `EACH` sets the field in all pools of workers, or in a pool with the default name if
    there are none. The schema reports pools that are not objects, so they stay unchanged.
    """
    if EACH not in path:
        return merge(obj, nest(path, value))

    inner = nest(path[path.index(EACH) + 1 :], value)
    pools = at(obj, "spec", "workers") or [{"name": "workers"}]
    if not isinstance(pools, list) or not all(isinstance(pool, dict) for pool in pools):
        return obj
    return merge(obj, {"spec": {"workers": [merge(pool, inner) for pool in pools]}})
