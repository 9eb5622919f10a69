"""Decide on which hosts a VM may run and should run.

The decision depends on its failure domain, the user's affinities, and VMs of the same group.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence

from caphv.api import names
from caphv.api.labels import cluster_label, label_value
from caphv.api.object import Key, Obj, at, labels_of

CLUSTER_LABEL = names.CLUSTER_LABEL
DEPLOYMENT_LABEL = "cluster.x-k8s.io/deployment-name"

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def control_plane_selector(cluster_name: str) -> str:
    """Return the value of label `harvestercluster/machinetype` on a cluster's control plane VMs."""
    return label_value(f"controlplane-{cluster_name}")


def group_labels(
    cluster: Key, machine_labels: dict[str, str], *, control_plane: bool
) -> dict[str, str]:
    """Return the common labels of the VMs that should be spread over hosts.

    Such a group is the control plane of a cluster, or the workers of one MachineDeployment.
    """
    # The label of control planes comes from the Go provider, so that its VMs count, too. It names
    # the cluster without its namespace. At worst, two clusters of the same name are spread as one.
    if control_plane:
        return {names.MACHINE_TYPE_LABEL: control_plane_selector(cluster.name)}
    labels = {CLUSTER_LABEL: cluster_label(cluster)}
    if deployment := machine_labels.get(DEPLOYMENT_LABEL):
        labels[DEPLOYMENT_LABEL] = label_value(deployment)
    return labels


def domain_requirement(failure_domain: str, published: Iterable[Obj]) -> Obj | None:
    """Return the node selector requirement of a failure domain, None for no domain.

    A name that is not published is treated as the name of a host.

    :param published: the HarvesterCluster's `status.failureDomains`
    """
    if not failure_domain:
        return None
    key = None
    for domain in published:
        if domain.get("name") == failure_domain:
            key = at(domain, "attributes", "topologyKey")
            break
    return {"key": key or names.HOSTNAME_LABEL, "operator": "In", "values": [failure_domain]}


def affinity(
    spec: Obj, group: dict[str, str], requirement: Obj | None, *, strict: bool = True
) -> Obj:
    """Return the affinity of a VM.

    :param spec: the HarvesterMachine's spec
    :param group: labels of VMs to keep away from
    :param requirement: node selector requirement of the failure domain
    :param strict: whether the VM must run in the failure domain. Otherwise the domain is a strong
        preference, because Harvester cannot drain a host (for maintenance or an upgrade) on which a
        VM must run
    """
    # Spreading is only a preference, because a small Harvester may have fewer hosts than the group
    # has VMs.
    spread = {
        "weight": 100,
        "podAffinityTerm": {
            "topologyKey": names.HOSTNAME_LABEL,
            "labelSelector": {"matchLabels": dict(group)},
        },
    }
    result: Obj = {"podAntiAffinity": {_PREFERRED: [spread]}}

    node_affinity: Obj = copy.deepcopy(spec.get("nodeAffinity") or {})
    if requirement and strict:
        required = node_affinity.setdefault(_REQUIRED, {})
        # Terms are alternatives, so each of them needs the requirement.
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
    """Return whether Harvester's admission removes an expression from a VM's required affinity."""
    # Harvester sets these keys itself, for the networks of a VM and for dedicated CPUs. Since 1.9
    # it keeps expressions for dedicated CPUs.
    key = str(expression.get("key") or "")
    return key.startswith(names.NETWORK_LABELS_PREFIX) or key == names.CPU_MANAGER_LABEL


def as_harvester_keeps(node_affinity: Obj) -> Obj:
    """Return a node affinity without the expressions that Harvester's admission removes."""
    # Harvester keeps only required terms that still have `matchExpressions` afterwards.
    result = copy.deepcopy(node_affinity)
    required = result.pop(_REQUIRED, None) or {}
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        expressions = [
            expression
            for expression in term.get("matchExpressions") or ()
            if not is_dropped(expression)
        ]
        if expressions:
            terms.append({**term, "matchExpressions": expressions})
    if terms:
        result[_REQUIRED] = {**required, "nodeSelectorTerms": terms}
    return result


def affinity_patch(actual: Obj, expected: Obj) -> Obj:
    """Return the merge patch from a VM's affinity to another one; empty if both mean the same.

    The rules that keep VMs of a group apart are left as they are.
    """
    changes: Obj = {}
    for kind in ("nodeAffinity", "podAffinity"):
        rules, wanted = actual.get(kind) or {}, expected.get(kind) or {}
        is_same = rules == wanted
        if kind == "nodeAffinity":
            is_same = as_harvester_keeps(rules) == as_harvester_keeps(wanted)
        if not is_same:
            # A merge patch removes only fields whose value is null.
            changes[kind] = {name: wanted.get(name) for name in (_REQUIRED, _PREFERRED)}
    return changes


def admits_host(node_affinity: Obj, host: Obj) -> bool:
    """Return whether the required rules of a node affinity allow a host.

    :param node_affinity: the result of `as_harvester_keeps`
    """
    required = node_affinity.get(_REQUIRED)
    if not required:
        return True

    labels, fields = labels_of(host), {"metadata.name": host["metadata"]["name"]}
    return any(
        all(_fulfils(labels, rule) for rule in term["matchExpressions"])
        and all(_fulfils(fields, rule) for rule in term.get("matchFields") or ())
        for term in required["nodeSelectorTerms"]
    )


def _fulfils(labels: Mapping[str, str], rule: Obj) -> bool:
    """Return whether labels fulfil a node selector requirement."""
    value = labels.get(str(rule.get("key")))
    values: Sequence[str] = rule.get("values") or ()
    match rule.get("operator"):
        case "In" | "NotIn" as operator:
            return (value in values) is (operator == "In")
        case "Exists" | "DoesNotExist" as operator:
            return (value is not None) is (operator == "Exists")
        case "Gt" | "Lt" as operator:
            try:
                difference = int(value or "") - int(values[0])
            except (ValueError, IndexError):
                return False
            return difference > 0 if operator == "Gt" else difference < 0
    return False


def without_requirement(node_affinity: Obj, requirement: Obj) -> tuple[Obj, bool]:
    """Return a node affinity without the requirement of a failure domain, and whether it was there.

    It may be required or preferred, because VMs of the Go provider require domains that new VMs
    only prefer.
    """
    result = copy.deepcopy(node_affinity)
    required = result.pop(_REQUIRED, None) or {}
    preferred = result.pop(_PREFERRED, None) or []

    is_required = False
    terms = []
    for term in required.get("nodeSelectorTerms") or ():
        old_expressions = term.get("matchExpressions") or ()
        expressions = [expression for expression in old_expressions if expression != requirement]
        is_required |= len(expressions) != len(old_expressions)
        stripped = {name: value for name, value in term.items() if name != "matchExpressions"}
        terms.append({**stripped, "matchExpressions": expressions} if expressions else stripped)
    if any(terms):
        result[_REQUIRED] = {**required, "nodeSelectorTerms": terms}

    preferences = [
        term for term in preferred if at(term, "preference", "matchExpressions") != [requirement]
    ]
    if preferences:
        result[_PREFERRED] = preferences
    return result, is_required or len(preferences) != len(preferred)
