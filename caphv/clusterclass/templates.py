"""Create the objects of a ClusterClass for a topology, and patch them as Cluster API does."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj, at, dict_at, key_of, list_at
from caphv.api.objectid import ObjectId, group_of, id_of
from caphv.clusterclass.gotemplate import UnsupportedError, is_known_builtin, render
from caphv.runtime.text import TextError, load_yaml

_STEP = re.compile(r"([^.\[\]]+)(?:\[([0-9]+)\])?")
_TEMPLATE = ("spec", "template", "spec")


@dataclass(frozen=True, slots=True)
class Part:
    """A template at a place in a class.

    `role` is controlPlane, machine, bootstrap or infrastructure.
    """

    role: str
    template: Obj
    worker_class: str = ""

    @property
    def spec(self) -> Obj:
        """The spec of the objects that the template creates."""
        return dict(dict_at(self.template, *_TEMPLATE))


@dataclass(slots=True)
class Class:
    """A ClusterClass with the templates that it references."""

    obj: Obj
    templates: Mapping[ObjectId, Obj] = field(default_factory=dict)

    def part(self, role: str, place: Obj | None, worker_class: str = "") -> Part:
        """Return the template at a place of the class. Raises `UnsupportedError` without one."""
        ref = at(place, "templateRef") or at(place, "ref") or {}
        identity = _template_id(ref, default_namespace=key_of(self.obj).namespace)
        template = self.templates.get(identity)
        if template is None:
            raise UnsupportedError(f"{identity} of ClusterClass {key_of(self.obj)} does not exist")
        return Part(role, template, worker_class)

    def worker(self, name: str) -> Obj:
        """Return the class of workers with a name. Raises `UnsupportedError` if there is none."""
        for worker_class in list_at(self.obj, "spec", "workers", "machineDeployments"):
            if worker_class.get("class") == name:
                return dict(worker_class)
        raise UnsupportedError(f"ClusterClass {key_of(self.obj)} has no class of workers {name!r}")


def template_refs(cluster_class: Obj) -> Iterator[ObjectId]:
    """Yield the templates that a ClusterClass references."""
    namespace = key_of(cluster_class).namespace

    def walk(value: Any) -> Iterator[ObjectId]:
        if isinstance(value, dict):
            ref = value.get("templateRef") or value.get("ref")
            if isinstance(ref, dict) and ref.get("name"):
                yield _template_id(ref, default_namespace=namespace)
            for member in value.values():
                yield from walk(member)
        elif isinstance(value, list):
            for item in value:
                yield from walk(item)

    # Skip patches, whose values may look like references.
    spec = cluster_class.get("spec") or {}
    yield from walk({name: value for name, value in spec.items() if name != "patches"})


def _template_id(ref: Obj, *, default_namespace: str) -> ObjectId:
    group = group_of(ref.get("apiVersion"))
    kind = str(ref.get("kind"))
    return ObjectId(
        group, kind, str(ref.get("namespace") or default_namespace), str(ref.get("name"))
    )


def variables_of(cluster_class: Obj, cluster: Obj, overrides: Iterable[Obj] = ()) -> dict[str, Any]:
    """Return the values of all variables, with the defaults of the class and builtins."""
    topology = dict_at(cluster, "spec", "topology")
    values = {}
    for variable in [*(topology.get("variables") or ()), *overrides]:
        values[str(variable["name"])] = variable.get("value")

    for definition in list_at(cluster_class, "spec", "variables"):
        name = str(definition["name"])
        schema = dict_at(definition, "schema", "openAPIV3Schema")
        value = _with_defaults(values.get(name), schema)
        if value is not None:
            values[name] = value

    key = key_of(cluster)
    version = topology.get("version")
    builtin = {
        "cluster": {
            "name": key.name,
            "namespace": key.namespace,
            "topology": {"version": version},
        },
        "controlPlane": {
            "version": version,
            "replicas": at(topology, "controlPlane", "replicas"),
        },
    }
    return {**values, "builtin": builtin}


def apply_patches(cluster_class: Obj, part: Part, variables: Obj) -> Obj:
    """Return the spec that a template has after all patches. Raises `UnsupportedError`."""
    document: Obj = {"spec": copy.deepcopy(part.template.get("spec") or {})}
    for patch in list_at(cluster_class, "spec", "patches"):
        if patch.get("external"):
            raise UnsupportedError(f"patch {patch.get('name')} is made by an extension")

        condition = str(patch.get("enabledIf") or "true")
        if render(condition, variables).strip() != "true":
            continue
        for definition in patch.get("definitions") or ():
            if _selects(definition.get("selector") or {}, part):
                for operation in definition.get("jsonPatches") or ():
                    _apply(document, operation, variables)

    return dict(dict_at(document, *_TEMPLATE))


def _selects(selector: Obj, part: Part) -> bool:
    identity = id_of(part.template)
    selected_kind = (group_of(selector.get("apiVersion")), selector.get("kind"))
    if selected_kind != (identity.group, identity.kind):
        return False

    match = selector.get("matchResources") or {}
    if part.role == "infrastructure":
        return bool(match.get("infrastructureCluster"))
    if not part.worker_class:
        return bool(match.get("controlPlane"))
    patterns = list_at(match, "machineDeploymentClass", "names")
    return any(_matches(str(pattern), part.worker_class) for pattern in patterns)


def _matches(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, which may begin or end with `*`."""
    if pattern.startswith("*"):
        return name.endswith(pattern[1:])
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name == pattern


