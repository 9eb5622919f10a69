"""The objects that a ClusterClass makes of a topology: its templates, patched as Cluster API's core patches them."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj, key_of
from caphv.api.objectid import ObjectId, group_of, id_of
from caphv.clusterclass.gotemplate import UnsupportedError, is_known_builtin, render
from caphv.runtime.text import TextError, load_yaml

_STEP = re.compile(r"([^.\[\]]+)(?:\[([0-9]+)\])?")
_TEMPLATE = ("spec", "template", "spec")


@dataclass(frozen=True, slots=True)
class Part:
    """One template of a class in its place: `role` is controlPlane, machine, bootstrap or infrastructure."""

    role: str
    template: Obj
    worker_class: str = ""

    @property
    def spec(self) -> Obj:
        """What the template makes."""
        return dict((self.template.get("spec") or {}).get("template", {}).get("spec") or {})


@dataclass(slots=True)
class Class:
    """A ClusterClass with the templates that it refers to."""

    obj: Obj
    templates: Mapping[ObjectId, Obj] = field(default_factory=dict)

    def part(self, role: str, place: Obj | None, worker_class: str = "") -> Part:
        """The template at a place of the class. Raises `UnsupportedError` when it was not found."""
        ref = (place or {}).get("templateRef") or (place or {}).get("ref") or {}
        namespace = str(ref.get("namespace") or key_of(self.obj).namespace)
        identity = ObjectId(group_of(ref.get("apiVersion")), str(ref.get("kind")), namespace, str(ref.get("name")))
        found = self.templates.get(identity)
        if found is None:
            raise UnsupportedError(f"{identity} of ClusterClass {key_of(self.obj)} does not exist")
        return Part(role, found, worker_class)

    def worker(self, name: str) -> Obj:
        """The class of workers of a name. Raises `UnsupportedError` when there is none."""
        classes = ((self.obj.get("spec") or {}).get("workers") or {}).get("machineDeployments") or ()
        found = next((each for each in classes if each.get("class") == name), None)
        if found is None:
            raise UnsupportedError(f"ClusterClass {key_of(self.obj)} has no class of workers {name!r}")
        return dict(found)


def template_refs(cluster_class: Obj) -> Iterator[ObjectId]:
    """Yield the templates that a ClusterClass refers to."""
    namespace = key_of(cluster_class).namespace

    def walk(value: Any) -> Iterator[ObjectId]:
        if isinstance(value, dict):
            ref = value.get("templateRef") or value.get("ref")
            if isinstance(ref, dict) and ref.get("name"):
                place = str(ref.get("namespace") or namespace)
                yield ObjectId(group_of(ref.get("apiVersion")), str(ref.get("kind")), place, str(ref["name"]))
            for each in value.values():
                yield from walk(each)
        elif isinstance(value, list):
            for each in value:
                yield from walk(each)

    yield from walk({key: value for key, value in (cluster_class.get("spec") or {}).items() if key != "patches"})


def variables_of(cluster_class: Obj, cluster: Obj, overrides: Iterable[Obj] = ()) -> dict[str, Any]:
    """Return the values of all variables, with the defaults of the class and builtins."""
    topology = (cluster.get("spec") or {}).get("topology") or {}
    values = {str(each["name"]): each.get("value") for each in topology.get("variables") or ()}
    values |= {str(each["name"]): each.get("value") for each in overrides}
    for each in (cluster_class.get("spec") or {}).get("variables") or ():
        schema = (each.get("schema") or {}).get("openAPIV3Schema") or {}
        value = _defaulted(values.get(str(each["name"])), schema)
        if value is not None:
            values[str(each["name"])] = value
    key = key_of(cluster)
    control_plane = topology.get("controlPlane") or {}
    builtin = {
        "cluster": {"name": key.name, "namespace": key.namespace, "topology": {"version": topology.get("version")}},
        "controlPlane": {"version": topology.get("version"), "replicas": control_plane.get("replicas")},
    }
    return {**values, "builtin": builtin}


def patched(cluster_class: Obj, part: Part, variables: dict[str, Any]) -> Obj:
    """Return the spec that a template makes after all patches. Raises `UnsupportedError`."""
    document: Obj = {"spec": copy.deepcopy(part.template.get("spec") or {})}
    for patch in (cluster_class.get("spec") or {}).get("patches") or ():
        if patch.get("external"):
            raise UnsupportedError(f"patch {patch.get('name')} is made by an extension")
        enabled = str(patch.get("enabledIf") or "true")
        if render(enabled, variables).strip() != "true":
            continue
        for definition in patch.get("definitions") or ():
            if _selects(definition.get("selector") or {}, part):
                for operation in definition.get("jsonPatches") or ():
                    _apply(document, operation, variables)
    found: Any = document
    for name in _TEMPLATE:
        found = found.get(name) or {}
    return dict(found)


def _selects(selector: Obj, part: Part) -> bool:
    identity, match = id_of(part.template), selector.get("matchResources") or {}
    if (group_of(selector.get("apiVersion")), selector.get("kind")) != (identity.group, identity.kind):
        return False
    if part.role == "infrastructure":
        return bool(match.get("infrastructureCluster"))
    if not part.worker_class:
        return bool(match.get("controlPlane"))
    names = (match.get("machineDeploymentClass") or {}).get("names") or ()
    return any(_matches(str(name), part.worker_class) for name in names)


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("*"):
        return name.endswith(pattern[1:])
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


def _apply(document: Obj, operation: Obj, variables: dict[str, Any]) -> None:
    """Apply one operation of a JSON patch, of the kinds that Cluster API allows."""
    path = [each.replace("~1", "/").replace("~0", "~") for each in str(operation.get("path")).split("/")[1:]]
    target: Any = document
    for name in path[:-1]:
        target = _member(target, name)
    last, kind = path[-1], operation.get("op")
    if kind == "remove":
        target.pop(int(last) if isinstance(target, list) else last, None)
        return
    value = _value(operation, variables)
    if isinstance(target, list):
        position = len(target) if last == "-" else int(last)
        if kind == "add":
            target.insert(position, value)
        else:
            target[position] = value
    elif isinstance(target, dict):
        target[last] = value
    else:
        raise UnsupportedError(f"path {operation.get('path')} does not exist in the template")


def _member(target: Any, name: str) -> Any:
    try:
        return target[int(name)] if isinstance(target, list) else target[name]
    except (KeyError, IndexError, ValueError, TypeError):
        raise UnsupportedError(f"a patch names {name}, which the template does not have") from None


def _value(operation: Obj, variables: dict[str, Any]) -> Any:
    if "value" in operation:
        return copy.deepcopy(operation["value"])
    source = operation.get("valueFrom") or {}
    if "template" in source:
        try:
            return load_yaml(render(str(source["template"]), variables))
        except TextError as error:
            raise UnsupportedError(f"a template of a patch {error}") from None
    return copy.deepcopy(_variable(str(source.get("variable")), variables))


def _variable(path: str, variables: dict[str, Any]) -> Any:
    """The value at a path such as `disks[0].size`. Cluster API, too, fails if there is none."""
    value: Any = variables
    for each in path.split("."):
        step = _STEP.fullmatch(each)
        if not step:
            raise UnsupportedError(f"variable {path} is not understood")
        try:
            value = value[step[1]]
            value = value if step[2] is None else value[int(step[2])]
        except (KeyError, IndexError, TypeError):
            raise UnsupportedError(f"variable {path} has no value") from None
    if path.split(".", maxsplit=1)[0] == "builtin" and not is_known_builtin(value):
        raise UnsupportedError(f"variable {path} is not known")
    return value


def _defaulted(value: Any, schema: Obj) -> Any:
    if value is None:
        value = copy.deepcopy(schema.get("default"))
    if isinstance(value, dict):
        for name, each in (schema.get("properties") or {}).items():
            inner = _defaulted(value.get(name), each)
            if inner is not None:
                value = {**value, name: inner}
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            named = schema.get("properties") or {}
            value = {name: each if name in named else _defaulted(each, others) for name, each in value.items()}
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        value = [_defaulted(each, schema["items"]) for each in value]
    return value
