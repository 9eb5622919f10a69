"""Rules about a ClusterDefinition that its schema cannot express, such as combined fields.

The checks take a definition that its schema accepts. Each subject has a module.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from caphv.api.object import Obj
from caphv.validation.finding import FieldPath, Finding
from caphv.validation.rule import Rule, Rules
from packager import secretscan
from packager.definitions.rules import (
    addresses,
    delivery,
    distribution,
    identity,
    loadbalancer,
    machines,
    metadata,
    nodes,
    pools,
    sizes,
)
from packager.definitions.rules.model import KINDS

# Rules about all fields of a definition, and about several definitions.
_GENERAL = Rules()


@_GENERAL.rule(secretscan.RULE, KINDS, secretscan.DESCRIPTION)
def _check_secrets(obj: Obj) -> Iterator[Finding]:
    yield from secretscan.check(obj)


TWICE = _GENERAL.declare(
    "definition-twice",
    "Two definitions must not define the same cluster, nor two files the same ClusterClass.",
    kinds=KINDS,
)
SOURCE = _GENERAL.declare(
    "definition-source",
    "Two sources of a shared repository must not define the same cluster. Only `caphv packager` "
    "checks it.",
    kinds=KINDS,
)

# The order is that of findings and of the documentation.
_RULES: tuple[Rule, ...] = (
    *identity.RULES,
    *sizes.RULES,
    *distribution.RULES,
    *loadbalancer.RULES,
    *machines.RULES,
    *nodes.RULES,
    *addresses.RULES,
    *pools.RULES,
    *delivery.RULES,
    *metadata.RULES,
    *_GENERAL,
)


def all_rules() -> tuple[Rule, ...]:
    """Return all rules about definitions, in the order of the docs."""
    return _RULES


def check(obj: Obj) -> list[Finding]:
    """Return findings about a definition that its schema accepts."""
    return [finding for rule in all_rules() for finding in rule.findings(obj)]


def check_valid_parts(obj: Any, reported: Iterable[Finding]) -> list[Finding]:
    """Return further findings about a definition that its schema refuses.

    Users want all errors at once. A rule ends at a missing or malformed field. Fields that the
    schema has reported are left out.
    """
    findings: list[Finding] = []
    for rule in all_rules():
        # A rule that meets a missing or malformed field raises one of these errors. What it has
        # found before counts.
        with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError):
            for finding in rule.yield_findings(obj):
                findings.append(finding)  # noqa: PERF402 - `extend` would hide that it may end early
    reported_paths = [finding.path for finding in reported]
    return [
        finding
        for finding in findings
        if not any(_is_same_place(finding.path, path) for path in reported_paths)
    ]


def _is_same_place(path: FieldPath, other: FieldPath) -> bool:
    """Return whether two paths are equal, or one is below the other."""
    shorter = min(len(path), len(other))
    return path[:shorter] == other[:shorter]
