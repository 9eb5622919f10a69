"""Builds all objects of a cluster, and its bundles, from its definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from caphv.api import names
from caphv.api.object import Obj
from caphv.validation.finding import FieldPath, Finding, in_order
from packager.addons.facts import ClusterFacts
from packager.definitions import addons, kubevip, model, shared, started
from packager.definitions import objects as individual
from packager.definitions.model import CLUSTER_RESOURCE_SET, FLEET, Definition
from packager.definitions.nodeconfig import (
    NodeConfig,
    config_after_rendering,
    config_before_rendering,
    keep_files,
)
from packager.definitions.topology import topology
from packager.rendering import yaml
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.tree import Tree

# Field that settings of add-ons are read from → field of the definition.
_PLACES: tuple[tuple[FieldPath, FieldPath], ...] = (
    (("metadata", "annotations", names.ADDON_VALUES_ANNOTATION), ("spec", "addons")),
    (("metadata", "labels", names.CNI_LABEL), ("spec", "addons", "cni", "name")),
    (("metadata", "labels", names.CSI_LABEL), ("spec", "addons", "csi", "enabled")),
    (("metadata", "labels", names.AUTO_IMPORT_LABEL), ("spec", "rancherAutoImport")),
    (("spec", "clusterNetwork", "pods", "cidrBlocks"), ("spec", "clusterNetwork", "podCIDRs")),
    (
        ("spec", "clusterNetwork", "services", "cidrBlocks"),
        ("spec", "clusterNetwork", "serviceCIDRs"),
    ),
    (("podCIDRs",), ("spec", "clusterNetwork", "podCIDRs")),
    (("serviceCIDRs",), ("spec", "clusterNetwork", "serviceCIDRs")),
    (("spec", "topology", "version"), ("spec", "kubernetesVersion")),
    (("spec", "topology", "controlPlane", "replicas"), ("spec", "controlPlane", "replicas")),
    (("spec", "controlPlaneRef", "kind"), ("spec", "distribution")),
    (("spec", "serverConfig", "cni"), ("spec", "addons", "cni", "name")),
    (("spec", "serverConfig", "cloudProviderName"), ("spec", "addons", "cloudProviderName")),
    (("spec", "cloudConfig", "delivery"), ("spec", "addons", "cloudConfig")),
)
_SETTINGS = (
    "cni",
    "ccm",
    "csi",
    "fleet",
    "cloudConfig",
    "cloudProviderName",
    "distribution",
    "singleNode",
)


@dataclass(frozen=True)
class Built:
    """The objects of one cluster, in an order in which they can be applied, and findings.

    `shared` are groups of objects by name that other clusters of the namespace have as well.
    `rendered` holds the bundles, which a repository gets only with delivery by Fleet. There are no
    objects when a finding is more than advice.
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
    """Build all objects of a definition.

    :param obj: the definition
    :param renderer: renders the bundles
    :param previous: the current repository with the bundles
    :param existing: the objects of a running cluster, whose nodes keep the files that they started
        with until another change replaces them
    """
    parsed = model.parse(obj)
    definition = parsed.definition
    if definition is None:
        return Built(None, findings=parsed.findings)

    facts = _facts(definition, config_before_rendering(definition))
    rendered = renderer.render_one(facts, previous)
    findings = in_order([*parsed.findings, *map(at_definition, rendered.findings)])
    if not rendered.ok or rendered.settings is None:
        return Built(definition, rendered=rendered, findings=findings)

    # Refuse changes that would break the network of a running cluster, with which its new servers
    # could not join, or that would leave its endpoint without a holder.
    node_config = config_after_rendering(definition, rendered, existing)
    objects = _cluster_objects(definition, node_config)
    refusals = list(kubevip.check_change(existing, objects))
    if not rendered.forced:
        refusals += started.check_cni(existing, facts, rendered.settings)
        if definition.distribution != "kubeadm":
            refusals += started.check_changes(existing, objects)
    if refusals:
        findings = in_order([*findings, *refusals])
        return Built(definition, rendered=rendered, findings=findings)

    # Only a comparison with the new objects tells which files the nodes keep, so the objects are
    # built again if nodes keep other files.
    config_with_old_files = keep_files(node_config, existing, objects)
    if config_with_old_files != node_config:
        objects = _cluster_objects(definition, config_with_old_files)

    if definition.delivery == CLUSTER_RESOURCE_SET:
        # Manifests of the add-ons are rendered again, as HelmCharts.
        sets = addons.resource_sets(definition, rendered, renderer)
        objects += sets.objects
        findings = in_order([*findings, *map(at_definition, sets.findings)])
        if sets.findings:
            return Built(definition, rendered=rendered, findings=findings)
    for extra in (_health_check(definition), addons.git_repo(definition, rendered.settings)):
        if extra:
            objects.append(extra)
    return Built(
        definition=definition,
        shared=shared.shared_groups(definition),
        objects=objects,
        rendered=rendered,
        findings=findings,
    )


