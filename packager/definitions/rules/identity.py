"""Rule about the credentials for Harvester."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj
from caphv.validation.finding import Fault, Finding
from caphv.validation.rule import Rules
from packager.definitions.rules.model import KINDS

RULES = Rules()


@RULES.rule(
    "definition-identity",
    KINDS,
    "Credentials for Harvester must be named once: a Secret in `identitySecret`, or a "
    "HarvesterClusterIdentity in `identityRef`.",
)
def _check_identity(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    if "identitySecret" not in spec and "identityRef" not in spec:
        detail = "must be set: name a Secret, or a HarvesterClusterIdentity in identityRef"
        yield Finding(("spec", "identitySecret"), Fault.REQUIRED, detail)
    if "identitySecret" in spec and "identityRef" in spec:
        detail = "excludes identitySecret: remove one of them"
        yield Finding(("spec", "identityRef"), Fault.FORBIDDEN, detail)
