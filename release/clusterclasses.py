"""Writes the ClusterClasses: what they have in common is said once, in `clusterclass/class.yaml`.

`python -m release.clusterclasses` writes a folder `clusterclass/harvester-<distribution>` for each other file there,
and a page with all variables; with `--check` it writes nothing and fails on stale files.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from caphv.api.object import Obj

CHECKOUT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = ("rke2", "k3s", "kubeadm")
PAGE = "clusterclass/variables.md"
_CLASS_VERSION = "cluster.x-k8s.io/v1beta2"
_INFRASTRUCTURE_VERSION = "infrastructure.cluster.x-k8s.io/v1beta1"
_CONTROL_PLANE = "controlPlane"


class _Dumper(yaml.SafeDumper):
    """Without anchors, and with texts of several lines as such: people read these files."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def rendered(sources: Path) -> dict[str, str]:
    """All files by their path in the checkout; `sources` is the folder `clusterclass`."""
    common = _read(sources / "class.yaml")
    files, variables = {}, {}
    for distribution in DISTRIBUTIONS:
        name = f"harvester-{distribution}"
        own = _read(sources / f"{distribution}.yaml")
        cluster_class = class_of(name, common, own)
        variables[name] = cluster_class["spec"]["variables"]
        header = f"# Written by `make generate` from class.yaml and {distribution}.yaml in the folder above.\n"
        files[f"clusterclass/{name}/clusterclass.yaml"] = header + _dump([cluster_class])
        files[f"clusterclass/{name}/templates.yaml"] = header + _dump(templates_of(name, common, own))
    files[PAGE] = _page(variables)
    return files


def stale(checkout: Path) -> list[str]:
    """Sorted paths of files that are missing or not what the sources say."""
    wanted = rendered(checkout / "clusterclass")
    return sorted(path for path, text in wanted.items() if _present(checkout / path) != text)


def class_of(name: str, common: Obj, own: Obj) -> Obj:
    """The ClusterClass of one distribution; `common` and `own` are the contents of the source files."""
    patches = [*common["patches"], *_sizes(common), *own["patches"]]
    return {
        "apiVersion": _CLASS_VERSION,
        "kind": "ClusterClass",
        "metadata": {"name": name},
        "spec": {
            "infrastructure": {"templateRef": _infrastructure("HarvesterClusterTemplate", name)},
            "controlPlane": {
                "templateRef": {**_kind(own["controlPlane"]), "name": name},
                "machineInfrastructure": {
                    "templateRef": _infrastructure("HarvesterMachineTemplate", f"{name}-control-plane")
                },
                "healthCheck": common["healthCheck"],
            },
            "workers": {
                "machineDeployments": [
                    {
                        "class": worker,
                        "bootstrap": {"templateRef": {**_kind(own["worker"]), "name": f"{name}-worker"}},
                        "infrastructure": {
                            "templateRef": _infrastructure("HarvesterMachineTemplate", f"{name}-worker")
                        },
                        "healthCheck": common["healthCheck"],
                    }
                    for worker in common["workers"]
                ]
            },
            "variables": [*common["variables"], *own.get("variables", ())],
            "patches": patches,
        },
    }


def templates_of(name: str, common: Obj, own: Obj) -> list[Obj]:
    """All templates that the ClusterClass of one distribution refers to."""
    infrastructure = dict(common["infrastructure"])
    if "listeners" in own:
        infrastructure["loadBalancerConfig"] = {**infrastructure["loadBalancerConfig"], "listeners": own["listeners"]}
    cluster = {"apiVersion": _INFRASTRUCTURE_VERSION, "kind": "HarvesterClusterTemplate"}
    machine = {"apiVersion": _INFRASTRUCTURE_VERSION, "kind": "HarvesterMachineTemplate"}
    return [
        _template(cluster, name, infrastructure),
        _template(_kind(own["controlPlane"]), name, own["controlPlane"]["spec"]),
        _template(machine, f"{name}-control-plane", common["machine"]),
        _template(machine, f"{name}-worker", common["machine"]),
        _template(_kind(own["worker"]), f"{name}-worker", own["worker"]["spec"]),
    ]


