"""ClusterClass `harvester-rke2` of the Go provider: addresses from pools, load balancer by DHCP, one worker class.

Its defaults are what users' Clusters carry: the core writes them into each. It has no placeholder for the endpoint
here: without webhooks the core would set it again and again.
"""

from __future__ import annotations

from typing import Any

from caphv.api.object import Obj
from tests.support.predecessor.crds import CORE, GROUP

NAME = "harvester-rke2"
_OLD = f"{GROUP}/v1alpha1"
_BOOTSTRAP, _CONTROL_PLANE = f"bootstrap.{CORE}/v1beta2", f"controlplane.{CORE}/v1beta2"
_TEXT, _TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
_VOLUME = {
    "volumeType": {**_TEXT, "default": "image"},
    "imageName": {**_TEXT, "default": ""},
    "storageClass": {**_TEXT, "default": ""},
    "volumeSize": {**_TEXT, "default": "40Gi"},
    "bootOrder": {"type": "integer", "default": 0},
}
_REQUIRED: dict[str, Obj] = {
    "vmNetworks": _TEXTS,
    "volumes": {"type": "array", "items": {"type": "object", "properties": _VOLUME}},
    **dict.fromkeys(("sshKeyPair", "gateway", "subnetMask"), _TEXT),
}
_OPTIONAL: dict[str, Obj] = {
    "cpuCount": {"type": "integer", "default": 2},
    "memorySize": {**_TEXT, "default": "4Gi"},
    "sshUser": {**_TEXT, "default": "sles"},
    "identitySecretName": {**_TEXT, "default": "hv-identity-secret"},
    "targetNamespace": {**_TEXT, "default": "default"},
    "ipPoolRef": {**_TEXT, "default": ""},
    "ipPoolRefs": {**_TEXTS, "default": []},
    "dnsServers": {**_TEXTS, "default": []},
    # Since v0.10. Nothing here sets them, but their defaults are in all Clusters.
    "cisProfile": {**_TEXT, "default": "", "enum": ["", "cis", "cis-1.23", "cis-1.5", "cis-1.6"]},
    "fipsRequired": {"type": "boolean", "default": False},
}
VARIABLES = (*_REQUIRED, *_OPTIONAL)
# Field of machine templates -> variable.
_MACHINE = {"networks": "vmNetworks", "volumes": "volumes", "cpu": "cpuCount", "memory": "memorySize"}
_MACHINE |= {name: name for name in ("sshUser", "sshKeyPair")}
_NETWORK = """\
gateway: {{ .gateway }}
subnetMask: {{ .subnetMask }}
ipPoolRef: {{ .ipPoolRef }}
dnsServers:
{{ range .dnsServers }}- {{ . }}
{{ end }}"""
_CLUSTER: dict[str, Obj] = {
    "identitySecret/name": {"variable": "identitySecretName"},
    "identitySecret/namespace": {"template": "{{ .builtin.cluster.namespace }}"},
    "targetNamespace": {"variable": "targetNamespace"},
    "vmNetworkConfig": {"template": _NETWORK},
    "updateCloudProviderConfig/manifestsConfigMapName": {"template": "cloud-config-addon-{{ .builtin.cluster.name }}"},
    "updateCloudProviderConfig/manifestsConfigMapNamespace": {"template": "{{ .builtin.cluster.namespace }}"},
}


def objects(namespace: str) -> list[Obj]:
    """The class and its templates, templates first."""
    balancer = {
        "ipamType": "dhcp",
        "listeners": [{"name": "rke2-server", "port": 9345, "protocol": "TCP", "backendPort": 9345}],
    }
    cluster = {
        "identitySecret": {"namespace": "default", "name": "hv-identity-secret"},
        "loadBalancerConfig": balancer,
        "targetNamespace": "default",
        "updateCloudProviderConfig": {
            "cloudConfigCredentialsSecretKey": "cloud-config",
            "cloudConfigCredentialsSecretName": "cloud-config",
            "manifestsConfigMapKey": "cloud-config.yaml",
            "manifestsConfigMapName": "cloud-config-addon",
            "manifestsConfigMapNamespace": "default",
        },
    }
    machine = {"cpu": 2, "memory": "4Gi", "sshUser": "sles", "sshKeyPair": "", "volumes": [], "networks": []}
    rollout = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}
    server = {"cni": "calico", "cloudProviderName": "external"}
    made = [
        (_OLD, "HarvesterClusterTemplate", "cluster", cluster),
        (
            _CONTROL_PLANE,
            "RKE2ControlPlaneTemplate",
            "control-plane",
            {"serverConfig": server, "rolloutStrategy": rollout},
        ),
        (_OLD, "HarvesterMachineTemplate", "control-plane", machine),
        (_OLD, "HarvesterMachineTemplate", "worker", machine),
        (_BOOTSTRAP, "RKE2ConfigTemplate", "worker", {}),
    ]
    return [
        *(
            {
                "apiVersion": version,
                "kind": kind,
                "metadata": {"name": f"{NAME}-{name}", "namespace": namespace},
                "spec": {"template": {"spec": spec}},
            }
            for version, kind, name, spec in made
        ),
        {
            "apiVersion": f"{CORE}/v1beta1",
            "kind": "ClusterClass",
            "metadata": {"name": NAME, "namespace": namespace},
            "spec": _class(),
        },
    ]


def _class() -> Obj:
    worker = {
        "bootstrap": _ref(_BOOTSTRAP, "RKE2ConfigTemplate", "worker"),
        "infrastructure": _ref(_OLD, "HarvesterMachineTemplate", "worker"),
    }
    return {
        "controlPlane": {
            **_ref(_CONTROL_PLANE, "RKE2ControlPlaneTemplate", "control-plane"),
            "machineInfrastructure": _ref(_OLD, "HarvesterMachineTemplate", "control-plane"),
        },
        "infrastructure": _ref(_OLD, "HarvesterClusterTemplate", "cluster"),
        "workers": {"machineDeployments": [{"class": "default-worker", "template": worker}]},
        "variables": [
            {"name": name, "required": required, "schema": {"openAPIV3Schema": schema}}
            for required, schemas in ((True, _REQUIRED), (False, _OPTIONAL))
            for name, schema in schemas.items()
        ],
        "patches": [
            _patch(
                "machines", "HarvesterMachineTemplate", {field: {"variable": name} for field, name in _MACHINE.items()}
            ),
            _patch("cluster", "HarvesterClusterTemplate", _CLUSTER),
        ],
    }


def _ref(version: str, kind: str, name: str) -> Obj:
    return {"ref": {"apiVersion": version, "kind": kind, "name": f"{NAME}-{name}"}}


def _patch(name: str, kind: str, values: dict[str, Obj]) -> Obj:
    resources: dict[str, Any] = {"infrastructureCluster": True}
    if kind == "HarvesterMachineTemplate":
        resources = {"controlPlane": True, "machineDeploymentClass": {"names": ["default-worker"]}}
    patches = [
        {"op": "add", "path": f"/spec/template/spec/{field}", "valueFrom": value} for field, value in values.items()
    ]
    selector = {"apiVersion": _OLD, "kind": kind, "matchResources": resources}
    return {"name": name, "definitions": [{"selector": selector, "jsonPatches": patches}]}
