"""Rules about the Fleet Cluster that the bundles of a cluster are for: one of them, and its own."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api import names
from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.addons.gather import CAAPF, RANCHER, ClusterFacts, labels_of_cluster

RULES = Rules()
"""Their checks take the facts of a cluster and its settings; paths are those of the settings."""


@RULES.rule("fleet-twice", ("Cluster",), "A cluster must be imported into Fleet once: by CAAPF or by Rancher.")
def _fleet(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    path: FieldPath = ("fleet", "importedBy")
    reason = "two Fleet agents in one cluster undo each other's work"
    managers = {found.manager for found in facts.fleet_clusters}
    if len(managers) > 1:
        detail = (
            f"Fleet has a Cluster of CAAPF and one of Rancher for it, and {reason}: remove one of them, or enable "
            "feature use-caapf of Turtles, which leaves Fleet to CAAPF"
        )
        yield Finding(path, Fault.FORBIDDEN, detail)
    elif managers and values["fleet"]["importedBy"] not in managers:
        detail = f"Fleet has a Cluster of {'/'.join(managers)} for it: leave the setting out, or change it"
        yield Finding(path, Fault.INVALID, detail, value=values["fleet"]["importedBy"])


@RULES.rule(
    "fleet-use-caapf",
    ("Cluster",),
    "Rancher's import together with CAAPF's must have feature `use-caapf` of Turtles enabled.",
    advice=True,
)
def _use_caapf(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    imported = labels_of_cluster(facts).get(names.AUTO_IMPORT_LABEL) == "true"
    if imported and values["fleet"]["importedBy"] == CAAPF and not facts.fleet_clusters:
        detail = (
            f"label {names.AUTO_IMPORT_LABEL} has Rancher import the cluster as well: enable feature use-caapf of "
            "Turtles, or two Fleet agents in one cluster undo each other's work"
        )
        yield Finding(("fleet", "importedBy"), Fault.INVALID, detail, value=CAAPF)


@RULES.rule("fleet-cluster-name", ("Cluster",), "Bundles must be for the Fleet Cluster that CAAPF creates.")
def _fleet_cluster(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    fleet = values["fleet"]
    if fleet.get("clusterName") and fleet["importedBy"] == RANCHER:
        detail = "must be left out with Rancher's import: its Fleet Clusters are found by label"
        yield Finding(("fleet", "clusterName"), Fault.FORBIDDEN, detail)
    named = {found.name for found in facts.fleet_clusters if found.manager == CAAPF}
    wanted = fleet.get("clusterName") or facts.key.name
    if fleet["importedBy"] == CAAPF and named and wanted not in named:
        detail = f"CAAPF has named the Fleet Cluster {min(named)}: set fleet.clusterName to it, or no bundle reaches it"
        yield Finding(("fleet", "clusterName"), Fault.INVALID, detail, value=wanted)


@RULES.rule(
    "fleet-workspace",
    ("Cluster",),
    "With CAAPF, the workspace must be the namespace of the Cluster, where CAAPF creates the Fleet Cluster.",
)
def _fleet_workspace(facts: ClusterFacts, values: Obj) -> Iterator[Finding]:
    # The name of a Fleet Cluster in another workspace may be that of another tenant's, or of the management cluster.
    # Rancher's are found by labels that name their Cluster, in whatever workspace they are.
    fleet = values["fleet"]
    named = fleet.get("workspace")
    if named and fleet["importedBy"] == CAAPF and named != facts.key.namespace:
        detail = (
            "must be left out with importedBy: caapf: CAAPF creates the Fleet Cluster in the namespace of the Cluster, "
            f"{facts.key.namespace}, and bundles go nowhere else"
        )
        yield Finding(("fleet", "workspace"), Fault.FORBIDDEN, detail, value=named)