def _cluster_objects(definition: Definition, node_config: NodeConfig) -> list[Obj]:
    """Return the Cluster, and all objects that it references unless it has a ClusterClass."""
    objects = [cluster(definition, node_config)]
    if not definition.cluster_class:
        objects += individual.objects(definition, node_config)
    return objects


def cluster(definition: Definition, node_config: NodeConfig) -> Obj:
    """Return the Cluster; the packager reads settings of its add-ons from an annotation."""
    network = {
        "pods": {"cidrBlocks": list(definition.pod_cidrs)},
        "services": {"cidrBlocks": list(definition.service_cidrs)},
    }
    if definition.cluster_class:
        references: Obj = {"topology": topology(definition, node_config)}
    else:
        references = individual.references(definition)

    annotations = {**definition.annotations}
    if definition.addons:
        annotations[names.ADDON_VALUES_ANNOTATION] = yaml.dump(dict(definition.addons))
    if definition.delivery != FLEET:
        # Fleet must not install add-ons that are installed in another way.
        annotations[names.SUSPEND_ADDONS_ANNOTATION] = "true"

    metadata: Obj = {
        "name": definition.key.name,
        "namespace": definition.key.namespace,
        "labels": {**definition.labels, **addons.labels(definition, node_config)},
    }
    if annotations:
        metadata["annotations"] = annotations
    spec = {"clusterNetwork": network, **references}
    return {"apiVersion": individual.CORE, "kind": "Cluster", "metadata": metadata, "spec": spec}


def _facts(definition: Definition, node_config: NodeConfig) -> ClusterFacts:
    return ClusterFacts(
        cluster(definition, node_config),
        individual.harvester_cluster(definition, node_config),
        individual.control_plane(definition, node_config),
    )


def _health_check(definition: Definition) -> Obj | None:
    """Return the MachineHealthCheck of a cluster, None if it is turned off."""
    check = definition.health_check
    if not check.enabled:
        return None

    unhealthy = [
        {"type": "Ready", "status": status, "timeoutSeconds": check.timeout}
        for status in ("False", "Unknown")
    ]
    name = definition.key.name
    namespace = definition.key.namespace
    return {
        "apiVersion": individual.CORE,
        "kind": "MachineHealthCheck",
        "metadata": {"name": f"{name}-mhc", "namespace": namespace},
        "spec": {
            "clusterName": name,
            "selector": {"matchLabels": {names.CLUSTER_NAME_LABEL: name}},
            "checks": {
                "nodeStartupTimeoutSeconds": check.startup,
                "unhealthyNodeConditions": unhealthy,
            },
            "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": check.unhealthy}},
        },
    }


def at_definition(finding: Finding) -> Finding:
    """Return a finding about the Cluster with the path of the field in its definition."""
    path = finding.path
    for source, target in _PLACES:
        if path[: len(source)] == source:
            return replace(finding, path=(*target, *path[len(source) :]))
    if path and path[0] in _SETTINGS:
        return replace(finding, path=("spec", "addons", *path))
    return finding
