"""Gathers the settings of a cluster's add-ons from several sources.

Later sources override earlier ones:

1. Fields of the cluster's objects: networks of the Cluster, kind and fields of its control plane,
   and the place of the cloud config in its HarvesterCluster.
2. Labels `cni` and `csi`, then the annotations `caphv.io/cni-*` of the Go provider's generator.
3. Topology variable `imageRegistry`, then topology variable `addons`.
4. Annotation `addons.caphv.io/values`, whose text is YAML.

Each source is checked by itself, so that a finding names the field to edit.
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
# Annotation of the Go provider's generator → setting of the CNI.
_LEGACY_ANNOTATIONS = {
    names.OLD_CNI_MTU_ANNOTATION: "mtu",
    names.OLD_CNI_ENCAPSULATION_ANNOTATION: "encapsulation",
    names.OLD_CNI_BGP_ANNOTATION: "bgp",
}
_DEFAULT_POD_CIDRS = ["10.42.0.0/16"]
_DEFAULT_SERVICE_CIDRS = ["10.43.0.0/16"]
# With `cloudConfig.delivery: Secret`, the controller keeps this Secret in the workload cluster.
_DELIVERED_NAME = "harvester-cloud-config"
_DELIVERED_KEY = "cloud-config"
DELIVERED_SECRET = (_DELIVERED_NAME, _DELIVERED_KEY)
# With `cloudConfig.delivery: File`, each node has the cloud config in this file.
_HOST_PATH = "/etc/kubernetes/cloud-config"
# Name of both the topology variable and the setting.
_REGISTRY = "imageRegistry"
_SERVER_CONFIG: FieldPath = ("spec", "serverConfig")
_CLOUD_CONFIG: FieldPath = ("spec", "cloudConfig")
_MANIFEST: FieldPath = ("spec", "updateCloudProviderConfig")
_VARIABLES: FieldPath = ("spec", "topology", "variables")
SETTINGS_ANNOTATION: FieldPath = ("metadata", "annotations", names.ADDON_VALUES_ANNOTATION)
"""Path of the annotation with settings; paths of its fields continue into its text."""
_DISTRIBUTIONS = {
    "RKE2ControlPlane": "rke2",
    "KThreesControlPlane": "k3s",
    "KubeadmControlPlane": "kubeadm",
    "TalosControlPlane": "talos",
}
# Distributions of shipped ClusterClasses, for a Cluster whose ClusterClass is not available.
_CLASSES = {"harvester-k3s": "k3s", "harvester-kubeadm": "kubeadm"}


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting at `path` with its value, and the path of the field that it was derived from."""

    path: FieldPath
    value: Any
    source: FieldPath


@dataclass
class Gathered:
    """The merged settings of all sources, the origin of each field, and findings about sources."""

    values: Obj = field(default_factory=dict)
    origins: Origins = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add_setting(self, path: FieldPath, value: Any, source: FieldPath) -> None:
        """Override one setting; `source` is the path of the field that it comes from."""
        self.add(nest(path, value), lambda _: source)

    def add(self, values: Obj, source_of: Callable[[FieldPath], FieldPath]) -> None:
        """Override settings; `source_of` maps the path of a setting to that of its source field."""
        before = self.values
        self.values = merge(before, values)
        for path in leaves(values):
            # An empty object changes no field of an object.
            if at(values, *path) == {} and isinstance(at(before, *path), dict):
                continue
            # A list or scalar replaces an object with all its fields, and an object replaces a
            # scalar. So origins of fields below this field, and of fields around it, are outdated.
            replaced = [
                old for old in self.origins if old[: len(path)] == path or path[: len(old)] == old
            ]
            for old in replaced:
                del self.origins[old]
            self.origins[path] = source_of(path)


def gather(facts: ClusterFacts) -> Gathered:
    """Merge all sources of a cluster. What has a finding is left out."""
    gathered = Gathered()
    gathered.findings += _check_metadata(facts)
    # All sources but the first are read by labels and annotations, which have to be text.
    if gathered.findings:
        return gathered

    _merge_objects(facts, gathered)
    _merge_labels(facts, gathered)
    _merge_legacy_annotations(facts, gathered)
    _merge_variables(facts, gathered)
    _merge_annotation(facts, gathered)

    # The default comes last, because any source may name a CNI.
    if not gathered.findings and "name" not in gathered.values["cni"]:
        default = "calico" if gathered.values["distribution"] == "rke2" else "none"
        gathered.add_setting(("cni", "name"), default, (*_SERVER_CONFIG, "cni"))
    return gathered


def _check_metadata(facts: ClusterFacts) -> Iterator[Finding]:
    """Yield a finding for each label or annotation that is not text.

    An API server would refuse them, but files may hold anything.
    """
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


