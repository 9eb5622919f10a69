"""Where the charts and templates of a cluster came from, as its record pins it.

Without the mirror of an air-gapped site every chart would come from the internet again, and without the user's
templates every bundle would change. Both are options of a command, and forgotten easily: so leaving one out is refused,
and only `default` is back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caphv.validation.finding import Fault, Finding
from packager.git.folder import Tree
from packager.rendering.templates import template_files

DEFAULT = "default"
"""Value of an option that asks for the charts' own repositories, or for the shipped templates."""
RULE = "bundles-sources"
_FILES = (
    "ccm/fleet.yaml",
    "ccm/helmchart.yaml",
    "csi/fleet.yaml",
    "csi/helmchart.yaml",
    "cni/helmchart.yaml",
    "cni/fleet.yaml",
)
_ADDRESS = re.compile(rb"^ +(repo|chart): ['\"]?((?:https|oci)://[^\s'\"]+)", re.MULTILINE)


@dataclass(frozen=True)
class Sources:
    """A mirror of all charts, empty for their own repositories; and the hash of a user's templates, empty for none."""

    chart_repository: str = ""
    templates: str = ""

    def as_data(self) -> dict[str, str]:
        """As written to the lockfile: nothing for the defaults."""
        fields = {"chartRepository": self.chart_repository, "templates": self.templates}
        return {name: value for name, value in fields.items() if value}


def pinned(content: Any) -> Sources | None:
    """Return the sources of a lockfile; None where it has none, as those of 0.11. Raises ValueError."""
    if content is None:
        return None
    if not isinstance(content, Mapping) or not all(isinstance(value, str) for value in content.values()):
        raise ValueError("sources must be an object of texts")
    return Sources(content.get("chartRepository", ""), content.get("templates", ""))


def hash_of(folder: Path | None, shipped: Path) -> str:
    """Return a hash over a user's templates that differ from the shipped ones, empty for none.

    Raises as `template_files` does.
    """
    known = template_files([shipped]) if folder else {}
    files = {name: text for name, text in template_files([folder]).items() if known.get(name) != text} if folder else {}
    if not files:
        return ""
    return hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:16]


def found_in(previous: Tree, folder: str, repositories: Collection[str]) -> Sources:
    """Return the mirror that the bundles of a cluster name, for a lockfile that does not: that of 0.11."""
    for name in _FILES:
        content = previous.get(f"{folder}/{name}") or b""
        for field, found in _ADDRESS.findall(content):
            address = found.decode(errors="replace")
            # With OCI the address ends with the chart's name.
            address = address.rpartition("/")[0] if address.startswith("oci://") else address
            if field == b"repo" or address.startswith("oci://"):
                return Sources("" if address in repositories else address)
    return Sources()


def left_out(before: Sources, chart_repository: str, templates: Path | None, *, shipped: bool) -> list[Finding]:
    """Return a refusal for each source of the record that an option left out; `shipped` asks for shipped templates."""
    found = []
    if before.chart_repository and not chart_repository:
        mirror = before.chart_repository
        detail = (
            f"charts come from {mirror} and would come from their own repositories: repeat --chart-repo {mirror} (or "
            f"CAPHV_CHART_REPO), or ask for the change with --chart-repo {DEFAULT}"
        )
        found.append(Finding(("sources", "chartRepository"), Fault.FORBIDDEN, detail, RULE))
    if before.templates and templates is None and not shipped:
        detail = (
            "rendered with custom templates, which would be dropped: repeat --templates (or CAPHV_TEMPLATES), or ask "
            f"for the shipped ones with --templates {DEFAULT}"
        )
        found.append(Finding(("sources", "templates"), Fault.FORBIDDEN, detail, RULE))
    return found
