"""Rules that make bundles go to one Fleet Cluster, and to the right one."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import names
from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.addons.facts import CAAPF, RANCHER, ClusterFacts, labels_of_cluster

RULES = Rules()
"""Their checks take the facts of a cluster and its settings, and report paths in the settings."""


@RULES.rule(
    "fleet-twice",
    ("Cluster",),
    "A cluster must be imported into Fleet once: by CAAPF or by Rancher.",
)
def _check_importer(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    path: FieldPath = ("fleet", "importedBy")
    reason = "two Fleet agents in one cluster undo each other's work"
    managers = {fleet_cluster.manager for fleet_cluster in facts.fleet_clusters}

    if len(managers) > 1:
        detail = (
            f"Fleet has a Cluster of CAAPF and one of Rancher for it, and {reason}: remove one of "
            "them, or enable feature use-caapf of Turtles, which leaves Fleet to CAAPF"
        )
        yield Finding(path, Fault.FORBIDDEN, detail)
    elif managers and values["fleet"]["importedBy"] not in managers:
        detail = (
            f"Fleet has a Cluster of {'/'.join(managers)} for it: leave the setting out, or "
            "change it"
        )
        yield Finding(path, Fault.INVALID, detail, value=values["fleet"]["importedBy"])


@RULES.rule(
    "fleet-use-caapf",
    ("Cluster",),
    "Rancher's import together with CAAPF's must have feature `use-caapf` of Turtles enabled.",
    advice=True,
)
def _check_use_caapf(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    # Without a Fleet Cluster, CAAPF and Rancher may both import the cluster.
    imported = labels_of_cluster(facts).get(names.AUTO_IMPORT_LABEL) == "true"
    if imported and values["fleet"]["importedBy"] == CAAPF and not facts.fleet_clusters:
        detail = (
            f"label {names.AUTO_IMPORT_LABEL} has Rancher import the cluster as well: enable "
            "feature use-caapf of Turtles, or two Fleet agents in one cluster undo each other's "
            "work"
        )
        yield Finding(("fleet", "importedBy"), Fault.INVALID, detail, value=CAAPF)


@RULES.rule(
    "fleet-cluster-name", ("Cluster",), "Bundles must be for the Fleet Cluster that CAAPF creates."
)
def _check_cluster_name(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    fleet = values["fleet"]
    if fleet.get("clusterName") and fleet["importedBy"] == RANCHER:
        detail = "must be left out with Rancher's import: its Fleet Clusters are found by label"
        yield Finding(("fleet", "clusterName"), Fault.FORBIDDEN, detail)

    existing = {cluster.name for cluster in facts.fleet_clusters if cluster.manager == CAAPF}
    name = fleet.get("clusterName") or facts.key.name
    if fleet["importedBy"] == CAAPF and existing and name not in existing:
        detail = (
            f"CAAPF has named the Fleet Cluster {min(existing)}: set fleet.clusterName to it, or "
            "no bundle reaches it"
        )
        yield Finding(("fleet", "clusterName"), Fault.INVALID, detail, value=name)


@RULES.rule(
    "fleet-workspace",
    ("Cluster",),
    "With CAAPF, the workspace must be the namespace of the Cluster, where CAAPF creates the Fleet "
    "Cluster.",
)
def _check_workspace(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    # In another workspace, a Fleet Cluster of this name may belong to another tenant, or be the
    # management cluster. Fleet Clusters of Rancher are found in any workspace by labels that name
    # their Cluster.
    fleet = values["fleet"]
    workspace = fleet.get("workspace")
    if workspace and fleet["importedBy"] == CAAPF and workspace != facts.key.namespace:
        detail = (
            "must be left out with importedBy: caapf: CAAPF creates the Fleet Cluster in the "
            f"namespace of the Cluster, {facts.key.namespace}, and bundles go nowhere else"
        )
        yield Finding(("fleet", "workspace"), Fault.FORBIDDEN, detail, value=workspace)