def _sizes(common: Obj) -> Iterator[Obj]:
    """A patch for the machines of the control plane, and one for those of each class of workers."""
    yield _size(common["sizes"], _CONTROL_PLANE, {"controlPlane": True})
    for worker, variable in common["workers"].items():
        yield _size(common["sizes"], variable, {"machineDeploymentClass": {"names": [worker]}})


def _size(patches: list[Obj], variable: str, machines: Obj) -> Obj:
    selector = {"apiVersion": _INFRASTRUCTURE_VERSION, "kind": "HarvesterMachineTemplate", "matchResources": machines}
    own = [
        {**patch, "valueFrom": {"template": patch["valueFrom"]["template"].replace("SIZES", variable)}}
        for patch in patches
    ]
    return {"name": f"{variable}Size", "definitions": [{"selector": selector, "jsonPatches": own}]}


def _infrastructure(kind: str, name: str) -> Obj:
    return {"apiVersion": _INFRASTRUCTURE_VERSION, "kind": kind, "name": name}


def _kind(part: Obj) -> Obj:
    return {"apiVersion": part["apiVersion"], "kind": part["kind"]}


def _template(kind: Obj, name: str, spec: Obj) -> Obj:
    return {**kind, "metadata": {"name": name}, "spec": {"template": {"spec": spec}}}


def _page(variables: dict[str, list[Obj]]) -> str:
    lines = [
        "# Variables of the ClusterClasses",
        "",
        "Variables for `spec.topology.variables` of a Cluster. Unless a class is named, they exist in all classes.",
        "",
        "| Variable | Type | Required | Default | Meaning | Example |",
        "|---|---|---|---|---|---|",
    ]
    for classes, variable in _where(variables):
        schema = variable["schema"]["openAPIV3Schema"]
        lines.append(_row(f"`{variable['name']}`{classes}", schema, required=variable["required"]))
        inner = schema.get("items", schema)
        start = f"{variable['name']}{'[]' if 'items' in schema else ''}"
        for field, child in inner.get("properties", {}).items():
            lines.append(_row(f"`{start}.{field}`", child, required=field in inner.get("required", ())))
    return "\n".join([*lines, ""])


def _where(variables: dict[str, list[Obj]]) -> list[tuple[str, Obj]]:
    """Each variable once, with the class that it belongs to, or nothing when all have it."""
    known: list[tuple[str, Obj]] = []
    for name, own in variables.items():
        for variable in own:
            shared = all(variable in others for others in variables.values())
            entry = ("" if shared else f" (`{name}`)", variable)
            if entry not in known:
                known.append(entry)
    return known


def _row(name: str, schema: Obj, *, required: bool) -> str:
    kind = f"list of {schema['items']['type']}" if "items" in schema else schema["type"]
    if "enum" in schema:
        kind += ": " + ", ".join(f"`{value}`" for value in schema["enum"])
    cells = [name, kind, "yes" if required else "", _code(schema, "default"), schema.get("description", "")]
    return f"| {' | '.join([*cells, _code(schema, 'example')])} |"


def _code(schema: Obj, key: str) -> str:
    return f"`{json.dumps(schema[key])}`" if key in schema else ""


def _read(path: Path) -> Obj:
    found: Obj = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def _dump(objects: list[Obj]) -> str:
    return "---\n".join(yaml.dump(obj, Dumper=_Dumper, sort_keys=False, width=10_000) for obj in objects)


def _present(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main(arguments: list[str] | None = None) -> int:
    """Write what is stale, or with `--check` only name it; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.clusterclasses", description="Write the ClusterClasses.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name the files that are stale")
    check = parser.parse_args(arguments).check
    wanted = rendered(CHECKOUT / "clusterclass")
    paths = stale(CHECKOUT)
    for path in paths:
        if check:
            sys.stderr.write(f"{path} is stale: run python -m release.clusterclasses\n")
            continue
        (CHECKOUT / path).parent.mkdir(exist_ok=True)
        (CHECKOUT / path).write_text(wanted[path], encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    return 1 if check and paths else 0


if __name__ == "__main__":
    sys.exit(main())
