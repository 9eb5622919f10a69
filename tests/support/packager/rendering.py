"""What a new renderer makes of one cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packager.addons.facts import ClusterFacts
from packager.rendering.options import RenderOptions
from packager.rendering.renderer import Renderer


def files(facts: ClusterFacts, previous: Mapping[str, bytes] | None = None, **options: Any) -> dict[str, bytes]:
    """The files of a cluster, which must not be refused."""
    result = Renderer(RenderOptions(**options)).render_one(facts, previous or {})
    assert result.ok, result.findings
    return dict(result.tree)


def rules(facts: ClusterFacts, previous: Mapping[str, bytes] | None = None, **options: Any) -> set[str]:
    """The rules of all findings about a cluster."""
    return {finding.rule for finding in Renderer(RenderOptions(**options)).render_one(facts, previous or {}).findings}
