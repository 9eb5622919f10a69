"""The rule set of the add-ons: settings of clusters, wherever they are set, and annotations of Services.

The rules are those of rendering; here each finding comes with the object that has to be edited.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from caphv.api.object import Obj, key_of
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import Finding, LocatedFinding, in_order
from caphv.validation.rule import Rule
from packager.addons import fleetrules, gather, services
from packager.addons import rules as settings_rules
from packager.addons.gather import holder
from packager.addons.merge import at
from packager.addons.services import IPAM_ANNOTATION, PRIMARY_ANNOTATION, check_services
from packager.addons.settings import ClusterFacts, settings_of
from packager.cluster_objects import facts_of

Located = LocatedFinding[int]


def rules() -> Sequence[Rule]:
    """Return the rules about settings and Services, by name."""
    return sorted(
        (*gather.RULES, *settings_rules.RULES, *fleetrules.RULES, *services.RULES), key=lambda rule: rule.name
    )


def concerns(obj: Obj) -> bool:
    """Whether an object has settings of add-ons: a Cluster, or a Service with annotations for a load balancer."""
    return _is_cluster(obj) or _is_service(obj)


def check(_obj: Obj) -> list[Finding]:
    """Return nothing: settings depend on several objects."""
    return []


def check_together(objs: Sequence[Obj]) -> list[Located]:
    """Return what is wrong with the settings of clusters on Harvester, and with Services, in order of the objects."""
    places = {id(obj): index for index, obj in enumerate(objs)}
    found = [*_clusters(objs, places), *_of_services(objs)]
    return sorted(found, key=lambda one: (one.place, one.finding.field, one.finding.rule))


def _clusters(objs: Sequence[Obj], places: Mapping[int, int]) -> Iterator[Located]:
    for facts in facts_of(objs):
        for finding in settings_of(facts)[1]:
            yield LocatedFinding(_place(finding, facts, places), finding)


def _place(finding: Finding, facts: ClusterFacts, places: Mapping[int, int]) -> int:
    """Index of the object that a finding is about; what a class makes of a template is the Cluster's."""
    return places.get(id(holder(finding.path, facts)), places[id(facts.cluster)])


def _of_services(objs: Sequence[Obj]) -> Iterator[Located]:
    plain = {index: _with_key(obj) for index, obj in enumerate(objs) if _is_plain_service(obj)}
    for index, findings in _checked(plain).items():
        yield from (LocatedFinding(index, finding) for finding in in_order(findings))


def _checked(plain: Mapping[int, Obj]) -> dict[int, Sequence[Finding]]:
    keys = {index: key_of(service) for index, service in plain.items()}
    if len(set(keys.values())) == len(keys):
        found = check_services(plain.values())
        return {index: found.get(key, ()) for index, key in keys.items()}
    # The files are of several clusters: it is unknown which Services are in the same one.
    return {
        index: [one for one in check_services([service]).get(keys[index], ()) if one.rule != services.SHARED.name]
        for index, service in plain.items()
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
    """Whether an object is a Service that is well formed: neither part of a template nor malformed."""
    ports: Any = at(obj, "spec", "ports")
    return (
        (obj.get("apiVersion"), obj.get("kind")) == ("v1", "Service")
        and isinstance(at(obj, "metadata", "name"), str)
        and isinstance(at(obj, "metadata", "annotations") or {}, dict)
        and isinstance(obj.get("spec"), dict)
        and (ports is None or (isinstance(ports, list) and all(isinstance(port, dict) for port in ports)))
    )
