"""From a definition to all objects of its cluster, and to its bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from caphv.api import names
from caphv.api.object import Obj
from caphv.validation.finding import FieldPath, Finding, in_order
from packager.addons.settings import ClusterFacts
from packager.definitions import addons, model, shared, started
from packager.definitions import objects as individual
from packager.definitions.model import CLUSTER_RESOURCE_SET, FLEET, Definition
from packager.definitions.nodeconfig import NodeConfig, after_rendering, before_rendering, with_kept_files
from packager.definitions.topology import topology
from packager.rendering import yaml
from packager.rendering.renderer import Rendered, Renderer
from packager.tree import Tree

# What the settings of add-ons are read from → where the definition says it.
_PLACES: tuple[tuple[FieldPath, FieldPath], ...] = (
    (("metadata", "annotations", names.ADDON_VALUES_ANNOTATION), ("spec", "addons")),
    (("metadata", "labels", names.CNI_LABEL), ("spec", "addons", "cni", "name")),
    (("metadata", "labels", names.CSI_LABEL), ("spec", "addons", "csi", "enabled")),
    (("metadata", "labels", names.AUTO_IMPORT_LABEL), ("spec", "rancherAutoImport")),
    (("spec", "clusterNetwork", "pods", "cidrBlocks"), ("spec", "clusterNetwork", "podCIDRs")),
    (("spec", "clusterNetwork", "services", "cidrBlocks"), ("spec", "clusterNetwork", "serviceCIDRs")),
    (("podCIDRs",), ("spec", "clusterNetwork", "podCIDRs")),
    (("serviceCIDRs",), ("spec", "clusterNetwork", "serviceCIDRs")),
    (("spec", "topology", "version"), ("spec", "kubernetesVersion")),
    (("spec", "topology", "controlPlane", "replicas"), ("spec", "controlPlane", "replicas")),
    (("spec", "controlPlaneRef", "kind"), ("spec", "distribution")),
    (("spec", "serverConfig", "cni"), ("spec", "addons", "cni", "name")),
    (("spec", "serverConfig", "cloudProviderName"), ("spec", "addons", "cloudProviderName")),
    (("spec", "cloudConfig", "delivery"), ("spec", "addons", "cloudConfig")),
)
_SETTINGS = ("cni", "ccm", "csi", "fleet", "cloudConfig", "cloudProviderName", "distribution", "singleNode")


@dataclass(frozen=True)
class Built:
    """The objects of one cluster, in an order in which they can be applied, and what there is to say about them.

    `shared` are groups of objects by name that other clusters of the namespace have as well. `rendered` holds the
    bundles; only with delivery by Fleet they are for a repository. There are no objects when a finding is more than
    advice.
    """

    definition: Definition | None
    shared: Mapping[str, Sequence[Obj]] = field(default_factory=dict)
    objects: Sequence[Obj] = ()
    rendered: Rendered | None = None
    findings: Sequence[Finding] = ()

    @property
    def ok(self) -> bool:
        """Whether there are objects."""
        return bool(self.objects)


def build(obj: Any, renderer: Renderer, previous: Tree, existing: Sequence[Obj] = ()) -> Built:
    """Make all objects of a definition; `previous` is the repository with the bundles as it is.

    `existing` are the objects of a running cluster, whose nodes keep the files that they started with until another
    change replaces them.
    """
    definition, findings = model.read(obj)
    if definition is None:
        return Built(None, findings=findings)
    known = before_rendering(definition)
    rendered = renderer.render_one(_facts(definition, known), previous)
    findings = in_order([*findings, *(moved(finding) for finding in rendered.findings)])
    if not rendered.ok or rendered.settings is None:
        return Built(definition, rendered=rendered, findings=findings)
    boot = after_rendering(definition, rendered, existing)
    own = _own(definition, boot)
    compared = definition.distribution != "kubeadm" and not rendered.forced
    if compared and (refused := started.changes(existing, own)):
        return Built(definition, rendered=rendered, findings=in_order([*findings, *refused]))
    if (kept := with_kept_files(boot, existing, own)) != boot:
        own = _own(definition, kept)
    if definition.delivery == CLUSTER_RESOURCE_SET:
        sets, found = addons.resource_sets(definition, rendered, renderer)
        own += sets
        findings = in_order([*findings, *(moved(finding) for finding in found)])
        if found:
            return Built(definition, rendered=rendered, findings=findings)
    own += filter(None, (_health_check(definition), addons.git_repo(definition, rendered.settings)))
    return Built(definition, shared.shared(definition), own, rendered, findings)


def _own(definition: Definition, boot: NodeConfig) -> list[Obj]:
    return [cluster(definition, boot), *(individual.objects(definition, boot) if not definition.cluster_class else ())]


def cluster(definition: Definition, boot: NodeConfig) -> Obj:
    """Return the Cluster; settings of its add-ons stand in the annotation that the packager reads."""
    network = {
        "pods": {"cidrBlocks": list(definition.pod_cidrs)},
        "services": {"cidrBlocks": list(definition.service_cidrs)},
    }
    own = {"topology": topology(definition, boot)} if definition.cluster_class else individual.references(definition)
    notes = {**definition.annotations}
    if definition.addons:
        notes[names.ADDON_VALUES_ANNOTATION] = yaml.dump(dict(definition.addons))
    if definition.delivery != FLEET:
        # Nothing is to be installed twice.
        notes[names.SUSPEND_ADDONS_ANNOTATION] = "true"
    metadata: Obj = {
        "name": definition.key.name,
        "namespace": definition.key.namespace,
        "labels": {**definition.labels, **addons.labels(definition, boot)},
        **({"annotations": notes} if notes else {}),
    }
    spec = {"clusterNetwork": network, **own}
    return {"apiVersion": individual.CORE, "kind": "Cluster", "metadata": metadata, "spec": spec}


def _facts(definition: Definition, boot: NodeConfig) -> ClusterFacts:
    found = cluster(definition, boot)
    infrastructure = individual.harvester_cluster(definition, boot)
    control_plane = individual.control_plane(definition, boot)
    return ClusterFacts(found, infrastructure, control_plane)


def _health_check(definition: Definition) -> Obj | None:
    check = definition.health_check
    if not check.enabled:
        return None
    unhealthy = [
        {"type": "Ready", "status": status, "timeoutSeconds": check.timeout} for status in ("False", "Unknown")
    ]
    return {
        "apiVersion": individual.CORE,
        "kind": "MachineHealthCheck",
        "metadata": {"name": f"{definition.key.name}-mhc", "namespace": definition.key.namespace},
        "spec": {
            "clusterName": definition.key.name,
            "selector": {"matchLabels": {names.CLUSTER_NAME_LABEL: definition.key.name}},
            "checks": {"nodeStartupTimeoutSeconds": check.startup, "unhealthyNodeConditions": unhealthy},
            "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": check.unhealthy}},
        },
    }


def moved(finding: Finding) -> Finding:
    """Return a finding about the Cluster as one about the definition that it was made from."""
    path = finding.path
    for source, target in _PLACES:
        if path[: len(source)] == source:
            path = (*target, *path[len(source) :])
            break
    else:
        if path and path[0] in _SETTINGS:
            path = ("spec", "addons", *path)
    return Finding(path, finding.fault, finding.detail, finding.rule, finding.value, finding.advice)
