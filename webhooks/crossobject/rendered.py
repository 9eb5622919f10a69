"""Check the objects that a ClusterClass creates for a Cluster.

The schema of a variable allows values that the created objects do not allow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

from caphv import data
from caphv.api.names import GROUP, VERSIONS
from caphv.api.object import Obj
from caphv.api.objectid import ObjectId, id_of
from caphv.clusterclass.templates import Class, Part, apply_patches, template_refs, variables_of
from caphv.runtime.text import load_yaml_all
from caphv.validation.finding import FieldPath, Finding, LocatedFinding
from caphv.validation.rule import Rules
from webhooks.admission import Review, validate
from webhooks.crossobject import topology
from webhooks.crossobject.model import Entry, Inventory, Located
from webhooks.rules.model import CLUSTER, MACHINE_TEMPLATE, Field

RULES = Rules()
# A ClusterClass of another form raises one of these errors. Either Cluster API refuses it, or
# extensions create its patches, which cannot be predicted.
_UNPREDICTABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError)
# For a Cluster whose name the API server generates.
_ANY_NAME = "cluster"
_CONTROL_PLANE = f"the {MACHINE_TEMPLATE} of the control plane"


@RULES.rule(
    "topology-objects",
    ("Cluster",),
    "The HarvesterCluster and the HarvesterMachineTemplates that the ClusterClass makes of a "
    "Cluster must follow their rules. The finding is at the variable whose value breaks one; at "
    "`variables` if a missing one may be why. Objects whose patches need what only Cluster API "
    "knows, such as the UID of the Cluster, are not checked.",
    example="variable `ipPoolRef` without `gateway`: machines with addresses of a pool need both",
)
def _objects(inventory: Inventory) -> Iterator[Located]:
    located: list[Located] = []
    for cluster, cluster_class in topology.clusters_with_class(inventory):
        findings = _findings(inventory, cluster, cluster_class)
        located += [LocatedFinding(cluster, finding, cluster_class) for finding in findings]
    if not located:
        return

    # Skip Clusters with a faulty topology, which other rules report.
    reported: set[int] = set()
    for rule in topology.RULES:
        if rule.check:
            reported.update(other.place.index for other in rule.check(inventory))
    yield from (finding for finding in located if finding.place.index not in reported)


def _templates(inventory: Inventory, cluster_class: Entry) -> dict[ObjectId, Obj]:
    """Return the templates of a ClusterClass that are in the inventory or that caphv ships."""
    if cluster_class.index < 0:
        return _shipped_templates(cluster_class.name)

    templates = {}
    for ref in template_refs(cluster_class.obj):
        if entry := inventory.find(ref.kind, ref.namespace, ref.name, ref.group):
            templates[ref] = entry.obj
    return templates


@cache
def _shipped_templates(name: str) -> dict[ObjectId, Obj]:
    """Return the templates of a ClusterClass that caphv ships."""
    path = data.folder("clusterclass") / name / "templates.yaml"
    return {id_of(obj): obj for obj in load_yaml_all(path.read_bytes())}


class _Omission(NamedTuple):
    """The findings about an object without one variable of the Cluster."""

    variable: Field
    findings: Sequence[Finding]


@dataclass(frozen=True, kw_only=True)
class _PlannedObject:
    """An object that a ClusterClass creates for a Cluster.

    :param title: how findings name the object
    :param part: returns the part of the class with the template of the object
    :param cluster: the Cluster, as builtin variables show it
    :param set_variables: the variables that the Cluster sets for the object. Of several with one
        name, the last one counts
    :param builtin: further builtin variables
    """

    title: str
    kind: str
    part: Callable[[], Part]
    cluster_class: Class
    cluster: Obj
    set_variables: Sequence[Field]
    builtin: Obj

    def findings(self, *, without: Field | None = None) -> Sequence[Finding]:
        """Return the findings about the object, optionally without one of the variables."""
        variables = [variable.mapping for variable in self.set_variables if variable != without]
        if without:
            # Use null unless there is another value, because a patch cannot copy a missing
            # variable.
            variables.insert(0, {**without.mapping, "value": None})

        part = self.part()
        spec = apply_patches(self.cluster_class.obj, part, self._variables(variables))
        return self._validate(part, spec)

    def unpatched_findings(self) -> Sequence[Finding]:
        """Return the findings about the template itself, which other rules report."""
        part = self.part()
        return self._validate(part, part.spec)

    def cause(self, finding: Finding) -> Field | None:
        """Return the field of a variable's value that causes a finding, None if no variable does.

        A variable is a cause if the object has no such finding without the variable. Of several
        causes, the one counts whose value the finding shows.
        """
        causes = [
            omission.variable.at("value")
            for omission in self._omissions
            if finding not in omission.findings
        ]
        if finding.value is not None:
            for cause in causes:
                if field := _field_with_value(cause, finding.value):
                    return field
        return _missing_field(causes[0], finding.path) if causes else None

    def may_lack(self, finding: Finding) -> bool:
        """Return whether a field may have no value because a variable has none."""
        if finding.value is not None:
            return False
        definitions = self.cluster_class.obj["spec"].get("variables") or ()
        names = {definition.get("name") for definition in definitions}
        set_names = self._variables([variable.mapping for variable in self.set_variables])
        return not names <= set(set_names)

    def _variables(self, set_variables: Sequence[Obj]) -> Obj:
        """Return the variables by name that patches of the object see, with defaults and builtin.

        :param set_variables: name and value of each variable that the Cluster sets
        """
        variables = variables_of(self.cluster_class.obj, self.cluster, set_variables)
        if self.title != _CONTROL_PLANE:
            # Cluster API provides these only for templates of the control plane.
            variables["builtin"].pop("controlPlane")
        variables["builtin"] |= self.builtin
        return variables

    def _validate(self, part: Part, spec: Obj) -> Sequence[Finding]:
        """Return the findings about the spec, none for an object of another provider."""
        group, _, version = str(part.template.get("apiVersion")).partition("/")
        if group != GROUP or version not in VERSIONS:
            return ()

        obj = {
            "apiVersion": f"{group}/{version}",
            "kind": self.kind,
            "metadata": self.cluster["metadata"],
            "spec": spec if self.kind == CLUSTER else {"template": {"spec": spec}},
        }
        verdict = validate(Review(operation="CREATE", kind=self.kind, version=version, object=obj))
        findings = [*verdict.errors, *verdict.warnings]
        return [finding for finding in findings if finding.path[0] == "spec"]

    @cached_property
    def _omissions(self) -> Sequence[_Omission]:
        """The findings about the object without each of its variables, in turn."""
        omissions = []
        for variable in self.set_variables:
            findings: Sequence[Finding] = ()
            with contextlib.suppress(*_UNPREDICTABLE):
                findings = self.findings(without=variable)
            omissions.append(_Omission(variable, findings))
        return omissions


def _field_with_value(field: Field, value: Any) -> Field | None:
    """Return the first field with a value among this one and all below it, None for none."""
    if field.value == value:
        return field
    for below in field.each() or [field.at(name) for name in field.mapping]:
        if found := _field_with_value(below, value):
            return found
    return None


def _missing_field(value: Field, path: FieldPath) -> Field:
    """Return the field of a variable's value that an object lacks at a path.

    A patch copies the value into the object, at an unknown depth. So the end of the path leads to
    the field in the value, and the longest end that exists there is the right one. Returns the
    value itself if no end exists, because the patch does not copy the value as it is.
    """
    for start in range(1, len(path) - 1):
        *parents, last = path[start:]
        parent: Field | None = value
        for part in parents:
            parent = _below(parent, part) if parent else None
        if parent and parent.mapping and isinstance(last, str):
            return parent.at(last)
    return value


def _below(field: Field, part: str | int) -> Field | None:
    """Return the member of a mapping or list with a name or index, None if there is none."""
    if isinstance(part, str):
        return field.at(part) if part in field.mapping else None
    return field.each()[part] if part < len(field.each()) else None


def _findings(inventory: Inventory, cluster: Entry, cluster_class: Entry) -> Iterator[Finding]:
    """Yield the findings about the objects that a ClusterClass creates for a Cluster.

    A finding is at the variable that causes it, or at all variables if a missing one may cause it.
    """
    try:
        templates = _templates(inventory, cluster_class)
    except _UNPREDICTABLE:
        return

    reported = set()
    for planned in _planned_objects(cluster, cluster_class, Class(cluster_class.obj, templates)):
        try:
            findings = planned.findings()
            unpatched = planned.unpatched_findings()
        except _UNPREDICTABLE:
            continue

        for finding in findings:
            cause = planned.cause(finding)
            # Skip findings without a cause, which are faults of the class or of the prediction.
            if cause is None and (finding in unpatched or not planned.may_lack(finding)):
                continue

            path = cause.path if cause else ("spec", "topology", "variables")
            # Report only the first of several machines that share a variable.
            key = path, finding.path, finding.detail
            if key not in reported:
                reported.add(key)
                detail = f"{finding.detail} ({finding.field} of {planned.title})"
                yield replace(finding, path=path, detail=detail)


def _planned_objects(
    cluster: Entry, class_entry: Entry, cluster_class: Class
) -> Iterator[_PlannedObject]:
    """Yield the HarvesterCluster and the machine templates of a topology."""
    topology_field = cluster.field.at("spec", "topology")
    spec = class_entry.field.at("spec")
    version = topology_field.at("version").text
    control_plane = topology_field.at("controlPlane")
    replicas = control_plane.at("replicas").number
    topology_facts = {"version": version, "controlPlane": {"replicas": replicas}}
    cluster_facts = {
        "metadata": {"namespace": cluster.namespace, "name": cluster.name or _ANY_NAME},
        "spec": {"topology": topology_facts},
    }

    def plan(
        title: str,
        kind: str,
        infrastructure: Field,
        set_variables: Sequence[Field],
        worker: str = "",
        **builtin: Any,
    ) -> _PlannedObject:
        """Return an object from the template that a field of the class refers to."""
        role = "infrastructure" if kind == CLUSTER else "machine"

        def part() -> Part:
            return cluster_class.part(role, infrastructure.mapping, worker)

        return _PlannedObject(
            title=title,
            kind=kind,
            part=part,
            cluster_class=cluster_class,
            cluster=cluster_facts,
            set_variables=set_variables,
            builtin=builtin,
        )

    common = topology_field.at("variables").each()
    yield plan("the HarvesterCluster", CLUSTER, spec.at("infrastructure"), common)

    infrastructure = spec.at("controlPlane", "machineInfrastructure")
    set_variables = [*common, *_overrides(control_plane)]
    yield plan(_CONTROL_PLANE, MACHINE_TEMPLATE, infrastructure, set_variables)

    worker_classes = {
        worker_class.at("class").text: worker_class
        for worker_class in spec.at("workers", "machineDeployments").each()
    }
    for deployment in topology_field.at("workers", "machineDeployments").each():
        worker = deployment.at("class").text
        name = deployment.at("name").text
        builtin = {
            "class": worker,
            "topologyName": name,
            "version": version,
            "replicas": deployment.at("replicas").number,
        }
        worker_class = worker_classes.get(worker, Field(None, ()))
        infrastructure = worker_class.at("infrastructure")
        if not infrastructure.present:
            # v1beta1 has the templates one level deeper.
            infrastructure = worker_class.at("template", "infrastructure")

        yield plan(
            f"the {MACHINE_TEMPLATE} of MachineDeployment {name}",
            MACHINE_TEMPLATE,
            infrastructure,
            [*common, *_overrides(deployment)],
            worker,
            machineDeployment=builtin,
        )


def _overrides(pool: Field) -> Sequence[Field]:
    """Return the variables that a topology sets for its control plane or one MachineDeployment."""
    return pool.at("variables", "overrides").each()
