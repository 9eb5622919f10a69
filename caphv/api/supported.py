"""Which releases of the programs around the provider are supported, and what they can do.

The table is `supported.json` next to this module. Rendering, rules and doctor read it, and
`docs/reference/support.md` is generated from it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

MARK = "<!-- Generated from caphv/api/supported.json: python -m caphv.api.supported -->"
_TABLE = Path(__file__).with_name("supported.json")
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?")
Version = tuple[int, ...]


@dataclass(frozen=True)
class Component:
    """A program and the releases of it that are supported.

    `oldest` and `newest` are versions such as `0.13.0` or, for all patches of a minor version, `0.16`. `broken` maps
    releases between them that are not supported to the reason. `why` explains the oldest one, `tested` how the range
    was tested.
    """

    name: str
    title: str
    oldest: str
    newest: str
    why: str
    tested: str
    broken: Mapping[str, str] = field(default_factory=dict)

    def problem(self, version: str) -> str:
        """Return why a version is not supported; empty for one that is, and for one that cannot be read."""
        parsed = parse(version)
        if not parsed:
            return ""
        for broken, reason in self.broken.items():
            if parsed == parse(broken):
                return f"{self.title} {version} is not supported: {reason}"
        oldest, newest = parse(self.oldest), parse(self.newest)
        if parsed < oldest:
            return f"{self.title} {version} is older than {self.oldest}, the oldest that is supported"
        if parsed[: len(newest)] > newest:
            return f"{self.title} {version} is newer than {self.newest}, the newest that was tested"
        return ""


@dataclass(frozen=True)
class HelmController:
    """What a HelmChart of the Helm controller in a release of K3s or RKE2 should say.

    `failure_policy` is never its default, which uninstalls a failed release. `force_conflicts`: Helm may overwrite
    fields that others own. Older releases neither know the field nor need it, as they use Helm 3.
    """

    failure_policy: str
    force_conflicts: bool


@dataclass(frozen=True)
class Support:
    """The whole table."""

    components: Mapping[str, Component]
    retrying_patches: Mapping[Version, int]

    def helm_controller(self, kubernetes_version: str) -> HelmController:
        """Return what HelmCharts should say; the safe choice for an unknown version is `abort`."""
        version = parse(kubernetes_version)
        newest = max(self.retrying_patches)
        known = self.retrying_patches.get(version[:2])
        retries = len(version) == 3 and (version[2] >= known if known is not None else version[:2] > newest)
        return HelmController("retry" if retries else "abort", retries)


def parse(version: str) -> Version:
    """Return the numbers of a version such as `v1.36.2+k3s1`; empty if it has none."""
    match = _VERSION.match(version)
    return tuple(int(part) for part in match.groups() if part is not None) if match else ()


def page(table: Support) -> str:
    """Return the Markdown of `docs/reference/support.md`."""
    rows = [
        f"| {component.title} | {_range(component)} | {component.why} | {component.tested} |"
        for component in table.components.values()
    ]
    head = ["# What is supported", "", "`caphv doctor` compares versions that it sees with this table.", ""]
    return "\n".join([*head, "| Program | Releases | Why | Tested how |", "|---|---|---|---|", *rows, "", MARK, ""])


def _range(component: Component) -> str:
    same = component.oldest.startswith(component.newest)
    text = f"{component.newest}, from {component.oldest}" if same else f"{component.oldest} to {component.newest}"
    return text + "".join(f", not {release}: {reason}" for release, reason in component.broken.items())


@cache
def support() -> Support:
    """Return the shipped table."""
    content = json.loads(_TABLE.read_text(encoding="utf-8"))
    components = {
        row["name"]: Component(
            row["name"], row["title"], row["from"], row["to"], row["why"], row["tested"], row.get("except", {})
        )
        for row in content["components"]
    }
    patches = {parse(minor): int(patch) for minor, patch in content["helmController"]["retry"].items()}
    return Support(components, patches)


def main() -> int:
    """Write the page, or check with `--check` that it is fresh."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a stale page")
    file, content = Path("docs/reference/support.md"), page(support())
    if not parser.parse_args().check:
        file.write_text(content, encoding="utf-8")
        return 0
    fresh = file.is_file() and file.read_text(encoding="utf-8") == content
    if not fresh:
        sys.stderr.write(f"{file} is stale: run python -m caphv.api.supported\n")
    return 0 if fresh else 1


if __name__ == "__main__":
    sys.exit(main())
