"""Gathers the settings of a cluster from these sources. Later sources override earlier ones.

1. Fields of the cluster's objects: networks of the Cluster, kind and fields of its control plane,
   and the place of the cloud config in its HarvesterCluster.
2. Labels `cni` and `csi`, and the annotations `caphv.io/cni-*` that the Go provider's generator
   wrote.
3. Topology variable `imageRegistry`, then topology variable `addons`.
4. Annotation `addons.caphv.io/values`: YAML.

Each source is checked by itself, so that a finding names the place to edit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from caphv.api import names
from caphv.api.object import Obj, at
from caphv.validation import schema
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.addons.facts import (
    CAAPF,
    RANCHER,
    ClusterFacts,
    annotations_of_cluster,
    labels_of_cluster,
)
from packager.addons.merge import Origins, leaves, merge, nest
from packager.addons.yamlvalues import YAML, check_json, parse_yaml

RULES = Rules()
METADATA = RULES.declare(
    "addons-metadata", "Labels and annotations must be text.", kinds=("Cluster",)
)
CSI_LABEL = RULES.declare(
    "addons-csi-label", "Label `csi` must be `harvester` or `none`.", kinds=("Cluster",)
)

SCHEMA = "cluster-addons.json"
_DEFAULT_POD_CIDRS = ["10.42.0.0/16"]
_DEFAULT_SERVICE_CIDRS = ["10.43.0.0/16"]
# The Secret that the controller keeps in the workload cluster (`cloudConfig.delivery: Secret`), and
# the file it writes on each node (`File`).
DELIVERED_SECRET = _SECRET_NAME, _SECRET_KEY = "harvester-cloud-config", "cloud-config"
_HOST_PATH = "/etc/kubernetes/cloud-config"
# The class variable and the setting have the same name.
_REGISTRY = "imageRegistry"
_SERVER_CONFIG: FieldPath = ("spec", "serverConfig")
_CLOUD_CONFIG: FieldPath = ("spec", "cloudConfig")
_MANIFEST: FieldPath = ("spec", "updateCloudProviderConfig")
_DISTRIBUTIONS = {
    "RKE2ControlPlane": "rke2",
    "KThreesControlPlane": "k3s",
    "KubeadmControlPlane": "kubeadm",
    "TalosControlPlane": "talos",
}
# Distributions of shipped ClusterClasses, for a Cluster whose ClusterClass is not available.
_CLASSES = {"harvester-k3s": "k3s", "harvester-kubeadm": "kubeadm"}


# Path of each setting → its value and the path of its source field.
_Settings = dict[FieldPath, tuple[Any, FieldPath]]


@dataclass
class Gathered:
    """The merged settings of all sources, the origin of each field, and findings about sources."""

    values: Obj = field(default_factory=dict)
    origins: Origins = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add_one(self, path: FieldPath, value: Any, source: FieldPath) -> None:
        """Merge one field, whose value is at `source`."""
        self.add(nest(path, value), lambda _: source)

    def add(self, values: Obj, source: Callable[[FieldPath], FieldPath]) -> None:
        """Merge one source over the earlier ones; `source` maps a setting to its place there."""
        self.values = merge(self.values, values)
        for path in leaves(values):
            # A list or scalar that replaces an object leaves no trace of its parts, and vice versa.
            replaced = [
                old for old in self.origins if old[: len(path)] == path or path[: len(old)] == old
            ]
            for old in replaced:
                del self.origins[old]
            self.origins[path] = source(path)


def gather(facts: ClusterFacts) -> Gathered:
    """Read all sources of a cluster, except sources with a finding."""
    gathered = Gathered()
    gathered.findings += _check_metadata(facts)
    # Without labels and annotations that are text, no source can be read.
    if gathered.findings:
        return gathered

    _read_objects(facts, gathered)
    _read_labels(facts, gathered)
    _read_variables(facts, gathered)
    _read_annotation(facts, gathered)

    # The default comes last, because every source may name a CNI.
    if not gathered.findings and "name" not in gathered.values["cni"]:
        default = "calico" if gathered.values["distribution"] == "rke2" else "none"
        gathered.add_one(("cni", "name"), default, (*_SERVER_CONFIG, "cni"))
    return gathered


def _check_metadata(facts: ClusterFacts) -> Iterator[Finding]:
    """Yield labels and annotations that an API server would refuse, which files may hold."""
    for field_name in ("labels", "annotations"):
        path: FieldPath = ("metadata", field_name)
        values = at(facts.cluster, *path)
        if values is None:
            continue
        if not isinstance(values, dict):
            yield METADATA.finding(path, Fault.WRONG_TYPE, "must be an object")
            continue
        for name, value in values.items():
            if not isinstance(value, str):
                detail = 'must be text: quote it, and write YAML of several lines behind "|"'
                yield METADATA.finding((*path, name), Fault.WRONG_TYPE, detail)


def holder(path: FieldPath, facts: ClusterFacts) -> Obj | None:
    """Return the object to edit for a finding about the cluster at `path`."""
    if path[:2] == _SERVER_CONFIG:
        return facts.control_plane
    if path[:2] in (_CLOUD_CONFIG, _MANIFEST):
        return facts.harvester_cluster
    return facts.cluster


# The sources


def _read_objects(facts: ClusterFacts, gathered: Gathered) -> None:
    """Merge settings from the fields of the cluster's objects."""
    settings = {
        **_control_plane_settings(facts),
        **_network_settings(facts),
        **_cloud_config_settings(facts),
        ("fleet", "importedBy"): (
            _importer(facts),
            ("metadata", "labels", names.AUTO_IMPORT_LABEL),
        ),
    }
    values: Obj = {}
    for path, (value, _) in settings.items():
        values = merge(values, nest(path, value))

    # The objects have schemas of their own, but files may hold anything.
    findings = schema.load(SCHEMA).findings(values)
    # A finding names the setting, but the user has to edit its source field.
    faults = {finding.path[: len(path)]: finding for finding in findings for path in settings}
    for path, (value, source) in settings.items():
        fault = faults.get(path)
        if fault is None:
            gathered.add_one(path, value, source)
        else:
            place = (*source, *fault.path[len(path) :])
            gathered.findings.append(replace(fault, path=place))


