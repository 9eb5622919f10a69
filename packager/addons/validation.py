"""The rule set of the add-ons: settings of clusters in all sources, and annotations of Services.

Rendering uses the same rules. Here each finding comes with the object to edit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from caphv.api.object import Obj, at, key_of
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import Finding, LocatedFinding, in_order
from caphv.validation.rule import Rule
from packager.addons import cnirules, fleetrules, gather, services, yamlvalues
from packager.addons import rules as settings_rules
from packager.addons.cluster_objects import facts_of
from packager.addons.facts import ClusterFacts
from packager.addons.gather import object_of_field
from packager.addons.services import IPAM_ANNOTATION, PRIMARY_ANNOTATION, check_services
from packager.addons.settings import settings_of

Located = LocatedFinding[int]


def rules() -> Sequence[Rule]:
    """Return the rules about settings and Services, by name."""
    return sorted(
        (
            *gather.RULES,
            *yamlvalues.RULES,
            *cnirules.RULES,
            *settings_rules.RULES,
            *fleetrules.RULES,
            *services.RULES,
        ),
        key=lambda rule: rule.name,
    )


def concerns(obj: Obj) -> bool:
    """Whether an object has settings of add-ons: a Cluster, or a Service for a load balancer."""
    return _is_cluster(obj) or _is_service(obj)


def check(_obj: Obj) -> list[Finding]:
    """Return no findings, because settings depend on several objects, as in `check_together`."""
    return []


def check_together(objs: Sequence[Obj]) -> list[Located]:
    """Return findings about settings of clusters on Harvester, and Services, in their order."""
    places = {id(obj): index for index, obj in enumerate(objs)}
    located = [*_cluster_findings(objs, places), *_service_findings(objs)]
    return sorted(located, key=lambda row: (row.place, row.finding.field, row.finding.rule))


def _cluster_findings(objs: Sequence[Obj], places: Mapping[int, int]) -> Iterator[Located]:
    for facts in facts_of(objs):
        for finding in settings_of(facts).findings:
            yield LocatedFinding(_place(finding, facts, places), finding)


def _place(finding: Finding, facts: ClusterFacts, places: Mapping[int, int]) -> int:
    """Return the index of the object to edit for a finding, by default the Cluster's.

    Objects that a ClusterClass creates are not among the checked objects.
    """
    return places.get(id(object_of_field(finding.path, facts)), places[id(facts.cluster)])


def _service_findings(objs: Sequence[Obj]) -> Iterator[Located]:
    plain = {index: _with_key(obj) for index, obj in enumerate(objs) if _is_plain_service(obj)}
    for index, findings in _check_by_cluster(plain).items():
        yield from (LocatedFinding(index, finding) for finding in in_order(findings))


def _check_by_cluster(plain: Mapping[int, Obj]) -> dict[int, Sequence[Finding]]:
    """Return the findings about Services by index.

    If two Services have one name, they are of several clusters, and nothing tells which of the
    others are of the same cluster. Then each Service is checked alone, and a primary Service that
    is not found is no fault.
    """
    keys = {index: key_of(service) for index, service in plain.items()}
    if len(set(keys.values())) == len(keys):
        findings = check_services(plain.values())
        return {index: findings.get(key, ()) for index, key in keys.items()}

    return {
        index: [
            finding
            for finding in check_services([service]).get(keys[index], ())
            if finding.rule != services.SHARED.name
        ]
        for index, service in plain.items()
    }


def _with_key(service: Obj) -> Obj:
    metadata = service["metadata"]
    return {**service, "metadata": {**metadata, "namespace": str(metadata.get("namespace") or "")}}


def _is_cluster(obj: Obj) -> bool:
    return (
        obj.get("kind") == "Cluster"
        and str(obj.get("apiVersion")).rpartition("/")[0] == CLUSTER_API_GROUP
    )


def _is_service(obj: Obj) -> bool:
    annotations = at(obj, "metadata", "annotations")
    if not _is_plain_service(obj) or not isinstance(annotations, dict):
        return False
    return bool({IPAM_ANNOTATION, PRIMARY_ANNOTATION} & annotations.keys())


def _is_plain_service(obj: Obj) -> bool:
    """Whether an object is a Service whose fields have the types that the rules need.

    A file may hold anything. An API server refuses a Service with other types.
    """
    if (obj.get("apiVersion"), obj.get("kind")) != ("v1", "Service"):
        return False
    annotations = at(obj, "metadata", "annotations") or {}
    ports = at(obj, "spec", "ports") or []
    return (
        isinstance(at(obj, "metadata", "name"), str)
        and isinstance(obj.get("spec"), dict)
        and isinstance(annotations, dict)
        and all(isinstance(text, str) for text in annotations.values())
        and isinstance(ports, list)
        and all(isinstance(at(port, "port"), int) for port in ports)
    )