def object_of_field(path: FieldPath, facts: ClusterFacts) -> Obj | None:
    """Return the object with the field at the path of a finding: the one to edit."""
    if path[:2] == _SERVER_CONFIG:
        return facts.control_plane
    if path[:2] in (_CLOUD_CONFIG, _MANIFEST):
        return facts.harvester_cluster
    return facts.cluster


def is_set(source: FieldPath, facts: ClusterFacts) -> bool:
    """Whether the field that is the origin of a setting exists; if not, the setting is a default.

    `source` is one of `Gathered.origins`.
    """
    # A setting of the annotation or of a topology variable has no default here, and its path leads
    # into a text or a list.
    if source[:3] == SETTINGS_ANNOTATION or source[:3] == _VARIABLES:
        return True
    return at(object_of_field(source, facts), *source) is not None


def _merge_objects(facts: ClusterFacts, gathered: Gathered) -> None:
    """Merge settings that follow from the fields of the cluster's objects."""
    settings = [
        *_control_plane_settings(facts),
        *_network_settings(facts),
        *_cloud_config_settings(facts),
        _importer_setting(facts),
    ]
    values: Obj = {}
    for setting in settings:
        values = merge(values, nest(setting.path, setting.value))

    # The objects have their own schemas, but files may hold anything.
    findings = schema.load(SCHEMA).findings(values)
    for setting in settings:
        depth = len(setting.path)
        faults = [finding for finding in findings if finding.path[:depth] == setting.path]
        if not faults:
            gathered.add_setting(setting.path, setting.value, setting.source)
        # The findings are about the setting, but the user has to edit its source field.
        gathered.findings += [
            replace(fault, path=(*setting.source, *fault.path[depth:])) for fault in faults
        ]


def _importer_setting(facts: ClusterFacts) -> _Setting:
    """Return the manager that imports the cluster into Fleet.

    If only one manager has a Fleet Cluster, it is that one. The label is not enough, because with
    Turtles' feature `use-caapf` only CAAPF creates a Fleet Cluster, and Turtles also imports
    clusters of labelled namespaces.
    """
    managers = {fleet_cluster.manager for fleet_cluster in facts.fleet_clusters}
    if len(managers) == 1:
        importer = managers.pop()
    else:
        # Both managers have a Fleet Cluster, or none has one yet, so only the label is left.
        is_labelled = labels_of_cluster(facts).get(names.AUTO_IMPORT_LABEL) == "true"
        importer = RANCHER if is_labelled else CAAPF
    source = ("metadata", "labels", names.AUTO_IMPORT_LABEL)
    return _Setting(("fleet", "importedBy"), importer, source)


def _control_plane_settings(facts: ClusterFacts) -> Iterator[_Setting]:
    """Yield distribution, cloud provider, number of servers and CNI, as the control plane has them.

    Without a control plane object, the Cluster's reference and topology are used.
    """
    reference: FieldPath = ("spec", "controlPlaneRef", "kind")
    kind = at(facts.control_plane, "kind") or at(facts.cluster, *reference)
    distribution = _distribution(facts, str(kind or ""))
    yield _Setting(("distribution",), distribution, reference)

    provider_path = (*_SERVER_CONFIG, "cloudProviderName")
    is_harvester = at(facts.control_plane, *provider_path) == "harvester"
    provider = "harvester" if distribution == "rke2" and is_harvester else "external"
    yield _Setting(("cloudProviderName",), provider, provider_path)

    replicas_path: FieldPath = ("spec", "topology", "controlPlane", "replicas")
    replicas = at(facts.cluster, *replicas_path) or at(facts.control_plane, "spec", "replicas")
    yield _Setting(("singleNode",), replicas == 1, replicas_path)

    cni_path = (*_SERVER_CONFIG, "cni")
    cni = at(facts.control_plane, *cni_path)
    if distribution == "rke2" and cni:
        yield _Setting(("cni", "name"), cni, cni_path)


def _distribution(facts: ClusterFacts, kind: str) -> str:
    """Return the distribution of a cluster whose control plane is of this kind.

    An unknown kind counts as kubeadm, which installs no charts. Without a kind, the version of
    Kubernetes decides, or else the name of the ClusterClass.
    """
    if kind:
        return _DISTRIBUTIONS.get(kind, "kubeadm")
    if "+" in facts.kubernetes_version:
        return "k3s" if "+k3s" in facts.kubernetes_version else "rke2"
    topology = at(facts.cluster, "spec", "topology")
    return _CLASSES.get(str(at(topology, "classRef", "name") or at(topology, "class")), "rke2")


def _network_settings(facts: ClusterFacts) -> Iterator[_Setting]:
    pods: FieldPath = ("spec", "clusterNetwork", "pods", "cidrBlocks")
    services: FieldPath = ("spec", "clusterNetwork", "services", "cidrBlocks")
    pod_cidrs = at(facts.cluster, *pods) or _DEFAULT_POD_CIDRS
    service_cidrs = at(facts.cluster, *services) or _DEFAULT_SERVICE_CIDRS
    yield _Setting(("cni", "podCIDRs"), pod_cidrs, pods)
    yield _Setting(("cni", "serviceCIDRs"), service_cidrs, services)


