"""Decide on which hosts a VM may run and should run.

The decision depends on its failure domain, the user's affinities, VMs of the same group, and hosts
that are evacuated.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence

from caphv.api import names
from caphv.api.labels import cluster_label, label_value
from caphv.api.object import Key, Obj, annotations_of, at, dict_at, labels_of, list_at

CLUSTER_LABEL = names.CLUSTER_LABEL

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NODE_AFFINITY = ("spec", "template", "spec", "affinity", "nodeAffinity")
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
    if deployment := machine_labels.get(names.DEPLOYMENT_LABEL):
        labels[names.DEPLOYMENT_LABEL] = label_value(deployment)
    return labels


def etcd_group(cluster: Key) -> dict[str, str]:
    """Return the common labels of the VMs that Rancher gives the role etcd in a cluster.

    Their pools may differ, and one may serve the workload API while another one does not.
    """
    return {CLUSTER_LABEL: cluster_label(cluster), names.ETCD_LABEL: "true"}


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
    spec: Obj,
    groups: Sequence[Mapping[str, str]],
    requirement: Obj | None,
    *,
    strict: bool = True,
) -> Obj:
    """Return the affinity of a VM.

    :param spec: the HarvesterMachine's spec
    :param groups: labels of VMs to keep away from, by group
    :param requirement: node selector requirement of the failure domain
    :param strict: whether the VM must run in the failure domain. Otherwise the domain is a strong
        preference, because Harvester cannot drain a host (for maintenance or an upgrade) on which a
        VM must run
    """
    # Spreading is only a preference, because a small Harvester may have fewer hosts than the group
    # has VMs.
    spread = [
        {
            "weight": 100,
            "podAffinityTerm": {
                "topologyKey": names.HOSTNAME_LABEL,
                "labelSelector": {"matchLabels": dict(group)},
            },
        }
        for group in groups
    ]
    result: Obj = {"podAntiAffinity": {_PREFERRED: spread}}

    node_affinity: Obj = copy.deepcopy(spec.get("nodeAffinity") or {})
    if requirement and strict:
        node_affinity = _with_expressions(node_affinity, lambda others: [*others, requirement])
    elif requirement:
        preferred = {"weight": 100, "preference": {"matchExpressions": [requirement]}}
        node_affinity[_PREFERRED] = [*(node_affinity.get(_PREFERRED) or ()), preferred]

    if node_affinity:
        result["nodeAffinity"] = node_affinity
    if spec.get("workloadAffinity"):
        result["podAffinity"] = copy.deepcopy(spec["workloadAffinity"])
    return result


def avoided_hosts(vm: Obj) -> list[str]:
    """Return the host names that an evacuation keeps a VM from."""
    return list(filter(None, annotations_of(vm).get(names.AVOIDED_HOSTS_ANNOTATION, "").split(",")))


def avoid(node_affinity: Obj, former: list[str], hosts: list[str]) -> Obj:
    """Return a node affinity that keeps a VM from hosts, and from no former ones.

    :param former: host names in the expression to remove
    :param hosts: host names to avoid, sorted; empty for none
    """

    def change(expressions: list[Obj]) -> list[Obj]:
        others = [entry for entry in expressions if not former or entry != _avoidance(former)]
        return [*others, _avoidance(hosts)] if hosts else others

    return _with_expressions(node_affinity, change)


def avoidance_patch(vm: Obj, hosts: list[str]) -> Obj:
    """Return the merge patch that keeps a VM from these hosts only, and records it."""
    rules = dict_at(vm, *_NODE_AFFINITY)
    # A merge patch removes only what is null.
    required = avoid(rules, avoided_hosts(vm), hosts).get(REQUIRED)
    return {
        "metadata": {"annotations": {names.AVOIDED_HOSTS_ANNOTATION: ",".join(hosts) or None}},
        "spec": {"template": {"spec": {"affinity": {"nodeAffinity": {REQUIRED: required}}}}},
    }


def _avoidance(hosts: list[str]) -> Obj:
    return {"key": names.HOSTNAME_LABEL, "operator": "NotIn", "values": hosts}


def _with_expressions(node_affinity: Obj, change: Callable[[list[Obj]], list[Obj]]) -> Obj:
    """Return a node affinity with other required expressions.

    Terms are alternatives, so each of them is changed. One of which nothing is left is removed.
    """
    result = copy.deepcopy(node_affinity)
    required = result.pop(REQUIRED, None) or {}
    terms = []
    for term in required.get("nodeSelectorTerms") or [{}]:
        expressions = change(term.pop("matchExpressions", None) or [])
        terms.append({**term, "matchExpressions": expressions} if expressions else term)
    if any(terms):
        result[REQUIRED] = {**required, "nodeSelectorTerms": list(filter(None, terms))}
    return result


def is_dropped(expression: Obj) -> bool:
    """Return whether Harvester's admission removes an expression from a VM's required affinity."""
    # Harvester sets these keys itself, for the networks of a VM and for dedicated CPUs. Since 1.9
    # it keeps expressions for dedicated CPUs.
    key = str(expression.get("key") or "")
    return key.startswith(names.NETWORK_LABELS_PREFIX) or key == names.CPU_MANAGER_LABEL


def without_dropped_terms(node_affinity: Obj) -> Obj:
    """Return a node affinity without the required terms of which Harvester's admission keeps none.

    It keeps those with an expression in `matchExpressions` that it does not remove.
    """
    result = copy.deepcopy(node_affinity)
    required = result.pop(REQUIRED, None) or {}
    terms = [
        term
        for term in required.get("nodeSelectorTerms") or ()
        if not all(map(is_dropped, term.get("matchExpressions") or ()))
    ]
    if terms:
        result[REQUIRED] = {**required, "nodeSelectorTerms": terms}
    return result


def as_harvester_keeps(node_affinity: Obj) -> Obj:
    """Return a node affinity without the expressions that Harvester's admission removes."""
    result = without_dropped_terms(node_affinity)
    for term in list_at(result, REQUIRED, "nodeSelectorTerms"):
        term["matchExpressions"] = [
            expression for expression in term["matchExpressions"] if not is_dropped(expression)
        ]
    return result


