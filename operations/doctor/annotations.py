"""Check for annotations below `caphv.io` that have no effect, or that are easily forgotten."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from caphv.api import names, remedies
from caphv.api.object import Obj, annotations_of, being_deleted, key_of
from operations.read.objects import condition_of
from operations.status.check import Check, Result

# The domain may also end a longer one, as in the provider's labels on Harvester.
_DOMAIN = "caphv.io/"
KNOWN = frozenset(
    value
    for value in vars(names).values()
    if isinstance(value, str) and value.rpartition("/")[0].endswith("caphv.io")
)
"""All annotations and labels that have an effect."""


def checks(objs: Iterable[Obj]) -> Iterator[Check]:
    """Yield checks of Clusters, HarvesterClusters and HarvesterMachines."""
    for obj in objs:
        subject = f"{obj['kind']} {key_of(obj)}"
        annotations = annotations_of(obj)

        for name in sorted(annotations):
            if _DOMAIN in name and name not in KNOWN:
                similar = difflib.get_close_matches(name, sorted(KNOWN), n=1)
                hint = f"Did you mean {similar[0]}? " if similar else ""
                message = f"annotation {name} has no effect"
                remedy = f"{hint}Remove it: {_removal_command(obj, name)}"
                yield Check("annotations", subject, Result.WARNING, message=message, remedy=remedy)

        # Both annotations are meant for one operation, and are dangerous afterwards.
        if annotations.get(names.FORCE_DELETE_ANNOTATION) == "true" and not being_deleted(obj):
            message = (
                "a later deletion would leave VMs on a Harvester that does not answer: "
                "force-delete is set"
            )
            remedy = f"Remove it: {_removal_command(obj, names.FORCE_DELETE_ANNOTATION)}"
            yield Check("annotations", subject, Result.WARNING, message=message, remedy=remedy)

        ready = condition_of(obj, "Ready").get("status") == "True"
        if annotations.get(names.ADOPT_ANNOTATION) == "true" and ready and not being_deleted(obj):
            message = (
                "it may adopt objects of other owners: adopt is still set, although everything is "
                "adopted"
            )
            remedy = f"Remove it: {_removal_command(obj, names.ADOPT_ANNOTATION)}"
            yield Check("annotations", subject, Result.WARNING, message=message, remedy=remedy)


def _removal_command(obj: Obj, name: str) -> str:
    """Return the command that removes an annotation."""
    key = key_of(obj)
    kind = str(obj["kind"]).lower()
    return remedies.REMOVE_ANNOTATION(
        kind=kind, name=key.name, namespace=key.namespace, annotation=name
    )
