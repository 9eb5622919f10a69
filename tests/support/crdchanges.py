"""Changes between two CRDs that may break clients or stored objects: the rules of crdify, in our words.

The rules are those of kubernetes-sigs/crdify, docs/validations.md at 06eb3a2, and its validations of `pattern`,
`format`, `nullable` and CEL rules, which that page does not describe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from caphv.api.object import Obj
from tests.support.openapi import fields

MAXIMA = ("maximum", "maxLength", "maxItems", "maxProperties")
MINIMA = ("minimum", "minLength", "minItems", "minProperties")
SAME = ("default", "type", "pattern", "format", "nullable")


class Break(NamedTuple):
    """An incompatible change: the rule, the version of the CRD, the field, and what was and is there."""

    rule: str
    version: str
    path: str
    old: object = None
    new: object = None


def breaks(old: Obj, new: Obj) -> Iterator[Break]:
    """Find the incompatible changes of a CRD, in all versions that the old one has."""
    if old["spec"]["scope"] != new["spec"]["scope"]:
        yield Break("scope", "", "", old["spec"]["scope"], new["spec"]["scope"])

    schemas = {version["name"]: version for version in new["spec"]["versions"]}
    for version in old["spec"]["versions"]:
        name = version["name"]
        if name not in schemas:
            # Objects that are stored in it could not be read any more.
            yield Break("storedVersionRemoval", name, "")
            continue
        if version["served"] and not schemas[name]["served"]:
            yield Break("servedVersionRemoval", name, "")

        before, after = (dict(fields(found["schema"]["openAPIV3Schema"])) for found in (version, schemas[name]))
        for path, node in before.items():
            if path not in after:
                yield Break("existingFieldRemoval", name, path)
            else:
                yield from (Break(rule, name, path, *values) for rule, values in _changes(node, after[path]))


def _changes(old: Obj, new: Obj) -> Iterator[tuple[str, tuple[object, object]]]:
    """Find the rules that a change of one field breaks, with the values before and after."""
    for keyword in (*MAXIMA, *MINIMA):
        before, after = old.get(keyword), new.get(keyword)
        if after is None or before == after:
            continue
        if before is None or (after < before if keyword in MAXIMA else after > before):
            yield keyword, (before, after)

    for keyword in SAME:
        if old.get(keyword) != new.get(keyword):
            yield keyword, (old.get(keyword), new.get(keyword))

    if added := sorted(set(new.get("required", ())) - set(old.get("required", ()))):
        yield "required", ([], added)

    before, after = old.get("enum"), new.get("enum")
    if after is not None and (before is None or set(before) - set(after)):
        yield "enum", (before, after)
    elif before is not None and set(after or ()) != set(before):
        # Clients that know all values meet one that they do not know.
        yield "enumAddition", (before, after)

    rules = [{rule["rule"] for rule in node.get("x-kubernetes-validations", ())} for node in (old, new)]
    if rules[1] - rules[0]:
        yield "x-kubernetes-validations", (sorted(rules[0]), sorted(rules[1] - rules[0]))
