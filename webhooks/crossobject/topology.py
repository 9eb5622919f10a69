"""Clusters made by a ClusterClass that is among the objects: classes of machines and variables as it knows them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

from jsonschema import Draft4Validator
from jsonschema.exceptions import SchemaError, ValidationError

from caphv import data
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.runtime.text import load_yaml_all
from caphv.validation.finding import Fault, Finding, LocatedFinding, did_you_mean
from caphv.validation.rule import Rules
from webhooks.crossobject.machines import topology_class, topology_class_name
from webhooks.crossobject.model import Entry, Inventory, Located
from webhooks.crossobject.references import references
from webhooks.rules.model import Field

RULES = Rules()
_TOPOLOGIES = ("machineDeployments", "machinePools")


def clusters_with_class(inventory: Inventory) -> Iterator[tuple[Entry, Entry]]:
    """Clusters with their ClusterClass, where that creates them on Harvester."""
    classes = {owner.index for owner, _ in references(inventory) if owner.kind == "ClusterClass"}
    for cluster in inventory.of_kind("Cluster", CLUSTER_API_GROUP):
        found = topology_class(inventory, cluster)
        if found is None:
            found = shipped_class(topology_class_name(cluster))
            if found:
                yield cluster, found
        elif found.index in classes:
            yield cluster, found


@cache
def shipped_class(name: str) -> Entry | None:
    """The ClusterClass of this name that comes with caphv: most clusters use one, and few users copy it."""
    folder = data.folder("clusterclass")
    if name not in (path.name for path in folder.iterdir() if path.is_dir()):
        return None
    objs = load_yaml_all((folder / name / "clusterclass.yaml").read_bytes())
    return next((Entry(-1, obj) for obj in objs if obj.get("kind") == "ClusterClass"), None)


@RULES.rule(
    "topology-class",
    ("Cluster",),
    "Classes of machines in `spec.topology` must be classes of the ClusterClass.",
    example="`workers.machineDeployments[0].class: worker` with a ClusterClass whose class is `default-worker`",
)
def _classes(inventory: Inventory) -> Iterator[Located]:
    for cluster, found in clusters_with_class(inventory):
        for part in _TOPOLOGIES:
            known = {one.at("class").text for one in found.field.at("spec", "workers", part).each()}
            for one in cluster.field.at("spec", "topology", "workers", part).each():
                name = one.at("class")
                if name.text and name.text not in known:
                    detail = f"{found} has no such class{did_you_mean(name.text, known)}"
                    yield LocatedFinding(cluster, name.problem(Fault.UNSUPPORTED, detail), found)


@RULES.rule(
    "topology-variable",
    ("Cluster",),
    "Variables in `spec.topology` must be variables of the ClusterClass with values that it allows, and required "
    "variables must be set.",
    example="`{name: vmCPU, value: four}` where the ClusterClass wants an integer",
)
def _variables(inventory: Inventory) -> Iterator[Located]:
    for cluster, found in clusters_with_class(inventory):
        schemas = {one.at("name").text: one for one in found.field.at("spec", "variables").each()}
        topology = cluster.field.at("spec", "topology")
        given = topology.at("variables")
        yield from (LocatedFinding(cluster, problem, found) for problem in _missing(given, schemas))
        for variable in (*given.each(), *_overrides(topology)):
            yield from (LocatedFinding(cluster, problem, found) for problem in _problems(variable, schemas))


def _overrides(topology: Field) -> Iterator[Field]:
    parts = [one for part in _TOPOLOGIES for one in topology.at("workers", part).each()]
    for part in (topology.at("controlPlane"), *parts):
        yield from part.at("variables", "overrides").each()


def _missing(given: Field, schemas: dict[str, Field]) -> Iterator[Finding]:
    names = {one.at("name").text for one in given.each()}
    for name, schema in schemas.items():
        default = "default" in schema.at("schema", "openAPIV3Schema").mapping
        if schema.at("required").value is True and not default and name not in names:
            yield given.required(f"variable {name} must be set: the ClusterClass requires it and has no default")


def _problems(variable: Field, schemas: dict[str, Field]) -> Iterator[Finding]:
    name, value = variable.at("name"), variable.at("value")
    if name.text not in schemas:
        if name.text:
            detail = f"the ClusterClass has no such variable{did_you_mean(name.text, schemas)}"
            yield name.problem(Fault.UNSUPPORTED, detail)
        return
    schema = schemas[name.text].at("schema", "openAPIV3Schema").mapping
    try:
        for error in Draft4Validator(schema).iter_errors(value.value):
            yield from _violations(error, value)
    except SchemaError:
        # A ClusterClass that is wrong itself is for Cluster API to refuse.
        return
    yield from _unknown(value, schema)


def _violations(error: ValidationError, value: Field) -> Iterator[Finding]:
    path = (*value.path, *error.absolute_path)
    if error.validator == "required":
        place = Field(error.schema, ()).at("properties")
        for name in (one.text for one in Field(error.validator_value, ()).each()):
            # The core fills defaults in before it validates.
            if name not in Field(error.instance, ()).mapping and "default" not in place.at(name).mapping:
                yield Finding((*path, name), Fault.REQUIRED, "must be set: the ClusterClass requires it")
        return
    yield Finding(path, Fault.INVALID, f"the ClusterClass requires that it {_wanted(error)}", value=error.instance)


def _wanted(error: ValidationError) -> str:
    wanted = error.validator_value
    if error.validator == "pattern":
        examples = Field(error.schema, ()).at("examples").each() or [Field(error.schema, ()).at("example")]
        shown = f", as for example {json.dumps(examples[0].value)}" if examples[0].present else ""
        return f"have another form{shown}: read the variable's description in the ClusterClass"
    if error.validator == "enum" and isinstance(wanted, list):
        return f"be one of {', '.join(map(json.dumps, wanted))}"
    if error.validator == "type":
        return f"be of type {wanted}"
    return _LIMITS.get(str(error.validator), "fit its schema").format(wanted)


_LIMITS = {
    "minimum": "be at least {}",
    "maximum": "be at most {}",
    "minLength": "have at least {} characters",
    "maxLength": "have at most {} characters",
    "minItems": "have at least {} items",
    "maxItems": "have at most {} items",
    "uniqueItems": "have no item twice",
}


def _unknown(value: Field, schema: Any) -> Iterator[Finding]:
    """Fields that the schema of a variable does not name: the core refuses them unless the schema preserves them."""
    if not isinstance(schema, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    for item in value.each():
        yield from _unknown(item, schema.get("items"))
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for key in value.mapping:
        if key in properties:
            yield from _unknown(value.at(key), properties[key])
        elif others:
            yield from _unknown(value.at(key), others)
        elif properties:
            detail = f"the ClusterClass has no such field{did_you_mean(str(key), properties)}"
            yield value.at(key).problem(Fault.UNKNOWN, detail)
