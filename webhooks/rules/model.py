"""Read objects of any shape for rules.

Anything may arrive in a review, so rules read objects through `Field`, which returns an empty value
if there is no value of the expected type. The schema reports values of the wrong type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding

CLUSTER = "HarvesterCluster"
CLUSTER_TEMPLATE = "HarvesterClusterTemplate"
MACHINE = "HarvesterMachine"
MACHINE_TEMPLATE = "HarvesterMachineTemplate"
CLUSTER_IDENTITY = "HarvesterClusterIdentity"
CLUSTERS = (CLUSTER, CLUSTER_TEMPLATE)
MACHINES = (MACHINE, MACHINE_TEMPLATE)
KINDS = (CLUSTER, CLUSTER_TEMPLATE, MACHINE, MACHINE_TEMPLATE)


class Field:
    """A value and its path; `value` is None if the object has no value there.

    Dozens of rules read the same fields of an object, so a field keeps the fields below it. The
    object must not change.
    """

    __slots__ = ("_below", "_items", "path", "value")

    def __init__(self, value: Any, path: FieldPath) -> None:
        self.value = value
        self.path = path
        self._below: dict[str, Field] | None = None
        self._items: Sequence[Field] | None = None

    def at(self, *keys: str) -> Field:
        """Return the field at a path below this one, whether or not it has a value."""
        field = self
        for key in keys:
            if field._below is None:
                field._below = {}
            below = field._below.get(key)
            if below is None:
                value = field.value.get(key) if isinstance(field.value, dict) else None
                below = field._below[key] = Field(value, (*field.path, key))
            field = below
        return field

    def each(self) -> Sequence[Field]:
        """Return the items of a list, none for anything else."""
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
        """The integer, None for none. JSON may have large integers as fractions."""
        if isinstance(self.value, float) and self.value.is_integer():
            return int(self.value)
        # In Python, booleans are integers.
        if isinstance(self.value, int) and not isinstance(self.value, bool):
            return self.value
        return None

    @property
    def mapping(self) -> Obj:
        """The object, empty for none."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def present(self) -> bool:
        """Whether the field is set. Empty values count as unset, as with the Go provider."""
        return self.value not in (None, "", [], {})

    def problem(self, fault: Fault, detail: str) -> Finding:
        """Return a finding about this field, which shows its value unless it is missing."""
        value = None if fault is Fault.REQUIRED else self.value
        return Finding(self.path, fault, detail, value=value)

    def invalid(self, detail: str) -> Finding:
        """Return a finding about a value that cannot be used."""
        return self.problem(Fault.INVALID, detail)

    def required(self, detail: str) -> Finding:
        """Return a finding about a value that is missing."""
        return self.problem(Fault.REQUIRED, detail)

    def forbidden(self, detail: str) -> Finding:
        """Return a finding about a field that must not be set, whatever its value."""
        return self.problem(Fault.FORBIDDEN, detail)


@dataclass(frozen=True, slots=True)
class Subject:
    """An object as rules see it. `spec` is the spec of the cluster or machine, also in a template.

    `old` is the object before the change, None for a new object.
    """

    kind: str
    obj: Field
    spec: Field
    old: Subject | None = None
    dry_run: bool = False

    @classmethod
    def of(cls, kind: str, obj: Obj, *, old: Obj | None = None, dry_run: bool = False) -> Subject:
        """Return the subject for an object of a kind."""
        root = Field(obj, ())
        spec = root.at("spec")
        if kind in (CLUSTER_TEMPLATE, MACHINE_TEMPLATE):
            spec = root.at("spec", "template", "spec")
        old_subject = cls.of(kind, old) if old is not None else None
        return cls(kind, root, spec, old_subject, dry_run)

    @property
    def is_template(self) -> bool:
        """Whether the object is a template."""
        return self.kind in (CLUSTER_TEMPLATE, MACHINE_TEMPLATE)

    @property
    def annotations(self) -> Obj:
        """Annotations, empty for none."""
        return self.obj.at("metadata", "annotations").mapping


def as_advice(finding: Finding) -> Finding:
    """Return the same finding as a warning."""
    return replace(finding, advice=True)
