"""Rules about the names of worker pools."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.definitions.rules.model import KINDS

RULES = Rules()


@RULES.rule("definition-pool-name", KINDS, "Worker pool names must be unique.")
def _check_pool_names(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    seen: set[str] = set()
    for index, pool in enumerate(spec.get("workers", ())):
        if pool["name"] in seen:
            path: FieldPath = ("spec", "workers", index, "name")
            detail = "worker pool names must be unique: rename one"
            yield Finding(path, Fault.DUPLICATE, detail, value=pool["name"])
        seen.add(pool["name"])
