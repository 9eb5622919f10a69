"""The mirror of charts and the templates of a cluster, as its lockfile pins them.

Without the mirror of an air-gapped site every chart would come from the internet again, and without
the user's templates every bundle would change. Both are options of a command, which users easily
forget. So leaving one out is refused, and only the value `default` ends its use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caphv.validation.finding import Fault, Finding
from packager.rendering.templates import template_files

DEFAULT = "default"
"""Value of an option that asks for the charts' own repositories, or for the shipped templates."""
RULE = "bundles-sources"


@dataclass(frozen=True)
class Sources:
    """The mirror of all charts and the hash of a user's templates; both are empty without one."""

    chart_repository: str = ""
    templates: str = ""

    def as_data(self) -> dict[str, str]:
        """Return the fields as the lockfile holds them, without those that are the default."""
        fields = {"chartRepository": self.chart_repository, "templates": self.templates}
        return {name: value for name, value in fields.items() if value}


def parse_sources(content: Any) -> Sources:
    """Return the sources of a lockfile. Raises `ValueError`."""
    is_object = isinstance(content, Mapping)
    if not is_object or not all(isinstance(value, str) for value in content.values()):
        raise ValueError("sources must be an object of texts")
    return Sources(content.get("chartRepository", ""), content.get("templates", ""))


def hash_of(folder: Path | None, shipped: Path) -> str:
    """Return a hash over a user's templates that differ from the shipped ones, empty for none.

    Raises as `template_files` does.
    """
    if folder is None:
        return ""
    # An unchanged copy of a shipped template does not count as the user's.
    original = template_files([shipped])
    files = {
        name: text for name, text in template_files([folder]).items() if original.get(name) != text
    }
    if not files:
        return ""
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]


def check_left_out(
    before: Sources, chart_repository: str, templates: Path | None, *, shipped: bool
) -> list[Finding]:
    """Return a finding for each source that a lockfile pins and the options leave out.

    `shipped` drops the templates on purpose.
    """
    findings = []
    if before.chart_repository and not chart_repository:
        mirror = before.chart_repository
        detail = (
            f"charts come from {mirror} and would come from their own repositories: repeat "
            f"--chart-repo {mirror} (or CAPHV_CHART_REPO), or ask for the change with "
            f"--chart-repo {DEFAULT}"
        )
        findings.append(Finding(("sources", "chartRepository"), Fault.FORBIDDEN, detail, RULE))

    if before.templates and templates is None and not shipped:
        detail = (
            "rendered with custom templates, which would be dropped: repeat --templates (or "
            f"CAPHV_TEMPLATES), or ask for the shipped ones with --templates {DEFAULT}"
        )
        findings.append(Finding(("sources", "templates"), Fault.FORBIDDEN, detail, RULE))
    return findings
