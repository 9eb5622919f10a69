"""What `caphv status` finds wrong with one cluster."""

from __future__ import annotations

from operations.status.assembly import overview_of
from operations.status.model import Problem
from tests.support.clusters import NOW, Builder


def problems(builder: Builder) -> tuple[Problem, ...]:
    (cluster,) = overview_of(builder.objects(), NOW).clusters
    return cluster.problems
