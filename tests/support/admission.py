"""Reviews of objects that are valid."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

from caphv.api.object import Obj
from tests import corpus
from webhooks.admission import Review


@cache
def bases() -> dict[str, Obj]:
    # The first of a kind: it has versions.
    return {case.kind: case.object for case in reversed(corpus.valid()) if case.name.endswith(": base")}


def base(kind: str) -> Obj:
    return copy.deepcopy(bases()[kind])


def spec_of(obj: Obj) -> Obj:
    return obj["spec"]["template"]["spec"] if "template" in obj["spec"] else obj["spec"]


def changed(kind: str, **spec: Any) -> Obj:
    obj = base(kind)
    spec_of(obj).update(spec)
    return obj


def create(obj: Obj) -> Review:
    return Review("CREATE", obj["kind"], "v1beta1", obj)


def update(old: Obj, new: Obj, **options: Any) -> Review:
    return Review("UPDATE", new["kind"], "v1beta1", new, old, **options)
