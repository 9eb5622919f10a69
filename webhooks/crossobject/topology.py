"""Rules about Clusters with a known ClusterClass, for its classes and variables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

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
_WORKER_KINDS = ("machineDeployments", "machinePools")


class TopologyCluster(NamedTuple):
    """A Cluster and its ClusterClass."""

    cluster: Entry
    cluster_class: Entry


def clusters_with_class(inventory: Inventory) -> Iterator[TopologyCluster]:
    """Yield Clusters with a ClusterClass that creates them on Harvester, and this class."""
    on_harvester = {
        owner.index for owner, _ in references(inventory) if owner.kind == "ClusterClass"
    }
    for cluster in inventory.of_kind("Cluster", CLUSTER_API_GROUP):
        cluster_class = topology_class(inventory, cluster)
        if cluster_class is None:
            shipped = shipped_class(topology_class_name(cluster))
            if shipped:
                yield TopologyCluster(cluster, shipped)
        elif cluster_class.index in on_harvester:
            yield TopologyCluster(cluster, cluster_class)


@cache
def shipped_class(name: str) -> Entry | None:
    """Return the ClusterClass with this name that caphv ships, None if there is none.

    Most clusters use one of these, and few users copy it into their files.
    """
    folder = data.folder("clusterclass")
    # Check the name before it becomes part of a path, because users choose it.
    if name not in [path.name for path in folder.iterdir() if path.is_dir()]:
        return None

    for obj in load_yaml_all((folder / name / "clusterclass.yaml").read_bytes()):
        if obj.get("kind") == "ClusterClass":
            # The index is negative, because the class is not among the objects of the inventory.
            return Entry(-1, obj)
    return None


@RULES.rule(
    "topology-class",
    ("Cluster",),
    "Classes of machines in `spec.topology` must be classes of the ClusterClass.",
    example=(
        "`workers.machineDeployments[0].class: worker` with a ClusterClass whose class is "
        "`default-worker`"
    ),
)
def _classes(inventory: Inventory) -> Iterator[Located]:
    for cluster, cluster_class in clusters_with_class(inventory):
        for kind in _WORKER_KINDS:
            classes = cluster_class.field.at("spec", "workers", kind).each()
            names = {worker_class.at("class").text for worker_class in classes}

            for pool in cluster.field.at("spec", "topology", "workers", kind).each():
                name = pool.at("class")
                if name.text and name.text not in names:
                    detail = f"{cluster_class} has no such class{did_you_mean(name.text, names)}"
                    finding = name.problem(Fault.UNSUPPORTED, detail)
                    yield LocatedFinding(cluster, finding, cluster_class)


@RULES.rule(
    "topology-variable",
    ("Cluster",),
    "Variables in `spec.topology` must be variables of the ClusterClass with values that it "
    "allows, and required variables must be set.",
    example="`{name: vmCPU, value: four}` where the ClusterClass wants an integer",
)
def _variables(inventory: Inventory) -> Iterator[Located]:
    for cluster, cluster_class in clusters_with_class(inventory):
        definitions = {
            definition.at("name").text: definition
            for definition in cluster_class.field.at("spec", "variables").each()
        }
        for finding in _check_variables(cluster.field.at("spec", "topology"), definitions):
            yield LocatedFinding(cluster, finding, cluster_class)


def _check_variables(topology: Field, definitions: dict[str, Field]) -> Iterator[Finding]:
    """Yield findings about variables of a topology, and about overrides for its machine pools."""
    variables = topology.at("variables")
    yield from _report_missing(variables, definitions)
    for variable in variables.each():
        yield from _check_variable(variable, definitions)

    pools = [topology.at("controlPlane")]
    for kind in _WORKER_KINDS:
        pools += topology.at("workers", kind).each()
    for pool in pools:
        for variable in pool.at("variables", "overrides").each():
            yield from _check_variable(variable, definitions)


def _report_missing(variables: Field, definitions: dict[str, Field]) -> Iterator[Finding]:
    """Yield a finding for each variable that the ClusterClass requires and the topology lacks."""
    names = {variable.at("name").text for variable in variables.each()}
    for name, definition in definitions.items():
        has_default = "default" in definition.at("schema", "openAPIV3Schema").mapping
        is_required = definition.at("required").value is True and not has_default
        if is_required and name not in names:
            yield variables.required(
                f"variable {name} must be set: the ClusterClass requires it and has no default"
            )


def _check_variable(variable: Field, definitions: dict[str, Field]) -> Iterator[Finding]:
    """Yield findings about the name and the value of a variable."""
    name = variable.at("name")
    value = variable.at("value")
    if name.text not in definitions:
        if name.text:
            suggestion = did_you_mean(name.text, definitions)
            detail = f"the ClusterClass has no such variable{suggestion}"
            yield name.problem(Fault.UNSUPPORTED, detail)
        return

    schema = definitions[name.text].at("schema", "openAPIV3Schema").mapping
    try:
        for error in Draft4Validator(schema).iter_errors(value.value):
            # A value that is not in an enum may break its type, too. Only the finding about the
            # enum names the allowed values.
            choices = error.schema.get("enum") if error.validator == "type" else None
            if not isinstance(choices, list) or error.instance in choices:
                yield from _violations(error, value)
    except SchemaError:
        # Cluster API refuses a ClusterClass whose own schema is invalid.
        return
    yield from _report_unknown(value, schema)


def _violations(error: ValidationError, value: Field) -> Iterator[Finding]:
    """Yield the findings for an error of a schema, one for each missing field."""
    path = (*value.path, *error.absolute_path)
    if error.validator != "required":
        detail = f"the ClusterClass requires that it {_requirement(error)}"
        yield Finding(path, Fault.INVALID, detail, value=error.instance)
        return

    present = Field(error.instance, ()).mapping
    properties = Field(error.schema, ()).at("properties")
    for required in Field(error.validator_value, ()).each():
        name = required.text
        # Cluster API fills in defaults before it validates.
        has_default = "default" in properties.at(name).mapping
        if name not in present and not has_default:
            detail = "must be set: the ClusterClass requires it"
            yield Finding((*path, name), Fault.REQUIRED, detail)


def _requirement(error: ValidationError) -> str:
    """Return the requirement of a schema, as the end of a sentence with "requires that it"."""
    limit = error.validator_value
    if error.validator == "pattern":
        schema = Field(error.schema, ())
        examples = schema.at("examples").each()
        example = examples[0] if examples else schema.at("example")
        shown = f", as for example {json.dumps(example.value)}" if example.present else ""
        return f"have another form{shown}: read the variable's description in the ClusterClass"

    if error.validator == "enum" and isinstance(limit, list):
        return f"be one of {', '.join(map(json.dumps, limit))}"
    if error.validator == "type":
        return f"be of type {limit}"
    return _LIMITS.get(str(error.validator), "fit its schema").format(limit)


_LIMITS = {
    "minimum": "be at least {}",
    "maximum": "be at most {}",
    "minLength": "have at least {} characters",
    "maxLength": "have at most {} characters",
    "minItems": "have at least {} items",
    "maxItems": "have at most {} items",
    "uniqueItems": "have no item twice",
}


def _report_unknown(value: Field, schema: Any) -> Iterator[Finding]:
    """Yield fields that the schema of a variable lacks, unless it preserves unknown fields."""
    if not isinstance(schema, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return

    for item in value.each():
        yield from _report_unknown(item, schema.get("items"))

    properties = schema.get("properties", {})
    others = schema.get("additionalProperties")
    for key in value.mapping:
        if key in properties:
            yield from _report_unknown(value.at(key), properties[key])
        # `additionalProperties` is the schema of all other fields.
        elif others:
            yield from _report_unknown(value.at(key), others)
        elif properties:
            detail = f"the ClusterClass has no such field{did_you_mean(str(key), properties)}"
            yield value.at(key).problem(Fault.UNKNOWN, detail)