def _apply(document: Obj, operation: Obj, variables: Obj) -> None:
    """Apply one operation of a JSON patch. Only operations that Cluster API allows occur."""
    escaped = str(operation.get("path")).split("/")[1:]
    path = [part.replace("~1", "/").replace("~0", "~") for part in escaped]
    parent: Any = document
    for name in path[:-1]:
        parent = _member(parent, name)
    last = path[-1]
    kind = operation.get("op")

    if kind == "remove":
        parent.pop(int(last) if isinstance(parent, list) else last, None)
        return

    value = _value(operation, variables)
    if isinstance(parent, list):
        position = len(parent) if last == "-" else int(last)
        if kind == "add":
            parent.insert(position, value)
        else:
            parent[position] = value
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise UnsupportedError(f"path {operation.get('path')} does not exist in the template")


def _member(parent: Any, name: str) -> Any:
    try:
        return parent[int(name)] if isinstance(parent, list) else parent[name]
    except (KeyError, IndexError, ValueError, TypeError):
        message = f"a patch names {name}, which the template does not have"
        raise UnsupportedError(message) from None


def _value(operation: Obj, variables: Obj) -> Any:
    """Return the value of an operation: a literal, the text of a template, or a variable."""
    if "value" in operation:
        return copy.deepcopy(operation["value"])

    source = operation.get("valueFrom") or {}
    if "template" in source:
        try:
            return load_yaml(render(str(source["template"]), variables))
        except TextError as error:
            raise UnsupportedError(f"a template of a patch {error}") from None
    return copy.deepcopy(_variable(str(source.get("variable")), variables))


def _variable(path: str, variables: Obj) -> Any:
    """Return the value at a path such as `disks[0].size`.

    Raises `UnsupportedError` if there is none, where Cluster API fails as well.
    """
    value: Any = variables
    for part in path.split("."):
        step = _STEP.fullmatch(part)
        if not step:
            raise UnsupportedError(f"variable {path} is not understood")

        name = step[1]
        index = step[2]
        try:
            value = value[name]
            if index is not None:
                value = value[int(index)]
        except (KeyError, IndexError, TypeError):
            raise UnsupportedError(f"variable {path} has no value") from None

    is_builtin = path.split(".", maxsplit=1)[0] == "builtin"
    if is_builtin and not is_known_builtin(value):
        raise UnsupportedError(f"variable {path} is not known")
    return value


def _with_defaults(value: Any, schema: Obj) -> Any:
    """Return a value with the defaults of its schema, at all depths."""
    filled = copy.deepcopy(schema.get("default")) if value is None else value
    if isinstance(filled, list) and isinstance(schema.get("items"), dict):
        return [_with_defaults(item, schema["items"]) for item in filled]
    if not isinstance(filled, dict):
        return filled

    # A property without a value may have a default. Any other field of the object has a value.
    properties = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    members = dict(filled)
    if isinstance(others, dict):
        for name in filled.keys() - properties.keys():
            members[name] = _with_defaults(filled[name], others)
    for name, property_schema in properties.items():
        member = _with_defaults(filled.get(name), property_schema)
        if member is not None:
            members[name] = member
    return members
