"""Rules about bootstrap settings that a provider cannot use, and reports only in its log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from caphv.api import rke2
from caphv.api.resources import CLUSTER_API_GROUP
from caphv.validation.finding import Fault, LocatedFinding
from caphv.validation.rule import Rules
from webhooks.crossobject.model import (
    BOOTSTRAP_GROUP,
    CONTROL_PLANE_GROUP,
    Entry,
    Inventory,
    Located,
)
from webhooks.rules.model import Field

RULES = Rules()


class _Kind(NamedTuple):
    """A kind of RKE2's provider, and the path of its bootstrap settings."""

    name: str
    group: str
    path: tuple[str, ...]


_KINDS = (
    _Kind("RKE2ControlPlane", CONTROL_PLANE_GROUP, ("spec",)),
    _Kind("RKE2ControlPlaneTemplate", CONTROL_PLANE_GROUP, ("spec", "template", "spec")),
    _Kind("RKE2Config", BOOTSTRAP_GROUP, ("spec",)),
    _Kind("RKE2ConfigTemplate", BOOTSTRAP_GROUP, ("spec", "template", "spec")),
)


class _FoundProblem(NamedTuple):
    """An object, its bootstrap settings, and a problem of these."""

    entry: Entry
    settings: Field
    problem: rke2.Problem


@RULES.rule(
    "rke2-bootstrap-unusable",
    tuple(kind.name for kind in _KINDS),
    "RKE2's provider must be able to use bootstrap settings: otherwise machines wait, and only its "
    "log says why.",
    example=(
        "`tls: {insecureSkipVerify: true}` of a registry without `tlsConfigSecret`: name a Secret"
    ),
)
def _unusable(inventory: Inventory) -> Iterator[Located]:
    for entry, settings, problem in _problems(inventory):
        if not problem.lost:
            fault = Fault.INVALID if problem.value else Fault.REQUIRED
            yield LocatedFinding(entry, settings.at(*problem.path).problem(fault, problem.detail))


@RULES.rule(
    "rke2-registries-lost",
    tuple(kind.name for kind in _KINDS),
    "`privateRegistriesConfig.configs` must have one registry: of several, RKE2's provider keeps "
    "any one.",
    example="`configs` with credentials for two registries: keep one",
    advice=True,
)
def _lost(inventory: Inventory) -> Iterator[Located]:
    for entry, settings, problem in _problems(inventory):
        if problem.lost:
            yield LocatedFinding(entry, settings.at(*problem.path).invalid(problem.detail))


@RULES.rule(
    "rke2-etcd-store-unverified",
    tuple(kind.name for kind in _KINDS if kind.group == CONTROL_PLANE_GROUP),
    "`enforceSslVerify` of an S3 store for snapshots must be set: without it, RKE2's provider "
    "accepts any certificate.",
    example="`s3` without `enforceSslVerify`: set it to true",
    advice=True,
)
def _unverified(inventory: Inventory) -> Iterator[Located]:
    for kind, group, path in _KINDS:
        if group != CONTROL_PLANE_GROUP:
            continue
        for entry in inventory.of_kind(kind, group):
            s3 = entry.field.at(*path, "serverConfig", "etcd", "backupConfig", "s3")
            if s3.mapping and "enforceSslVerify" not in s3.mapping:
                detail = (
                    "must be set: without it, RKE2's provider (v0.25.0) accepts any certificate of "
                    "the store: set it to true, or to false if that is intended"
                )
                yield LocatedFinding(
                    entry, s3.at("enforceSslVerify").problem(Fault.REQUIRED, detail)
                )


def _problems(inventory: Inventory) -> Iterator[_FoundProblem]:
    """Yield the problems of all bootstrap settings."""
    for kind, group, path in _KINDS:
        for entry in inventory.of_kind(kind, group):
            settings = entry.field.at(*path)
            # Control planes have a version, whereas machines have the version of worker templates.
            version = settings.at("version").text or _version(inventory, entry)
            for problem in rke2.problems(settings.mapping, version):
                yield _FoundProblem(entry, settings, problem)


def _version(inventory: Inventory, template: Entry) -> str:
    """Return the Kubernetes version of machines with a bootstrap template, empty if unknown."""
    for entry in inventory.of_kind("MachineDeployment", CLUSTER_API_GROUP):
        machine = entry.field.at("spec", "template", "spec")
        ref = machine.at("bootstrap", "configRef")
        if (ref.at("kind").text, ref.at("name").text) == (template.kind, template.name):
            return machine.at("version").text
    return ""
