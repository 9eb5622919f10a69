"""CRDs for any content with the plurals that kinds really have."""

from __future__ import annotations

from collections.abc import Iterable

from caphv.api.object import Obj
from tests.support.e2e import crd


def definitions(kinds: Iterable[tuple[str, str, str, str]]) -> list[Obj]:
    """CRDs of kinds: group, version, kind and plural."""
    found = []
    for group, version, kind, plural in kinds:
        definition = crd(group, version, kind)
        definition["metadata"]["name"] = f"{plural}.{group}"
        definition["spec"]["names"]["plural"] = plural
        found.append(definition)
    return found
