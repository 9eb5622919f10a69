"""On which hosts a VM may run and should run: its failure domain, the user's affinities, and away from its like."""

import copy
import hashlib
import re
from collections.abc import Iterable

from caphv.api import names
from caphv.api.object import Key, Obj

CLUSTER_LABEL = "caphv.io/cluster"
DEPLOYMENT_LABEL = "cluster.x-k8s.io/deployment-name"

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?")


def label_value(text: str) -> str:
    """Return `text` if it can be a label value, else its start and a hash: at most 63 characters, one for each text."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    start = re.sub(r"[^-_.A-Za-z0-9]", "-", text)[:52].strip("-_.")
    return f"{start}-{digest}" if start else digest


def control_plane_selector(cluster_name: str) -> str:
    """Return the value of label `harvestercluster/machinetype` on the control plane VMs of a cluster."""
    return label_value(f"controlplane-{cluster_name}")


def cluster_label(cluster: Key) -> str:
    """Return the value of label `caphv.io/cluster`: unlike the Go provider's labels, it contains the namespace."""
    return label_value(f"{cluster.namespace}.{cluster.name}")


def group_labels(cluster: Key, machine_labels: dict[str, str], *, control_plane: bool) -> dict[str, str]:
    """Return the labels that the VMs have in common which should be spread over hosts.

    They are the control planes of a cluster, or the workers of one MachineDeployment. The label of control planes is
    the Go provider's, so that VMs made by it count too; it names the cluster without its namespace, which at worst
    spreads two clusters of one name together.
    """
    if control_plane:
        return {names.MACHINE_TYPE_LABEL: control_plane_selector(cluster.name)}
    labels = {CLUSTER_LABEL: cluster_label(cluster)}
    if deployment := machine_labels.get(DEPLOYMENT_LABEL):
        labels[DEPLOYMENT_LABEL] = label_value(deployment)
    return labels


def domain_requirement(failure_domain: str, published: Iterable[Obj]) -> Obj | None:
    """Return the node selector requirement of a failure domain, None for no domain.

    `published` is the HarvesterCluster's `status.failureDomains`; a name that is not there is taken for a host's.
    """
    if not failure_domain:
        return None
    keys = (
        (domain.get("attributes") or {}).get("topologyKey")
        for domain in published
        if domain.get("name") == failure_domain
    )
    return {"key": next(keys, None) or names.HOSTNAME_LABEL, "operator": "In", "values": [failure_domain]}


def affinity(spec: Obj, group: dict[str, str], requirement: Obj | None, *, strict: bool = True) -> Obj:
    """Return the affinity of a VM from the HarvesterMachine's spec; `group` are labels of VMs to keep away from.

    `requirement` is that of the failure domain. Unless `strict`, it is a strong preference: Harvester cannot empty a
    host, for maintenance or an upgrade, on which a VM is required to run.
    """
    result: Obj = {
        "podAntiAffinity": {
            _PREFERRED: [
                {
                    "weight": 100,
                    "podAffinityTerm": {
                        "topologyKey": names.HOSTNAME_LABEL,
                        "labelSelector": {"matchLabels": dict(group)},
                    },
                }
            ]
        }
    }
    node_affinity: Obj = copy.deepcopy(spec.get("nodeAffinity") or {})
    if requirement and strict:
        required = node_affinity.setdefault(_REQUIRED, {})
        # Terms are alternatives: only a requirement in each of them holds in every case.
        required["nodeSelectorTerms"] = [
            {**term, "matchExpressions": [*(term.get("matchExpressions") or ()), requirement]}
            for term in required.get("nodeSelectorTerms") or [{}]
        ]
    elif requirement:
        preferred = {"weight": 100, "preference": {"matchExpressions": [requirement]}}
        node_affinity[_PREFERRED] = [*(node_affinity.get(_PREFERRED) or ()), preferred]
    if node_affinity:
        result["nodeAffinity"] = node_affinity
    if spec.get("workloadAffinity"):
        result["podAffinity"] = copy.deepcopy(spec["workloadAffinity"])
    return result


def is_dropped(expression: Obj) -> bool:
    """Return whether Harvester's admission removes this expression from the required node affinity of a VM.

    It sets these keys itself: for the networks of a VM, and for dedicated CPUs.
    """
    key = str(expression.get("key") or "")
    return key.startswith(names.NETWORK_LABELS_PREFIX) or key == names.CPU_MANAGER_LABEL


def as_harvester_keeps(node_affinity: Obj) -> Obj:
    """Return what Harvester's admission leaves of a node affinity, without what it adds.

    Of required terms, it keeps only those that still have `matchExpressions` after it has removed some.
    """
    result = copy.deepcopy(node_affinity)
    required = result.pop(_REQUIRED, None) or {}
    terms = [
        {**term, "matchExpressions": expressions}
        for term in required.get("nodeSelectorTerms") or ()
        if (expressions := [item for item in term.get("matchExpressions") or () if not is_dropped(item)])
    ]
    if terms:
        result[_REQUIRED] = {**required, "nodeSelectorTerms": terms}
    return result


def without_requirement(node_affinity: Obj, requirement: Obj) -> tuple[Obj, bool]:
    """Return a node affinity without the requirement of a failure domain, and whether it was there in either form.

    VMs of earlier versions and of the Go provider require what new ones prefer.
    """
    found = False
    result = copy.deepcopy(node_affinity)
    required = result.pop(_REQUIRED, None) or {}
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        expressions = [each for each in term.get("matchExpressions") or () if each != requirement]
        found |= len(expressions) != len(term.get("matchExpressions") or ())
        rest = {name: value for name, value in term.items() if name != "matchExpressions"}
        terms.append({**rest, "matchExpressions": expressions} if expressions else rest)
    if any(terms):
        result[_REQUIRED] = {**required, "nodeSelectorTerms": terms}
    preferred = result.pop(_PREFERRED, None) or []
    kept = [term for term in preferred if (term.get("preference") or {}).get("matchExpressions") != [requirement]]
    if kept:
        result[_PREFERRED] = kept
    return result, found or len(kept) != len(preferred)
