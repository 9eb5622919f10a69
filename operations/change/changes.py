"""Changes that a command is going to make, and the checks before them: frozen data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from caphv.api.object import Key, Obj, key_of, text_at
from operations.status.check import Check, Result


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
    """A merge patch of one object, with the object as it was read.

    The patch holds while the object has the same values in the patched fields.
    """

    api_version: str
    kind: str
    key: Key
    body: Obj
    changes: tuple[Change, ...]
    before: Obj = field(default_factory=dict, repr=False, compare=False)

    def holds(self, live: Obj) -> bool:
        """Whether the patched fields are as they were read; the status may differ."""
        return _is_same(self.body, self.before, live)


@dataclass(frozen=True, slots=True)
class Plan:
    """Patches in the order in which they must be made, and the checks before them."""

    cluster: Key
    patches: tuple[Patch, ...] = ()
    checks: tuple[Check, ...] = ()
    pending: tuple[Change, ...] = ()
    """Changes that wait for a current change; the command makes them only with `--wait`."""

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
    return Patch(
        api_version=text_at(obj, "apiVersion"),
        kind=str(obj["kind"]),
        key=key_of(obj),
        body=body,
        changes=tuple(changes),
        before=obj,
    )


def _is_same(body: Obj, before: Obj, live: Obj) -> bool:
    """Whether two versions of an object have equal values in the fields of a patch."""
    for name, value in body.items():
        old = before.get(name)
        new = live.get(name)
        if isinstance(value, dict):
            if not _is_same(value, old or {}, new or {}):
                return False
        elif old != new:
            return False
    return True
