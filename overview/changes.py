"""What a command is going to change on the management cluster, and what prevents it: frozen data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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
    """A merge patch of one object, with the object as it was read: it holds while the fields of the patch are equal."""

    api_version: str
    kind: str
    key: Key
    body: Obj
    changes: tuple[Change, ...]
    before: Obj = field(default_factory=dict, repr=False, compare=False)

    def holds(self, now: Obj) -> bool:
        """Whether the fields that it changes are as they were read; others, such as the status, may differ."""
        return _same(self.body, self.before, now)


@dataclass(frozen=True, slots=True)
class Plan:
    """Patches in the order in which they have to be made, and the checks that were made before."""

    cluster: Key
    patches: tuple[Patch, ...] = ()
    checks: tuple[Check, ...] = ()
    pending: tuple[Change, ...] = ()
    """Changes that have to wait for what is under way; with `--wait` the command makes them, too."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """All changes."""
        return tuple(change for patch in self.patches for change in patch.changes)

    @property
    def errors(self) -> tuple[Check, ...]:
        """Checks that forbid the change."""
        return tuple(check for check in self.checks if check.result is Result.ERROR)


def patch_of(obj: Obj, body: Obj, changes: Iterable[Change]) -> Patch:
    """Return the patch of an object that was read."""
    return Patch(str(obj.get("apiVersion") or ""), str(obj["kind"]), key_of(obj), body, tuple(changes), obj)


def _same(body: Obj, before: Obj, now: Obj) -> bool:
    for name, value in body.items():
        one, other = before.get(name), now.get(name)
        if isinstance(value, dict):
            if not _same(value, one or {}, other or {}):
                return False
        elif one != other:
            return False
    return True