def _cloud_config_settings(facts: ClusterFacts) -> Iterator[_Setting]:
    """Yield the place of the cloud config: the user's own Secret, a file, or the default."""
    manifest = at(facts.harvester_cluster, *_MANIFEST)
    if manifest and not at(facts.harvester_cluster, *_CLOUD_CONFIG):
        for setting, field_name in (
            ("secretName", "cloudConfigCredentialsSecretName"),
            ("secretKey", "cloudConfigCredentialsSecretKey"),
        ):
            source = (*_MANIFEST, field_name)
            yield _Setting(("cloudConfig", setting), at(manifest, field_name), source)
        return

    delivery: FieldPath = (*_CLOUD_CONFIG, "delivery")
    if at(facts.harvester_cluster, *delivery) == "File":
        yield _Setting(("cloudConfig", "hostPath"), _HOST_PATH, delivery)
        return
    yield _Setting(("cloudConfig", "secretName"), _DELIVERED_NAME, delivery)
    yield _Setting(("cloudConfig", "secretKey"), _DELIVERED_KEY, delivery)


def _merge_labels(facts: ClusterFacts, gathered: Gathered) -> None:
    """Merge labels `cni` and `csi`."""
    labels = labels_of_cluster(facts)
    if names.CNI_LABEL in labels:
        source = ("metadata", "labels", names.CNI_LABEL)
        _add_field(gathered, ("cni", "name"), labels[names.CNI_LABEL], source)
    if names.CSI_LABEL in labels:
        _merge_csi_label(gathered, labels[names.CSI_LABEL])


def _merge_legacy_annotations(facts: ClusterFacts, gathered: Gathered) -> None:
    """Merge the annotations that the Go provider's generator wrote."""
    annotations = annotations_of_cluster(facts)
    for name, setting in _LEGACY_ANNOTATIONS.items():
        if name not in annotations:
            continue
        value: str | int = annotations[name]
        # An annotation is text, but the MTU is a number. The schema refuses all other texts.
        if setting == "mtu" and re.fullmatch("[0-9]{1,8}", annotations[name]):
            value = int(annotations[name])
        _add_field(gathered, ("cni", setting), value, ("metadata", "annotations", name))


def _merge_csi_label(gathered: Gathered, label: str) -> None:
    """Merge label `csi`, which turns the driver on or off."""
    source: FieldPath = ("metadata", "labels", names.CSI_LABEL)
    if label in ("harvester", "none"):
        gathered.add({"csi": {"enabled": label == "harvester"}}, lambda _: source)
        return
    detail = 'must be "harvester" or "none": other drivers are not installed by these bundles'
    gathered.findings.append(CSI_LABEL.finding(source, Fault.UNSUPPORTED, detail, label))


def _merge_variables(facts: ClusterFacts, gathered: Gathered) -> None:
    """Merge topology variables. `addons` overrides `imageRegistry`, whatever their order."""
    variables = at(facts.cluster, *_VARIABLES)
    if not isinstance(variables, list):
        return
    for name in (_REGISTRY, names.ADDONS_VARIABLE):
        for index, variable in enumerate(variables):
            if at(variable, "name") != name:
                continue
            root: FieldPath = (*_VARIABLES, index, "value")
            if name == _REGISTRY:
                _add_field(gathered, (name,), variable.get("value"), root)
            else:
                _add_values(gathered, variable.get("value"), root)


def _merge_annotation(facts: ClusterFacts, gathered: Gathered) -> None:
    """Merge the settings in annotation `addons.caphv.io/values`."""
    text = annotations_of_cluster(facts).get(names.ADDON_VALUES_ANNOTATION)
    if text is None:
        return
    try:
        value = parse_yaml(text)
    except ValueError as error:
        gathered.findings.append(YAML.finding(SETTINGS_ANNOTATION, Fault.INVALID, str(error)))
        return
    if value is not None:
        _add_values(gathered, value, SETTINGS_ANNOTATION)


def _add_field(gathered: Gathered, path: FieldPath, value: Any, source: FieldPath) -> None:
    """Merge one setting if the schema allows its value. Findings have the path of its source.

    :param gathered: settings of earlier sources
    :param path: path of the setting
    :param value: value of the setting, of any type
    :param source: path of the field that it comes from
    """
    findings = schema.load(SCHEMA).findings(nest(path, value))
    gathered.findings += [replace(finding, path=source) for finding in findings]
    if not findings:
        gathered.add_setting(path, value, source)


def _add_values(gathered: Gathered, values: Any, root: FieldPath) -> None:
    """Merge an object of settings, which is at `root`, if the schema allows it."""
    findings = check_json(values, root) or schema.load(SCHEMA).findings(values, root=root)
    gathered.findings += findings
    if not findings:
        gathered.add(values, lambda path: (*root, *path))
