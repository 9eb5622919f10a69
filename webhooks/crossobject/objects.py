"""Rules of the API server about any object, and rules about a Cluster's endpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import NamedTuple

from caphv.api.interfaceaddresses import address_of
from caphv.api.names import GROUP, PARK_SCHEDULE_ANNOTATION
from caphv.api.parkschedule import ScheduleError, load_zone, parse_schedule
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import Fault, Finding, LocatedFinding, did_you_mean
from caphv.validation.rule import Rules
from webhooks.crossobject.model import CONTROL_PLANE_GROUP, Entry, Inventory, Located
from webhooks.rules.cluster import has_external_endpoint
from webhooks.rules.model import KINDS, Field
from webhooks.rules.values import is_label_key

RULES = Rules()
GROUPS = frozenset({GROUP, CLUSTER_API_GROUP, CONTROL_PLANE_GROUP})
API_SERVER_PORT = 6443
# Similarity of misspelt groups. Groups of Cluster API are less similar to one another.
_MIN_SIMILARITY = 0.93

_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL)
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# Fields of ObjectMeta, including fields that only the server sets, because it prints them.
_METADATA = frozenset({
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp",
    "finalizers", "generateName", "generation", "labels", "managedFields", "name", "namespace",
    "ownerReferences", "resourceVersion", "selfLink", "uid",
})  # fmt: skip
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


@RULES.rule(
    "api-group",
    ("all kinds of this provider and of Cluster API",),
    "The API group must be spelled as the API server has it: an object of another group is neither "
    "checked nor served.",
    example="`apiVersion: infrastucture.cluster.x-k8s.io/v1beta1`: correct the group",
)
def _api_group(inventory: Inventory) -> Iterator[Located]:
    for entry in inventory.entries:
        group, version = entry.api
        if group in GROUPS or not group:
            continue

        near = [GROUP] if entry.kind in KINDS else _near_groups(group)
        if near:
            detail = f'did you mean "{near[0]}/{version}"?'
            finding = entry.field.at("apiVersion").problem(Fault.UNSUPPORTED, detail)
            yield LocatedFinding(entry, finding)


def _near_groups(group: str) -> list[str]:
    """Return the most similar API group, none if no group is similar."""
    # The length is bounded, because a comparison takes quadratic time.
    return get_close_matches(group[:64], GROUPS, 1, _MIN_SIMILARITY)


@RULES.rule(
    "metadata",
    ("all kinds of this provider and of Cluster API",),
    "Metadata must be what the API server accepts: a valid name (or generateName) and namespace, "
    "known fields, and text as keys and values of labels and annotations.",
    example="`labels: {tier: 1}`: quote the value",
)
def _metadata(inventory: Inventory) -> Iterator[Located]:
    for entry in inventory.entries:
        if entry.group in GROUPS:
            for finding in _check_metadata(entry.field.at("metadata")):
                yield LocatedFinding(entry, finding)


def _check_metadata(metadata: Field) -> Iterator[Finding]:
    """Yield findings about names, labels, annotations and unknown fields of an object."""
    name = metadata.at("name")
    namespace = metadata.at("namespace")
    if not name.present and not metadata.at("generateName").present:
        yield name.required("must be set")
    elif name.present and (not _SUBDOMAIN.fullmatch(name.text) or len(name.text) > 253):
        yield name.invalid(
            "must be lower case letters, digits, - and . with a letter or digit at both ends"
        )
    if namespace.present and not _NAMESPACE.fullmatch(namespace.text):
        yield namespace.invalid("must be at most 63 lower case letters, digits and -")

    yield from _check_texts(metadata.at("labels"), labels=True)
    yield from _check_texts(metadata.at("annotations"), labels=False)

    for key in metadata.mapping:
        if key not in _METADATA:
            suggestion = did_you_mean(key, _METADATA) or ": correct its name or remove it"
            detail = f"there is no such field{suggestion}"
            yield metadata.at(key).problem(Fault.UNKNOWN, detail)


def _check_texts(values: Field, *, labels: bool) -> Iterator[Finding]:
    """Yield a finding for each key or value that labels or annotations must not have."""
    if values.value is not None and not isinstance(values.value, dict):
        yield values.problem(Fault.WRONG_TYPE, "must be a mapping of keys to texts")

    for key in values.mapping:
        value = values.at(key)
        if not is_label_key(key):
            yield value.invalid(
                "must have as its key a name with an optional domain, for example example.com/tier"
            )
        if not isinstance(value.value, str):
            yield value.problem(Fault.WRONG_TYPE, "must be a string")
        elif labels and not _LABEL_VALUE.fullmatch(value.text):
            yield value.invalid(
                "must be at most 63 letters, digits, -, _ and . with a letter or digit at both ends"
            )


@RULES.rule(
    "defined-twice",
    ("all kinds of this provider and of Cluster API",),
    "An object must be defined once: the later definition would silently replace the earlier.",
    example="HarvesterCluster `clusters/demo` in two files: remove one",
)
def _twice(inventory: Inventory) -> Iterator[Located]:
    first_of_name: dict[tuple[str, str, str, str], Entry] = {}
    for entry in inventory.entries:
        if entry.group not in GROUPS or not entry.name:
            continue

        key = (entry.group, entry.kind, entry.namespace, entry.name)
        first = first_of_name.setdefault(key, entry)
        if first is not entry:
            name = entry.field.at("metadata", "name")
            finding = name.problem(Fault.DUPLICATE, f"{entry} is defined already: remove one")
            yield LocatedFinding(entry, finding, first)


@RULES.rule(
    "cluster-endpoint",
    ("Cluster",),
    "`spec.controlPlaneEndpoint` of a Cluster on Harvester must have a valid host and port, or be "
    "left out.",
    example=(
        "`controlPlaneEndpoint: {host: 172.17.1.300, port: 6443}`: remove it, the provider fills "
        "it in"
    ),
)
def _endpoint(inventory: Inventory) -> Iterator[Located]:
    for entry, endpoint in _endpoints(inventory):
        host = endpoint.at("host")
        port = endpoint.at("port")
        if host.present and not _is_host(host.text):
            detail = "must be an address or a host name; without it, the provider fills it in"
            yield LocatedFinding(entry, host.invalid(detail))

        is_port = port.number is not None and 0 <= port.number <= 65535
        if port.value is not None and not is_port:
            detail = f"must be a port; without it, the provider fills in {API_SERVER_PORT}"
            yield LocatedFinding(entry, port.invalid(detail))


@RULES.rule(
    "cluster-endpoint-given",
    ("Cluster",),
    "`spec.controlPlaneEndpoint` of a Cluster on Harvester must agree with its HarvesterCluster "
    "and the load balancer.",
    example=(
        "`controlPlaneEndpoint: {host: 172.17.1.50, port: 443}`: remove it, the load balancer "
        "answers at port 6443"
    ),
    advice=True,
)
def _endpoint_given(inventory: Inventory) -> Iterator[Located]:
    infrastructures = {cluster.index: entry for cluster, entry in inventory.clusters}
    for entry, endpoint in _endpoints(inventory):
        host = endpoint.at("host")
        port = endpoint.at("port")
        other = infrastructures.get(entry.index)
        expected = API_SERVER_PORT
        if other and has_external_endpoint(other.spec):
            expected = other.spec.at("controlPlaneEndpoint", "port").number or expected
        if port.number and 0 < port.number <= 65535 and port.number != expected:
            detail = f"the load balancer answers at port {expected}: remove the endpoint"
            yield LocatedFinding(entry, port.invalid(detail))

        if other is None or not host.text:
            continue
        other_host = other.spec.at("controlPlaneEndpoint", "host").text
        if other_host not in ("", "0.0.0.0", host.text):
            detail = f"{other} has {other_host}: remove the endpoint here"
            yield LocatedFinding(entry, host.invalid(detail), other)


@RULES.rule(
    "park-schedule",
    ("Cluster",),
    "Annotation `caphv.io/park-schedule` must have windows of days and times, and one time zone.",
    example="`caphv.io/park-schedule: Mon-Fri 8pm-6am`: write `Mon-Fri 20:00-06:00 Europe/Berlin`",
)
def _park_schedule(inventory: Inventory) -> Iterator[Located]:
    for entry in inventory.of_kind("Cluster", CLUSTER_API_GROUP):
        schedule = entry.field.at("metadata", "annotations", PARK_SCHEDULE_ANNOTATION)
        if not isinstance(schedule.value, str):
            continue
        try:
            load_zone(parse_schedule(schedule.text).zone)
        except ScheduleError as error:
            yield LocatedFinding(entry, schedule.invalid(error.detail))


class _Endpoint(NamedTuple):
    """A Cluster on Harvester, and its field `controlPlaneEndpoint`."""

    cluster: Entry
    field: Field


def _endpoints(inventory: Inventory) -> Iterator[_Endpoint]:
    """Yield the endpoints of Clusters on Harvester, set or not."""
    for entry in inventory.of_kind("Cluster", CLUSTER_API_GROUP):
        if entry.field.at("spec", "infrastructureRef", "kind").text == "HarvesterCluster":
            yield _Endpoint(entry, entry.field.at("spec", "controlPlaneEndpoint"))


def _is_host(text: str) -> bool:
    """Return whether a text is an address or a host name."""
    # Text that looks like an address but is not one cannot be a host name either.
    is_name = bool(_SUBDOMAIN.fullmatch(text)) and not re.fullmatch(r"[0-9.]+", text)
    return is_name or address_of(text) is not None
