"""Installation manifests from `deploy/kustomize`, for kubectl and for clusterctl.

These files are the single source, also for kustomize and the Helm chart. A release needs no
external programs.
"""

import copy
from pathlib import Path
from typing import Any

import yaml

from caphv.api.object import Obj

IMAGE = "ghcr.io/rancher-sandbox/cluster-api-provider-harvester"
PACKAGER_SUFFIX = "-packager"
"""Suffix of the tag of the image with Git."""
WEBHOOK_NAME = "caphv-webhook-service.caphv-system.svc"
# Flags of `caphv run` that `clusterctl init` and a CAPIProvider's configSecret can set; the
# manifest has the defaults.
VARIABLES = {"--log-level": "CAPHV_LOG_LEVEL", "--concurrency": "CAPHV_CONCURRENCY"}
# Each template for `clusterctl generate cluster`, with its parts in `deploy/clusterctl/parts`.
TEMPLATES = {
    "cluster-template.yaml": ("rke2", "rke2-pools", "machines"),
    "cluster-template-dhcp.yaml": ("rke2", "rke2-dhcp", "machines"),
    "cluster-template-kubeadm.yaml": ("kubeadm", "pools", "machines"),
    "cluster-template-k3s.yaml": ("k3s", "pools", "machines"),
    "cluster-template-talos.yaml": ("talos", "pools", "machines"),
    "cluster-template-topology.yaml": ("topology",),
    "cluster-template-stig.yaml": ("topology-stig",),
    "cluster-template-topology-k3s.yaml": ("topology-k3s",),
    "cluster-template-topology-kubeadm.yaml": ("topology-kubeadm",),
}
# The C versions, where available, take a tenth of the time for CRDs.
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KUSTOMIZATIONS = ("kustomization.yaml", "Kustomization")


def objects(folder: Path) -> list[Obj]:
    """Return all objects of a kustomization in order, generated ConfigMaps last."""
    kustomization = next(folder / name for name in _KUSTOMIZATIONS if (folder / name).is_file())
    content = yaml.safe_load(kustomization.read_text(encoding="utf-8"))

    resources: list[Obj] = []
    for name in content["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            resources += objects(path)
        else:
            resources += yaml.load_all(path.read_text(encoding="utf-8"), _Loader)

    generators = content.get("configMapGenerator", ())
    return [*resources, *(_config_map(folder, generator) for generator in generators)]


def alerts(source: list[Obj]) -> list[Obj]:
    """Return the groups of alerting rules, for a Prometheus without the operator."""
    return [
        group
        for obj in source
        if obj["kind"] == "PrometheusRule"
        for group in obj["spec"]["groups"]
    ]


def with_certificate_of_turtles(monitoring: list[Obj]) -> list[Obj]:
    """Return monitoring for webhooks whose certificate Rancher issues.

    Turtles uses this certificate without cert-manager. Its Secret has no `ca.crt`, but `tls.crt`
    ends with the CA. The certificate names only the webhooks' Service.
    """
    objs = copy.deepcopy(monitoring)
    endpoints = [
        endpoint
        for obj in objs
        if obj["kind"] == "ServiceMonitor"
        for endpoint in obj["spec"]["endpoints"]
    ]
    for endpoint in endpoints:
        endpoint["tlsConfig"]["serverName"] = WEBHOOK_NAME
        endpoint["tlsConfig"]["ca"]["secret"]["key"] = "tls.crt"
    return objs


def with_image(source: list[Obj], image: str) -> list[Obj]:
    """Return the objects with this image in all containers of Deployments."""
    objs = copy.deepcopy(source)
    for container in _containers(objs):
        container["image"] = image
    return objs


def with_variables(source: list[Obj]) -> list[Obj]:
    """Return the objects with clusterctl's `${NAME:=default}` for the flags in `VARIABLES`."""
    objs = copy.deepcopy(source)
    for container in _containers(objs):
        container["args"] = [_variable(argument) for argument in container["args"]]
    return objs


def templates(folder: Path) -> dict[str, str]:
    """Return the cluster templates by file name, from their parts in `folder`."""
    return {
        name: "---\n".join((folder / f"{part}.yaml").read_text(encoding="utf-8") for part in parts)
        for name, parts in TEMPLATES.items()
    }


def dump(source: list[Obj]) -> str:
    """Return the objects as YAML documents."""
    # Do not break lines, because clusterctl replaces variables in the text before it parses it.
    options: dict[str, Any] = {"sort_keys": False, "width": 10_000, "allow_unicode": True}
    return "---\n".join(yaml.dump(obj, Dumper=_Dumper, **options) for obj in source)


def _config_map(folder: Path, generator: Obj) -> Obj:
    metadata = {
        "name": generator["name"],
        "namespace": generator["namespace"],
        "labels": generator["options"]["labels"],
    }
    data = {name: (folder / name).read_text(encoding="utf-8") for name in generator["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _containers(source: list[Obj]) -> list[Obj]:
    pods = [obj["spec"]["template"]["spec"] for obj in source if obj["kind"] == "Deployment"]
    return [container for pod in pods for container in pod["containers"]]


def _variable(argument: str) -> str:
    option, _, default = argument.partition("=")
    return f"{option}=${{{VARIABLES[option]}:={default}}}" if option in VARIABLES else argument
