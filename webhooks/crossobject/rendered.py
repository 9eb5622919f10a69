"""What a ClusterClass makes of a Cluster: the schema of a variable allows more than the objects made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from caphv import data
from caphv.api.names import GROUP, VERSIONS
from caphv.api.object import Obj
from caphv.api.objectid import ObjectId, id_of
from caphv.clusterclass.templates import Class, Part, patched, template_refs, variables_of
from caphv.runtime.text import load_yaml_all
from caphv.validation.finding import FieldPath, Finding, LocatedFinding
from caphv.validation.rule import Rules
from webhooks.admission import Review, validate
from webhooks.crossobject import topology
from webhooks.crossobject.model import Entry, Inventory, Located
from webhooks.rules.model import CLUSTER, MACHINE_TEMPLATE, Field

RULES = Rules()
# A ClusterClass of another form raises them: Cluster API refuses it, and patches by extensions cannot be predicted.
_UNKNOWN = (ValueError, KeyError, IndexError, TypeError, AttributeError)
# Of a Cluster whose name the API server generates.
_ANY_NAME = "cluster"
_CONTROL_PLANE = f"the {MACHINE_TEMPLATE} of the control plane"


@RULES.rule(
    "topology-objects",
    ("Cluster",),
    "The HarvesterCluster and the HarvesterMachineTemplates that the ClusterClass makes of a Cluster must follow their "
    "rules. The finding is at the variable whose value breaks one; at `variables` if a missing one may be why. Objects "
    "whose patches need what only Cluster API knows, such as the UID of the Cluster, are not checked.",
    example="variable `ipPoolRef` without `gateway`: machines with addresses of a pool need both",
)
def _objects(inventory: Inventory) -> Iterator[Located]:
    located = [
        LocatedFinding(cluster, finding, found)
        for cluster, found in topology.clusters_with_class(inventory)
        for finding in _findings_of(inventory, cluster, found)
    ]
    if located:
        # Other rules say already what is wrong with these Clusters.
        refused = {found.place.index for rule in topology.RULES if rule.check for found in rule.check(inventory)}
        yield from (each for each in located if each.place.index not in refused)


def _findings_of(inventory: Inventory, cluster: Entry, found: Entry) -> Iterator[Finding]:
    try:
        templates = _templates(inventory, found)
    except _UNKNOWN:
        return
    yield from _findings(cluster, found, templates)


def _templates(inventory: Inventory, cluster_class: Entry) -> dict[ObjectId, Obj]:
    if cluster_class.index < 0:
        return _shipped_templates(cluster_class.name)
    wanted = template_refs(cluster_class.obj)
    found = {each: inventory.find(each.kind, each.namespace, each.name, each.group) for each in wanted}
    return {identity: entry.obj for identity, entry in found.items() if entry}


@cache
def _shipped_templates(name: str) -> dict[ObjectId, Obj]:
    path = data.folder("clusterclass") / name / "templates.yaml"
    return {id_of(obj): obj for obj in load_yaml_all(path.read_bytes())}


@dataclass(frozen=True)
class _Made:
    """One object that a class makes. Of `given`, the variables of the Cluster for it, the last of a name counts."""

    title: str
    kind: str
    part: Callable[[], Part]
    cluster_class: Class
    cluster: Obj
    given: Sequence[Field]
    builtin: Obj

    def findings(self, *, without: Field | None = None) -> Sequence[Finding]:
        """What is wrong with it, also if a variable were not given."""
        # Null, unless there is another value: a patch that copies a variable without any cannot be applied.
        none = [{**without.mapping, "value": None}] if without else []
        given = none + [one.mapping for one in self.given if one != without]
        part = self.part()
        return self._of(part, patched(self.cluster_class.obj, part, self._variables(given)))

    def _variables(self, given: Sequence[Obj]) -> Obj:
        variables = variables_of(self.cluster_class.obj, self.cluster, given)
        if self.title != _CONTROL_PLANE:
            # Cluster API gives these to the templates of the control plane only.
            variables["builtin"].pop("controlPlane")
        variables["builtin"] |= self.builtin
        return variables

    def unpatched(self) -> Sequence[Finding]:
        """What is wrong with the template itself, which other rules report."""
        part = self.part()
        return self._of(part, part.spec)

    def _of(self, part: Part, spec: Obj) -> Sequence[Finding]:
        group, _, version = str(part.template.get("apiVersion")).partition("/")
        if group != GROUP or version not in VERSIONS:
            return ()
        obj = {
            "apiVersion": f"{group}/{version}",
            "kind": self.kind,
            "metadata": self.cluster["metadata"],
            "spec": spec if self.kind == CLUSTER else {"template": {"spec": spec}},
        }
        verdict = validate(Review("CREATE", self.kind, version, obj))
        return [one for one in (*verdict.errors, *verdict.warnings) if one.path[0] == "spec"]

    def cause(self, finding: Finding) -> Field | None:
        """The value of the variable without which there would not be this finding; of several, the one that has it."""
        causes = [one.at("value") for one, findings in self._without_each if finding not in findings]
        places = (place for one in causes if finding.value is not None and (place := _place(one, finding.value)))
        return next(places, None) or next((_missing(one, finding.path) for one in causes), None)

    def may_lack(self, finding: Finding) -> bool:
        """Whether a variable that has no value may be why a field has none."""
        names = {each.get("name") for each in self.cluster_class.obj["spec"].get("variables") or ()}
        return finding.value is None and bool(names - set(self._variables([one.mapping for one in self.given])))

    @cached_property
    def _without_each(self) -> Sequence[tuple[Field, Sequence[Finding]]]:
        return [(one, self._without(one)) for one in self.given]

    def _without(self, variable: Field) -> Sequence[Finding]:
        try:
            return self.findings(without=variable)
        except _UNKNOWN:
            return ()


def _place(given: Field, wanted: Any) -> Field | None:
    """Where a value stands in another; None if it does not."""
    if given.value == wanted:
        return given
    below = given.each() or [given.at(name) for name in given.mapping]
    return next((found for one in below if (found := _place(one, wanted))), None)


def _missing(given: Field, path: FieldPath) -> Field:
    """Where a field is missing in a value that was copied to the end of a path; the value if it was not copied."""
    for start in range(1, len(path) - 1):
        *parents, last = path[start:]
        found: Field | None = given
        for part in parents:
            found = _below(found, part) if found else None
        if found and found.mapping and isinstance(last, str):
            return found.at(last)
    return given


def _below(given: Field, part: str | int) -> Field | None:
    if isinstance(part, str):
        return given.at(part) if part in given.mapping else None
    return given.each()[part] if part < len(given.each()) else None


def _findings(cluster: Entry, found: Entry, templates: dict[ObjectId, Obj]) -> Iterator[Finding]:
    reported = set()
    for made in _made(cluster, found, Class(found.obj, templates)):
        try:
            findings, before = made.findings(), made.unpatched()
        except _UNKNOWN:
            continue
        for finding in findings:
            cause = made.cause(finding)
            # Otherwise it is a fault of the class, or of what is predicted here.
            if cause is None and (finding in before or not made.may_lack(finding)):
                continue
            path = cause.path if cause else ("spec", "topology", "variables")
            # Machines share variables: the first of them is enough.
            key = path, finding.path, finding.detail
            if key not in reported:
                reported.add(key)
                yield replace(finding, path=path, detail=f"{finding.detail} ({finding.field} of {made.title})")


def _made(cluster: Entry, found: Entry, cluster_class: Class) -> Iterator[_Made]:
    wanted, spec = cluster.field.at("spec", "topology"), found.field.at("spec")
    common, control_plane = wanted.at("variables").each(), wanted.at("controlPlane")
    replicas = control_plane.at("replicas").number
    known = {
        "metadata": {"namespace": cluster.namespace, "name": cluster.name or _ANY_NAME},
        "spec": {"topology": {"version": wanted.at("version").text, "controlPlane": {"replicas": replicas}}},
    }

    def made(title: str, kind: str, place: Field, given: Sequence[Field], worker: str = "", **builtin: Any) -> _Made:
        role = "infrastructure" if kind == CLUSTER else "machine"
        return _Made(
            title, kind, lambda: cluster_class.part(role, place.mapping, worker), cluster_class, known, given, builtin
        )

    yield made("the HarvesterCluster", CLUSTER, spec.at("infrastructure"), common)
    place = spec.at("controlPlane", "machineInfrastructure")
    yield made(_CONTROL_PLANE, MACHINE_TEMPLATE, place, [*common, *_overrides(control_plane)])
    places = {one.at("class").text: one for one in spec.at("workers", "machineDeployments").each()}
    for entry in wanted.at("workers", "machineDeployments").each():
        worker, name = entry.at("class").text, entry.at("name").text
        title = f"the {MACHINE_TEMPLATE} of MachineDeployment {name}"
        given = [*common, *_overrides(entry)]
        builtin = {
            "class": worker,
            "topologyName": name,
            "version": wanted.at("version").text,
            "replicas": entry.at("replicas").number,
        }
        place = places.get(worker, Field(None, ()))
        # v1beta1 has the templates one level deeper.
        place = (
            place.at("infrastructure") if place.at("infrastructure").present else place.at("template", "infrastructure")
        )
        yield made(title, MACHINE_TEMPLATE, place, given, worker, machineDeployment=builtin)


def _overrides(place: Field) -> Sequence[Field]:
    return place.at("variables", "overrides").each()
