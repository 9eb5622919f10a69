"""What a rule is, and how it reads an object of whatever shape.

Anything may arrive in a review, so rules read through `Field`, which answers with nothing where there is nothing of the
wanted type: whatever is of the wrong type is reported by the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding

CLUSTER, CLUSTER_TEMPLATE = "HarvesterCluster", "HarvesterClusterTemplate"
MACHINE, MACHINE_TEMPLATE = "HarvesterMachine", "HarvesterMachineTemplate"
CLUSTERS, MACHINES = (CLUSTER, CLUSTER_TEMPLATE), (MACHINE, MACHINE_TEMPLATE)
KINDS = (CLUSTER, CLUSTER_TEMPLATE, MACHINE, MACHINE_TEMPLATE)


class Field:
    """A value and its path; `value` is None where the object has nothing there.

    Dozens of rules read the same fields of an object, so a field keeps those below it. The object must not change.
    """

    __slots__ = ("_below", "_items", "path", "value")

    def __init__(self, value: Any, path: FieldPath) -> None:
        self.value, self.path = value, path
        self._below: dict[str, Field] | None = None
        self._items: Sequence[Field] | None = None

    def at(self, *keys: str) -> Field:
        """Field below this one."""
        found = self
        for key in keys:
            if found._below is None:
                found._below = {}
            below = found._below.get(key)
            if below is None:
                value = found.value.get(key) if isinstance(found.value, dict) else None
                below = found._below[key] = Field(value, (*found.path, key))
            found = below
        return found

    def each(self) -> Sequence[Field]:
        """Items of a list, none for anything else."""
        if self._items is None:
            items = self.value if isinstance(self.value, list) else ()
            self._items = [Field(value, (*self.path, index)) for index, value in enumerate(items)]
        return self._items

    @property
    def text(self) -> str:
        """The string, empty for none."""
        return self.value if isinstance(self.value, str) else ""

    @property
    def number(self) -> int | None:
        """The integer, None for none; JSON writes large ones as fractions."""
        if isinstance(self.value, float) and self.value.is_integer():
            return int(self.value)
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    @property
    def mapping(self) -> Obj:
        """The object, empty for none."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def present(self) -> bool:
        """Whether there is something; the Go provider takes empty strings, lists and objects for nothing."""
        return self.value not in (None, "", [], {})

    def problem(self, fault: Fault, detail: str) -> Finding:
        """Something wrong with this field."""
        return Finding(self.path, fault, detail, value=self.value if fault is not Fault.REQUIRED else None)

    def invalid(self, detail: str) -> Finding:
        """A value that cannot be used."""
        return self.problem(Fault.INVALID, detail)

    def required(self, detail: str) -> Finding:
        """A value that has to be there."""
        return self.problem(Fault.REQUIRED, detail)

    def forbidden(self, detail: str) -> Finding:
        """A field that must not be set as things are."""
        return self.problem(Fault.FORBIDDEN, detail)


@dataclass(frozen=True, slots=True)
class Subject:
    """An object as rules see it: `spec` is that of the cluster or machine, also where it stands in a template.

    `old` is the object before the change, None for one that is new.
    """

    kind: str
    obj: Field
    spec: Field
    old: Subject | None = None
    dry_run: bool = False

    @classmethod
    def of(cls, kind: str, obj: Obj, *, old: Obj | None = None, dry_run: bool = False) -> Subject:
        """Subject for an object of a kind."""
        whole = Field(obj, ())
        spec = (
            whole.at("spec", "template", "spec") if kind in (CLUSTER_TEMPLATE, MACHINE_TEMPLATE) else whole.at("spec")
        )
        return cls(kind, whole, spec, cls.of(kind, old) if old is not None else None, dry_run)

    @property
    def is_template(self) -> bool:
        """Whether it is a template."""
        return self.kind in (CLUSTER_TEMPLATE, MACHINE_TEMPLATE)

    @property
    def annotations(self) -> Obj:
        """Annotations, empty for none."""
        return self.obj.at("metadata", "annotations").mapping


def as_advice(finding: Finding) -> Finding:
    """Return the same finding as a warning."""
    return replace(finding, advice=True)
