"""The add-ons' part of `caphv validate`: settings of clusters wherever they stand, and annotations of Services.

Rules are those of rendering; here each finding comes with the object that somebody has to edit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from caphv.api.object import key_of
from caphv.validation.finding import Finding, in_order
from packager.addons.gather import holder
from packager.addons.merge import Obj, at
from packager.addons.services import IPAM_ANNOTATION, PRIMARY_ANNOTATION, check_services
from packager.addons.settings import ClusterFacts, settings_of
from packager.cluster_objects import CLUSTER_API_GROUP, facts_of

RULES = {
    "addons-csi-label": "Label `csi` is `harvester` or `none`.",
    "addons-metadata": "Labels and annotations are text.",
    "addons-without-effect": "What RKE2 installs has a version of its own, and settings do not turn it off.",
    "addons-yaml": "Annotation `addons.caphv.io/values` is YAML without aliases, of what JSON can hold.",
    "cidr": "Networks are IP networks, at most one of each family.",
    "cidr-of-cluster": "Networks of the CNI are within those that the Cluster says.",
    "cidr-overlap": "Networks of Pods and Services do not overlap.",
    "cloud-config-distribution": "Nodes of Talos get no file with the cloud config.",
    "cloud-provider-distribution": "Only RKE2 brings a Harvester cloud provider.",
    "cloud-provider-installed": "Of RKE2's own cloud provider and that of the bundles there is one.",
    "cni-bgp": "BGP is on where the encapsulation needs it, and only with a CNI that speaks it.",
    "cni-distribution": "The CNI is one that can be installed on the distribution.",
    "cni-encapsulation": "The encapsulation is one that the CNI knows.",
    "cni-fleet-agent": "Fleet installs a CNI only with an agent that needs none itself: CAAPF's on the host's network.",
    "cni-installed": "The CNI is the one that the control plane installs.",
    "cni-kube-proxy": "kube-proxy is replaced only by a CNI that can.",
    "fleet-twice": "A cluster is in one Fleet: CAAPF's or Rancher's.",
    "load-balancer-ipam": "A default of load balancers needs Kubernetes 1.36.",
    "load-balancer-kube-vip": "Addresses from DHCP need kube-vip.",
    "no-secrets-in-git": "Settings hold no credentials: bundles are in Git.",
    "service-ipam": "Annotation `cloudprovider.harvesterhci.io/ipam` of a Service is `dhcp` or `pool`.",
    "service-primary": "A Service shares the address of another one in its namespace.",
    "service-primary-is-secondary": "A Service that shares an address is not shared on.",
    "service-shared-port": "Services that share an address have no port in common.",
    "service-type": "Annotations for load balancers are on Services of type LoadBalancer.",
    "storage-class-default": "One storage class is the default.",
    "storage-class-name": "Storage classes have names of their own.",
}
"""What each rule says, by its name."""


@dataclass(frozen=True)
class Remark:
    """A finding about the object at a place of the list; `other` is the place of one that it has to do with."""

    index: int
    finding: Finding
    other: int | None = None


def concerns(obj: Obj) -> bool:
    """Whether an object has settings of add-ons: a Cluster, or a Service with annotations for a load balancer."""
    return _is_cluster(obj) or _is_service(obj)


def alone(_obj: Obj) -> list[Finding]:
    """Return nothing: settings depend on several objects."""
    return []


def together(objs: Sequence[Obj]) -> list[Remark]:
    """Return what is wrong with the settings of clusters on Harvester, and with Services, in order of the objects."""
    places = {id(obj): index for index, obj in enumerate(objs)}
    found = [*_clusters(objs, places), *_services(objs)]
    return sorted(found, key=lambda remark: (remark.index, remark.finding.field, remark.finding.rule))


def described() -> dict[str, str]:
    """Return what each rule says, by its name."""
    return RULES


def _clusters(objs: Sequence[Obj], places: Mapping[int, int]) -> Iterator[Remark]:
    for facts in facts_of(objs):
        for finding in settings_of(facts)[1]:
            yield Remark(_place(finding, facts, places), finding, None)


def _place(finding: Finding, facts: ClusterFacts, places: Mapping[int, int]) -> int:
    """Index of the object that a finding is about; what a class makes of a template is the Cluster's."""
    return places.get(id(holder(finding.path, facts)), places[id(facts.cluster)])


def _services(objs: Sequence[Obj]) -> Iterator[Remark]:
    services = {index: _with_key(obj) for index, obj in enumerate(objs) if _is_plain_service(obj)}
    for index, findings in _checked(services).items():
        yield from (Remark(index, finding) for finding in in_order(findings))


def _checked(services: Mapping[int, Obj]) -> dict[int, Sequence[Finding]]:
    keys = {index: key_of(service) for index, service in services.items()}
    if len(set(keys.values())) == len(keys):
        found = check_services(services.values())
        return {index: found.get(key, ()) for index, key in keys.items()}
    # Files of several clusters: which Services are beside one another, nobody can tell.
    return {
        index: [one for one in check_services([service]).get(keys[index], ()) if one.rule != "service-primary"]
        for index, service in services.items()
    }


def _with_key(service: Obj) -> Obj:
    metadata = service["metadata"]
    return {**service, "metadata": {**metadata, "namespace": str(metadata.get("namespace") or "")}}


def _is_cluster(obj: Obj) -> bool:
    return obj.get("kind") == "Cluster" and str(obj.get("apiVersion")).rpartition("/")[0] == CLUSTER_API_GROUP


def _is_service(obj: Obj) -> bool:
    notes = at(obj, "metadata", "annotations")
    return (
        _is_plain_service(obj)
        and isinstance(notes, dict)
        and bool({IPAM_ANNOTATION, PRIMARY_ANNOTATION} & notes.keys())
    )


def _is_plain_service(obj: Obj) -> bool:
    """Whether an object is a Service whose form is none of a template's or of somebody's typing error."""
    ports: Any = at(obj, "spec", "ports")
    return (
        (obj.get("apiVersion"), obj.get("kind")) == ("v1", "Service")
        and isinstance(at(obj, "metadata", "name"), str)
        and isinstance(at(obj, "metadata", "annotations") or {}, dict)
        and isinstance(obj.get("spec"), dict)
        and (ports is None or (isinstance(ports, list) and all(isinstance(port, dict) for port in ports)))
    )
