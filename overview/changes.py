"""What a command is going to change on the management cluster, and what speaks against it: frozen data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from caphv.api.object import Key, Obj, key_of
from overview.doctor.model import Check, Result


class ChangeError(ValueError):
    """A change that cannot be made; `problems` has all reasons, each with a remedy."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


@dataclass(frozen=True, slots=True)
class Change:
    """A field of an object that is to get another value."""

    object: str
    field: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Patch:
    """A merge patch of one object in the version in which it was read; its resourceVersion is the precondition."""

    api_version: str
    kind: str
    key: Key
    body: Obj
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Patches in the order in which they have to be made, and the checks that were made before."""

    cluster: Key
    patches: tuple[Patch, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes."""
        return tuple(change for patch in self.patches for change in patch.changes)

    @property
    def errors(self) -> tuple[Check, ...]:
        """Checks that forbid the change."""
        return tuple(check for check in self.checks if check.result is Result.ERROR)


def patch_of(obj: Obj, body: Obj, changes: Iterable[Change]) -> Patch:
    """Return the patch of an object that holds only for the version that was read."""
    version = obj["metadata"].get("resourceVersion")
    metadata = {"metadata": {"resourceVersion": version}} if version else {}
    return Patch(str(obj.get("apiVersion") or ""), str(obj["kind"]), key_of(obj), {**metadata, **body}, tuple(changes))
