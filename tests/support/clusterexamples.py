"""Examples of clusters, as a user of a sandbox changes them."""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj
from sandbox.environment import Sandbox
from tests.support.clusterctl import VARIABLES


def on_sandbox(box: Sandbox, namespace: str, objects: list[Obj]) -> list[Obj]:
    """The same objects in a namespace, with names that the sandbox has."""
    gateway = f"{box.status()['network'].removesuffix('.0.0/16')}.0.1"
    there = {
        "team-a": namespace,
        "machines": "machines-large",
        "default/sles-15-sp7": "default/sles-15",
        "default/admin": "default/caphv",
        **dict.fromkeys(("172.16.0.1", VARIABLES["HARVESTER_GATEWAY"]), gateway),
        **dict.fromkeys(("255.255.0.0", VARIABLES["HARVESTER_SUBNET_MASK"]), "255.255.128.0"),
    }
    found: list[Obj] = with_values(objects, there)
    return found


def with_values(node: Any, values: dict[str, str]) -> Any:
    """The same, with each of some texts replaced."""
    if isinstance(node, dict):
        return {name: with_values(value, values) for name, value in node.items()}
    if isinstance(node, list):
        return [with_values(value, values) for value in node]
    return values.get(node, node) if isinstance(node, str) else node


def with_few_machines(objects: list[Obj]) -> None:
    """One machine in each group: of the control plane, and of workers."""
    for obj in objects:
        topology = obj["spec"].get("topology") or {}
        groups = [topology["controlPlane"], *topology["workers"]["machineDeployments"]] if topology else [obj["spec"]]
        for group in groups:
            if "replicas" in group:
                group["replicas"] = 1