def _importer(facts: ClusterFacts) -> str:
    """Return the manager that imports the cluster into Fleet.

    If only one manager has a Fleet Cluster, it is that one. The label alone does not decide,
    because with Turtles' feature `use-caapf` only CAAPF creates a Fleet Cluster, and Turtles also
    imports clusters of labelled namespaces.
    """
    managers = {fleet_cluster.manager for fleet_cluster in facts.fleet_clusters}
    if len(managers) == 1:
        return managers.pop()
    # Both managers have a Fleet Cluster, or it does not exist yet, so only the label is left.
    is_labelled = labels_of_cluster(facts).get(names.AUTO_IMPORT_LABEL) == "true"
    return RANCHER if is_labelled else CAAPF


def _control_plane_settings(facts: ClusterFacts) -> _Settings:
    reference: FieldPath = ("spec", "controlPlaneRef", "kind")
    kind = at(facts.control_plane, "kind") or at(facts.cluster, *reference)
    distribution = _distribution(facts, str(kind or ""))

    replicas_path: FieldPath = ("spec", "topology", "controlPlane", "replicas")
    replicas = at(facts.cluster, *replicas_path) or at(facts.control_plane, "spec", "replicas")

    provider_path = (*_SERVER_CONFIG, "cloudProviderName")
    is_harvester = at(facts.control_plane, *provider_path) == "harvester"
    provider = "harvester" if distribution == "rke2" and is_harvester else "external"

    settings: _Settings = {
        ("distribution",): (distribution, reference),
        ("cloudProviderName",): (provider, provider_path),
        ("singleNode",): (replicas == 1, replicas_path),
    }
    cni = at(facts.control_plane, *_SERVER_CONFIG, "cni")
    if distribution == "rke2" and cni:
        settings["cni", "name"] = cni, (*_SERVER_CONFIG, "cni")
    return settings


def _distribution(facts: ClusterFacts, kind: str) -> str:
    """Return the distribution of a kind of control plane.

    An unknown kind counts as kubeadm, which brings no charts. Without a kind, the version of
    Kubernetes or the name of the ClusterClass decides.
    """
    if kind:
        return _DISTRIBUTIONS.get(kind, "kubeadm")
    if "+" in facts.kubernetes_version:
        return "k3s" if "+k3s" in facts.kubernetes_version else "rke2"
    topology = at(facts.cluster, "spec", "topology")
    return _CLASSES.get(str(at(topology, "classRef", "name") or at(topology, "class")), "rke2")


def _network_settings(facts: ClusterFacts) -> _Settings:
    pods: FieldPath = ("spec", "clusterNetwork", "pods", "cidrBlocks")
    services: FieldPath = ("spec", "clusterNetwork", "services", "cidrBlocks")
    pod_cidrs = at(facts.cluster, *pods) or _DEFAULT_POD_CIDRS
    service_cidrs = at(facts.cluster, *services) or _DEFAULT_SERVICE_CIDRS
    return {
        ("cni", "podCIDRs"): (pod_cidrs, pods),
        ("cni", "serviceCIDRs"): (service_cidrs, services),
    }


