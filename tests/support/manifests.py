"""Objects of the Helm chart and the kustomizations, as the real helm and kustomize render them."""

import subprocess
from pathlib import Path

import yaml

from caphv.api.object import Obj
from sandbox import manifests
from sandbox.processes import binaries
from tests.support.paths import CHECKOUT

CHART = CHECKOUT / "deploy" / "chart"
SPREAD = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "ScheduleAnyway",
    "labelSelector": {
        "matchLabels": {
            "cluster.x-k8s.io/provider": "infrastructure-harvester",
            "control-plane": "controller-manager",
        }
    },
}
SELF_SIGNED: Obj = {"webhooks": {"certificate": "self-signed"}}
WITHOUT_WEBHOOKS: Obj = {"webhooks": {"enabled": False}, "networkPolicy": {"enabled": True}}
CLASSES: Obj = {"clusterClasses": {"names": ["harvester-rke2"], "namespaces": ["team-a", "team-b"]}}
PACKAGER: Obj = {"packager": {"enabled": True, "repository": "https://git.example.com/fleet.git"}}
PRODUCTION: Obj = {
    "replicas": 2,
    "topologySpreadConstraints": [SPREAD],
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboard": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "podDisruptionBudget": {"enabled": True},
}


def call(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def refused(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


def helm(*arguments: str | Path) -> str:
    return call(binaries.binary("helm"), *arguments)


def identity(obj: Obj) -> tuple[str, str, str]:
    return obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def parsed(text: str) -> dict[tuple[str, str, str], Obj]:
    """Objects by kind, namespace and name, without what only one of the two tools has."""
    found = {identity(obj): obj for obj in manifests.parse(text) if obj and obj["kind"] != "Namespace"}
    for obj in found.values():
        if obj["kind"] == "CustomResourceDefinition":
            obj["metadata"].pop("annotations", None)
    return found


def template(folder: Path, values: Obj, *, namespace: str = "caphv-system") -> str:
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    return helm("template", "caphv", CHART, f"--namespace={namespace}", f"--values={folder / 'values.yaml'}")


def webhooks_of(objects: dict[tuple[str, str, str], Obj]) -> list[Obj]:
    """All webhooks of the two configurations."""
    found = [obj for (kind, _, _), obj in objects.items() if kind.endswith("WebhookConfiguration")]
    assert len(found) == 2
    return [webhook for obj in found for webhook in obj["webhooks"]]