def affinity_patch(actual: Obj, expected: Obj) -> Obj:
    """Return the merge patch from a VM's affinity to another one; empty if both mean the same.

    The rules that keep VMs of a group apart are left as they are.
    """
    changes: Obj = {}
    for kind in ("nodeAffinity", "podAffinity"):
        rules = actual.get(kind) or {}
        wanted = expected.get(kind) or {}
        is_same = rules == wanted
        if kind == "nodeAffinity":
            is_same = as_harvester_keeps(rules) == as_harvester_keeps(wanted)
        if not is_same:
            # A merge patch removes only fields whose value is null.
            changes[kind] = {name: wanted.get(name) for name in (REQUIRED, _PREFERRED)}
    return changes


def admits_host(node_affinity: Obj, host: Obj) -> bool:
    """Return whether the required rules of a node affinity allow a host.

    A term without a requirement allows none, as in the scheduler.
    """
    required = node_affinity.get(REQUIRED)
    if required is None:
        return True

    labels = labels_of(host)
    fields = {"metadata.name": host["metadata"]["name"]}
    return any(
        all(_fulfils(labels, rule) for rule in term.get("matchExpressions") or ())
        and all(_fulfils(fields, rule) for rule in term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
        if term.get("matchExpressions") or term.get("matchFields")
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
                difference = _integer(value or "") - _integer(values[0])
            except (ValueError, IndexError):
                return False
            return difference > 0 if operator == "Gt" else difference < 0
    return False


def _integer(text: str) -> int:
    """Return the number in a text, as Kubernetes reads it. Raises `ValueError`."""
    if "_" in text:  # Python allows it between digits, and a label may have it
        raise ValueError(text)
    return int(text)


def without_requirement(node_affinity: Obj, requirement: Obj) -> tuple[Obj, bool]:
    """Return a node affinity without the requirement of a failure domain, and whether it was there.

    It may be required or preferred, because VMs of the Go provider require domains that new VMs
    only prefer.
    """
    preferred = node_affinity.get(_PREFERRED) or []
    terms = list_at(node_affinity, REQUIRED, "nodeSelectorTerms")
    is_required = any(requirement in (term.get("matchExpressions") or ()) for term in terms)
    is_preference = [
        at(term, "preference", "matchExpressions") == [requirement] for term in preferred
    ]

    result = _with_expressions(
        node_affinity, lambda expressions: [rule for rule in expressions if rule != requirement]
    )
    result.pop(_PREFERRED, None)
    if not all(is_preference):
        result[_PREFERRED] = [
            term for term, is_ours in zip(preferred, is_preference, strict=True) if not is_ours
        ]
    return result, is_required or any(is_preference)