def _cloud_config_settings(facts: ClusterFacts) -> _Settings:
    """Return the place of the cloud config: the user's own Secret, a file, or the default."""
    manifest = at(facts.harvester_cluster, *_MANIFEST)
    if manifest and not at(facts.harvester_cluster, *_CLOUD_CONFIG):
        name, key = "cloudConfigCredentialsSecretName", "cloudConfigCredentialsSecretKey"
        return {
            ("cloudConfig", "secretName"): (at(manifest, name), (*_MANIFEST, name)),
            ("cloudConfig", "secretKey"): (at(manifest, key), (*_MANIFEST, key)),
        }

    delivery: FieldPath = (*_CLOUD_CONFIG, "delivery")
    if at(facts.harvester_cluster, *delivery) == "File":
        return {("cloudConfig", "hostPath"): (_HOST_PATH, delivery)}
    return {
        ("cloudConfig", "secretName"): (_SECRET_NAME, delivery),
        ("cloudConfig", "secretKey"): (_SECRET_KEY, delivery),
    }


def _read_labels(facts: ClusterFacts, gathered: Gathered) -> None:
    """Merge labels, and the annotations of the Go provider's generator."""
    labels = labels_of_cluster(facts)
    annotations = annotations_of_cluster(facts)
    if names.CNI_LABEL in labels:
        source = ("metadata", "labels", names.CNI_LABEL)
        _add_field(gathered, ("cni", "name"), labels[names.CNI_LABEL], source)
    if names.CSI_LABEL in labels:
        _read_csi_label(gathered, labels[names.CSI_LABEL])

    for name, setting in (
        (names.OLD_CNI_MTU_ANNOTATION, "mtu"),
        (names.OLD_CNI_ENCAPSULATION_ANNOTATION, "encapsulation"),
        (names.OLD_CNI_BGP_ANNOTATION, "bgp"),
    ):
        if name not in annotations:
            continue
        # Annotations are text, but the MTU is a number.
        value: str | int = annotations[name]
        if setting == "mtu" and re.fullmatch("[0-9]{1,8}", annotations[name]):
            value = int(annotations[name])
        _add_field(gathered, ("cni", setting), value, ("metadata", "annotations", name))


def _read_csi_label(gathered: Gathered, label: str) -> None:
    source: FieldPath = ("metadata", "labels", names.CSI_LABEL)
    if label in ("harvester", "none"):
        gathered.add({"csi": {"enabled": label == "harvester"}}, lambda _: source)
        return
    detail = 'must be "harvester" or "none": other drivers are not installed by these bundles'
    gathered.findings.append(CSI_LABEL.finding(source, Fault.UNSUPPORTED, detail, label))


def _read_variables(facts: ClusterFacts, gathered: Gathered) -> None:
    """Merge topology variables. `addons` overrides `imageRegistry` in any order."""
    variables = at(facts.cluster, "spec", "topology", "variables")
    if not isinstance(variables, list):
        return
    for name in (_REGISTRY, names.ADDONS_VARIABLE):
        for index, variable in enumerate(variables):
            if at(variable, "name") != name:
                continue
            root: FieldPath = ("spec", "topology", "variables", index, "value")
            if name == _REGISTRY:
                _add_field(gathered, (name,), variable.get("value"), root)
            else:
                _add_values(gathered, variable.get("value"), root)


def _read_annotation(facts: ClusterFacts, gathered: Gathered) -> None:
    text = annotations_of_cluster(facts).get(names.ADDON_VALUES_ANNOTATION)
    if text is None:
        return
    root: FieldPath = ("metadata", "annotations", names.ADDON_VALUES_ANNOTATION)
    value, fault = parse_yaml(text)
    if fault:
        gathered.findings.append(YAML.finding(root, Fault.INVALID, fault))
    elif value is not None:
        _add_values(gathered, value, root)


# Inside


def _add_field(gathered: Gathered, path: FieldPath, value: Any, source: FieldPath) -> None:
    """Merge one field if the schema allows its value. Findings name the place of the value.

    :param gathered: settings of earlier sources
    :param path: path of the setting
    :param value: value of the setting, of any type
    :param source: path of the value in its object
    """
    findings = schema.load(SCHEMA).findings(nest(path, value))
    gathered.findings += [replace(finding, path=source) for finding in findings]
    if not findings:
        gathered.add_one(path, value, source)


def _add_values(gathered: Gathered, values: Any, root: FieldPath) -> None:
    """Merge an object of settings, whose place is `root`, if the schema allows it."""
    findings = check_json(values, root) or schema.load(SCHEMA).findings(values, root=root)
    gathered.findings += findings
    if not findings:
        gathered.add(values, lambda path: (*root, *path))
