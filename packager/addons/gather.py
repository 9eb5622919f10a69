"""Where the settings of a cluster come from, in the order in which they win.

1. What the cluster says by itself: networks of the Cluster, kind and fields of its control plane, and where its
   HarvesterCluster has the cloud config put.
2. Labels `cni` and `csi`, and the annotations `caphv.io/cni-*` that the Go provider's generator wrote.
3. Topology variable `imageRegistry`, then topology variable `addons`.
4. Annotation `addons.caphv.io/values`: YAML.

Each source is checked by itself, so that a finding names the place to edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from caphv.api import names
from caphv.api.object import Key, Obj
from caphv.runtime.text import Limits, TextError, load_yaml
from caphv.validation import schema
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.addons.merge import Origins, at, leaves, merged

RULES = Rules()
METADATA = RULES.declare("addons-metadata", "Labels and annotations must be text.", kinds=("Cluster",))
CSI_LABEL = RULES.declare("addons-csi-label", "Label `csi` must be `harvester` or `none`.", kinds=("Cluster",))
YAML = RULES.declare(
    "addons-yaml",
    "Annotation `addons.caphv.io/values` must be YAML without aliases, of types that JSON has.",
    kinds=("Cluster",),
)

SCHEMA = "cluster-addons.json"
CAAPF, RANCHER = "caapf", "rancher"
_LONGEST_ANNOTATION = 64 * 1024
_LIMITS = Limits(size=_LONGEST_ANNOTATION, aliases=False)
_DEEPEST = 64
_DEFAULT_POD_CIDRS = ["10.42.0.0/16"]
_DEFAULT_SERVICE_CIDRS = ["10.43.0.0/16"]
# The Secret that the controller keeps in the workload cluster (`cloudConfig.delivery: Secret`), and the file it writes
# on each node (`File`).
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
# What is known of a Cluster whose ClusterClass is not available: the names of those that we ship.
_CLASSES = {"harvester-k3s": "k3s", "harvester-kubeadm": "kubeadm"}


class FleetCluster(NamedTuple):
    """A Fleet Cluster of a Cluster, and who created it: `caapf` or `rancher`."""

    manager: str
    workspace: str = ""
    name: str = ""


@dataclass(frozen=True)
class ClusterFacts:
    """What is known of one cluster: objects as the API server or a file has them, and what Fleet knows.

    `fleet_clusters` are its Fleet Clusters as far as known: empty means nothing.
    """

    cluster: Obj
    harvester_cluster: Obj | None = None
    control_plane: Obj | None = None
    fleet_clusters: frozenset[FleetCluster] = frozenset()

    @property
    def key(self) -> Key:
        """Namespace and name of the Cluster; the namespace is `default` where an object in a file has none."""
        metadata = self.cluster.get("metadata") or {}
        return Key(str(metadata.get("namespace") or "default"), str(metadata.get("name") or ""))

    @property
    def kubernetes_version(self) -> str:
        """Wanted version, such as `v1.36.2+rke2r1`; empty when neither topology nor control plane says it."""
        topology = at(self.cluster, "spec", "topology", "version")
        return str(topology or at(self.control_plane, "spec", "version") or "")


@dataclass
class Gathered:
    """The merged settings of all sources, where each field came from, and what was wrong with a source."""

    values: Obj = field(default_factory=dict)
    origins: Origins = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add_one(self, path: FieldPath, value: Any, source: FieldPath) -> None:
        """Merge one field, which stands at `source`."""
        self.add(_nested(path, value), lambda _: source)

    def add(self, values: Obj, source: Callable[[FieldPath], FieldPath]) -> None:
        """Merge one source over the earlier ones; `source` says where in it a field is."""
        self.values = merged(self.values, values)
        for path in leaves(values):
            # A list or scalar that replaces an object leaves no trace of its parts, and the other way round.
            gone = [known for known in self.origins if known[: len(path)] == path or path[: len(known)] == known]
            for known in gone:
                del self.origins[known]
            self.origins[path] = source(path)


def gather(facts: ClusterFacts) -> Gathered:
    """Read all sources of a cluster; a source with a finding is left out."""
    gathered = Gathered()
    gathered.findings += _no_texts(facts)
    if not gathered.findings:
        for read in (_from_cluster, _labels, _variable, _annotation):
            read(facts, gathered)
        if not gathered.findings and "name" not in gathered.values["cni"]:
            brought = "calico" if gathered.values["distribution"] == "rke2" else "none"
            gathered.add_one(("cni", "name"), brought, (*_SERVER_CONFIG, "cni"))
    return gathered


def _no_texts(facts: ClusterFacts) -> Iterator[Finding]:
    """Labels and annotations that an API server would refuse: files may hold anything."""
    for field_name in ("labels", "annotations"):
        path: FieldPath = ("metadata", field_name)
        values = at(facts.cluster, *path)
        if values is not None and not isinstance(values, dict):
            yield METADATA.finding(path, Fault.WRONG_TYPE, "must be an object")
        for name, value in values.items() if isinstance(values, dict) else ():
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


def _from_cluster(facts: ClusterFacts, gathered: Gathered) -> None:
    known: dict[FieldPath, tuple[Any, FieldPath]] = {
        **_control_plane_facts(facts),
        **_network_facts(facts),
        **_harvester_facts(facts),
    }
    auto_import = labels_of_cluster(facts).get(names.AUTO_IMPORT_LABEL) == "true"
    # The label alone does not decide: with Turtles' feature `use-caapf` only CAAPF makes a Fleet Cluster, and Turtles
    # also imports clusters of labelled namespaces.
    managers = {found.manager for found in facts.fleet_clusters}
    expected = RANCHER if auto_import else CAAPF
    importer = managers.pop() if len(managers) == 1 else expected
    known["fleet", "importedBy"] = importer, ("metadata", "labels", names.AUTO_IMPORT_LABEL)
    values: Obj = {}
    for path, (value, _) in known.items():
        values = merged(values, _nested(path, value))
    # Those objects have schemas of their own, but files may hold anything.
    findings = schema.load(SCHEMA).findings(values)
    faulty = {found.path[: len(path)]: found for found in findings for path in known}
    for path, (value, source) in known.items():
        if path in faulty:
            gathered.findings.append(_moved(faulty[path], (*source, *faulty[path].path[len(path) :])))
        else:
            gathered.add_one(path, value, source)


def _control_plane_facts(facts: ClusterFacts) -> dict[FieldPath, tuple[Any, FieldPath]]:
    ref = ("spec", "controlPlaneRef", "kind")
    distribution = _distribution(facts, str((facts.control_plane or {}).get("kind") or at(facts.cluster, *ref) or ""))
    replicas_path: FieldPath = ("spec", "topology", "controlPlane", "replicas")
    replicas = at(facts.cluster, *replicas_path) or at(facts.control_plane, "spec", "replicas")
    theirs = at(facts.control_plane, *_SERVER_CONFIG, "cloudProviderName")
    cni = at(facts.control_plane, *_SERVER_CONFIG, "cni")
    return {
        ("distribution",): (distribution, ref),
        ("cloudProviderName",): (
            "harvester" if distribution == "rke2" and theirs == "harvester" else "external",
            (*_SERVER_CONFIG, "cloudProviderName"),
        ),
        ("singleNode",): (replicas == 1, replicas_path),
        **({("cni", "name"): (cni, (*_SERVER_CONFIG, "cni"))} if distribution == "rke2" and cni else {}),
    }


def _distribution(facts: ClusterFacts, kind: str) -> str:
    """Return the distribution that a kind of control plane makes; another one brings no charts, like kubeadm."""
    if kind:
        return _DISTRIBUTIONS.get(kind, "kubeadm")
    if "+" in facts.kubernetes_version:
        return "k3s" if "+k3s" in facts.kubernetes_version else "rke2"
    topology = at(facts.cluster, "spec", "topology")
    return _CLASSES.get(str(at(topology, "classRef", "name") or at(topology, "class")), "rke2")


def _network_facts(facts: ClusterFacts) -> dict[FieldPath, tuple[Any, FieldPath]]:
    pods: FieldPath = ("spec", "clusterNetwork", "pods", "cidrBlocks")
    services: FieldPath = ("spec", "clusterNetwork", "services", "cidrBlocks")
    return {
        ("cni", "podCIDRs"): (at(facts.cluster, *pods) or _DEFAULT_POD_CIDRS, pods),
        ("cni", "serviceCIDRs"): (at(facts.cluster, *services) or _DEFAULT_SERVICE_CIDRS, services),
    }


def _harvester_facts(facts: ClusterFacts) -> dict[FieldPath, tuple[Any, FieldPath]]:
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


def _labels(facts: ClusterFacts, gathered: Gathered) -> None:
    labels, notes = labels_of_cluster(facts), annotations_of_cluster(facts)
    if names.CNI_LABEL in labels:
        _one(gathered, ("cni", "name"), labels[names.CNI_LABEL], ("metadata", "labels", names.CNI_LABEL))
    if names.CSI_LABEL in labels:
        _csi_label(gathered, labels[names.CSI_LABEL])
    for name, path in (
        (names.OLD_CNI_MTU_ANNOTATION, ("cni", "mtu")),
        (names.OLD_CNI_ENCAPSULATION_ANNOTATION, ("cni", "encapsulation")),
        (names.OLD_CNI_BGP_ANNOTATION, ("cni", "bgp")),
    ):
        if name in notes:
            text = notes[name]
            # Annotations are text; only the MTU is a number.
            value = int(text) if path[1] == "mtu" and text.isascii() and text.isdigit() and len(text) < 9 else text
            _one(gathered, path, value, ("metadata", "annotations", name))


def _csi_label(gathered: Gathered, label: str) -> None:
    source: FieldPath = ("metadata", "labels", names.CSI_LABEL)
    if label in ("harvester", "none"):
        gathered.add({"csi": {"enabled": label == "harvester"}}, lambda _: source)
        return
    detail = 'must be "harvester" or "none": other drivers are not installed by these bundles'
    gathered.findings.append(CSI_LABEL.finding(source, Fault.UNSUPPORTED, detail, label))


def _variable(facts: ClusterFacts, gathered: Gathered) -> None:
    found = at(facts.cluster, "spec", "topology", "variables")
    rows = list(enumerate(found if isinstance(found, list) else ()))
    for name in (_REGISTRY, names.ADDONS_VARIABLE):
        for index, variable in rows:
            if at(variable, "name") != name:
                continue
            root: FieldPath = ("spec", "topology", "variables", index, "value")
            if name == _REGISTRY:
                _one(gathered, (name,), variable.get("value"), root)
            else:
                _checked(gathered, variable.get("value"), root)


def _annotation(facts: ClusterFacts, gathered: Gathered) -> None:
    text = annotations_of_cluster(facts).get(names.ADDON_VALUES_ANNOTATION)
    if text is None:
        return
    root: FieldPath = ("metadata", "annotations", names.ADDON_VALUES_ANNOTATION)
    value, fault = parsed(text)
    if fault:
        gathered.findings.append(YAML.finding(root, Fault.INVALID, fault))
    elif value is not None:
        _checked(gathered, value, root)


def parsed(text: str) -> tuple[Any, str]:
    """Parse YAML of a user: the value, or what is wrong with it. Aliases are refused: a few make gigabytes."""
    if len(text) > _LONGEST_ANNOTATION:
        return None, f"must have at most {_LONGEST_ANNOTATION} characters"
    try:
        return load_yaml(text, _LIMITS), ""
    except TextError as error:
        return None, str(error)


# Inside


def labels_of_cluster(facts: ClusterFacts) -> dict[str, str]:
    """Labels of the Cluster; empty where an object in a file has none."""
    return _texts(facts, "labels")


def annotations_of_cluster(facts: ClusterFacts) -> dict[str, str]:
    """Annotations of the Cluster; empty where an object in a file has none."""
    return _texts(facts, "annotations")


def _texts(facts: ClusterFacts, name: str) -> dict[str, str]:
    found = at(facts.cluster, "metadata", name)
    return found if isinstance(found, dict) else {}


def _one(gathered: Gathered, path: FieldPath, value: Any, source: FieldPath) -> None:
    values = _nested(path, value)
    found = schema.load(SCHEMA).findings(values)
    gathered.findings += [_moved(finding, source) for finding in found]
    if not found:
        gathered.add_one(path, value, source)


def _checked(gathered: Gathered, values: Any, root: FieldPath) -> None:
    found = _unwritable(values, root) or schema.load(SCHEMA).findings(values, root=root)
    gathered.findings += found
    if not found:
        gathered.add(values, lambda path: (*root, *path))


def _unwritable(value: Any, path: FieldPath) -> list[Finding]:
    """Findings for what YAML knows and JSON does not: dates, keys that are not text, infinite numbers."""
    if len(path) > _DEEPEST:
        return [YAML.finding(path[:8], Fault.INVALID, f"must not be nested deeper than {_DEEPEST} levels")]
    if isinstance(value, Mapping):
        if invalid := [key for key in value if not isinstance(key, str)]:
            return [YAML.finding(path, Fault.WRONG_TYPE, f"keys must be text: quote {invalid[0]!r}")]
        return [found for key, item in value.items() for found in _unwritable(item, (*path, key))]
    if isinstance(value, list):
        return [found for index, item in enumerate(value) for found in _unwritable(item, (*path, index))]
    if isinstance(value, str):
        surrogates = not value.isascii() and any(0xD800 <= ord(character) <= 0xDFFF for character in value)
        detail = "must be text that UTF-8 can hold"
        return [YAML.finding(path, Fault.INVALID, detail)] if surrogates else []
    known = value is None or isinstance(value, int) or (isinstance(value, float) and abs(value) < float("inf"))
    detail = f"must be text, number, boolean, list or object, not {type(value).__name__}: quote it"
    return [] if known else [YAML.finding(path, Fault.WRONG_TYPE, detail)]


def _moved(finding: Finding, path: FieldPath) -> Finding:
    return Finding(path, finding.fault, finding.detail, finding.rule, finding.value, finding.advice)


def _nested(path: FieldPath, value: Any) -> Obj:
    for key in reversed(path):
        value = {key: value}
    return dict(value)
