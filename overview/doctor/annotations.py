"""Checks for annotations below `caphv.io` that have no effect any more, or one that is easily forgotten."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from caphv.api import names, remedies
from caphv.api.object import Obj, annotations_of, being_deleted, key_of
from overview.doctor.model import Check, Result
from overview.objects import condition_of

_DOMAIN = "caphv.io/"
KNOWN = frozenset(
    value for value in vars(names).values() if isinstance(value, str) and value.rpartition("/")[0].endswith("caphv.io")
)
"""All annotations and labels that mean something."""


def checks(objs: Iterable[Obj]) -> Iterator[Check]:
    """Yield checks of Clusters, HarvesterClusters and HarvesterMachines."""
    for obj in objs:
        subject = f"{obj['kind']} {key_of(obj)}"
        notes = annotations_of(obj)
        for name in sorted(notes):
            if _DOMAIN in name and name not in KNOWN:
                similar = difflib.get_close_matches(name, sorted(KNOWN), n=1)
                hint = f"Did you mean {similar[0]}? " if similar else ""
                message = f"annotation {name} has no effect"
                remedy = f"{hint}Remove it: {_annotate(obj, name)}"
                yield Check("annotations", subject, Result.WARNING, message, remedy)
        if notes.get(names.FORCE_DELETE_ANNOTATION) == "true" and not being_deleted(obj):
            message = "a later deletion would leave VMs on a Harvester that does not answer: force-delete is set"
            remedy = f"Remove it: {_annotate(obj, names.FORCE_DELETE_ANNOTATION)}"
            yield Check("annotations", subject, Result.WARNING, message, remedy)
        ready = condition_of(obj, "Ready").get("status") == "True"
        if notes.get(names.ADOPT_ANNOTATION) == "true" and ready and not being_deleted(obj):
            message = "it may adopt objects of other owners: adopt is still set, although everything is adopted"
            remedy = f"Remove it: {_annotate(obj, names.ADOPT_ANNOTATION)}"
            yield Check("annotations", subject, Result.WARNING, message, remedy)


def _annotate(obj: Obj, name: str) -> str:
    key = key_of(obj)
    kind = str(obj["kind"]).lower()
    return remedies.REMOVE_ANNOTATION(kind=kind, name=key.name, namespace=key.namespace, annotation=name)
