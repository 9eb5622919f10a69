"""Definitions for tests."""

import copy
import json
from typing import Any

from caphv import data
from caphv.api.object import Obj
from packager.definitions.build import Built, build
from packager.rendering.renderer import Renderer

RENDERER = Renderer()
_EXAMPLE: Obj = json.loads((data.folder("schemas") / "clusterdefinition.json").read_text())["examples"][0]


def definition(name: str = "production", *, machines: Obj | None = None, **spec: Any) -> Obj:
    """The example of the schema with other fields; a field that is None is left out."""
    found = copy.deepcopy(_EXAMPLE)
    found["metadata"]["name"] = name
    found["spec"]["machines"] |= machines or {}
    for field, value in spec.items():
        if value is None:
            found["spec"].pop(field, None)
        else:
            found["spec"][field] = value
    return found


def k3s(name: str = "edge", **spec: Any) -> Obj:
    return definition(name, **{"distribution": "k3s", "addons": None, **spec})


def kubeadm(name: str = "plain", **spec: Any) -> Obj:
    return definition(name, **{"distribution": "kubeadm", "addons": None, **spec})


def built(obj: Obj) -> Built:
    return build(obj, RENDERER, {})


def one(found: Built, kind: str) -> Obj:
    (obj,) = (obj for obj in found.objects if obj["kind"] == kind)
    return dict(obj)


def kinds(found: Built) -> list[str]:
    return [obj["kind"] for obj in found.objects]


def variables(found: Built) -> Obj:
    return {row["name"]: row["value"] for row in one(found, "Cluster")["spec"]["topology"]["variables"]}
