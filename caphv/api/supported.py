"""Releases of other programs that the provider supports, and the features of these releases.

The table is `supported.json` next to this module. Rendering, rules and doctor read it, and
`docs/reference/support.md` is generated from it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from caphv import data
from caphv.api import generated
from caphv.api.object import Obj, list_at

MARK = "<!-- Generated from caphv/api/supported.json: python -m caphv.api.supported -->"
_TABLE = Path(__file__).with_name("supported.json")
_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,6}))?")
_IMAGE = re.compile(r"/([^/:]{1,64}):(v\d{1,4}\.\d{1,4}\.\d{1,6})")
_IMAGES = {
    "fleet": "fleet",
    "caapf": "cluster-api-addon-provider-fleet",
    "turtles": "turtles",
}
Version = tuple[int, ...]


@dataclass(frozen=True)
class Feature:
    """A feature of a program, which releases have from `oldest` on, except for `broken` ones."""

    oldest: Version
    broken: tuple[Version, ...] = ()


@dataclass(frozen=True)
class Component:
    """A program and its supported releases.

    `oldest` and `newest` are versions such as `0.13.0` or, for all patches of a minor version,
    `0.16`. `broken` maps unsupported releases between them to the reason. `why` explains the oldest
    one, `tested` how the range was tested. `features` are features that rendering needs and that
    some releases lack.
    """

    name: str
    title: str
    oldest: str
    newest: str
    why: str
    tested: str
    broken: Mapping[str, str] = field(default_factory=dict)
    features: Mapping[str, Feature] = field(default_factory=dict)

    def lacks(self, feature: str, version: str) -> bool:
        """Return whether a release lacks a feature. The default is the oldest supported release."""
        release = parse(version or self.oldest)
        releases = self.features[feature]
        return bool(release) and (release < releases.oldest or release in releases.broken)

    def problem(self, version: str) -> str:
        """Return why a version is not supported.

        The text is empty for a supported version, and for a version that cannot be parsed.
        """
        parsed = parse(version)
        if not parsed:
            return ""
        for broken, reason in self.broken.items():
            if parsed == parse(broken):
                return f"{self.title} {version} is not supported: {reason}"

        oldest = parse(self.oldest)
        newest = parse(self.newest)
        if parsed < oldest:
            return (
                f"{self.title} {version} is older than {self.oldest}, the oldest that is supported"
            )
        if parsed[: len(newest)] > newest:
            return f"{self.title} {version} is newer than {self.newest}, the newest that was tested"
        return ""


@dataclass(frozen=True)
class HelmController:
    """Settings that a HelmChart should have for the Helm controller of a release of K3s or RKE2.

    `failure_policy` is never the default, which uninstalls a failed release. `force_conflicts` lets
    Helm overwrite fields of other owners. Older releases neither know nor need this field, because
    they use Helm 3.
    """

    failure_policy: str
    force_conflicts: bool


@dataclass(frozen=True)
class Support:
    """The whole table."""

    components: Mapping[str, Component]
    retrying_patches: Mapping[Version, int]

    def helm_controller(self, kubernetes_version: str) -> HelmController:
        """Return the settings of HelmCharts. For an unknown version, `abort` is the safe choice."""
        version = parse(kubernetes_version)
        if len(version) != 3:
            return HelmController("abort", force_conflicts=False)

        first_patch = self.retrying_patches.get(version[:2])
        if first_patch is not None:
            retries = version[2] >= first_patch
            return HelmController("retry" if retries else "abort", retries)
        retries = version[:2] > max(self.retrying_patches)
        return HelmController("retry" if retries else "abort", retries)


def parse(version: str) -> Version:
    """Return the numbers of a version such as `v1.36.2+k3s1`; empty if it has none."""
    match = _VERSION.match(version)
    return tuple(int(part) for part in match.groups() if part is not None) if match else ()


def release_of(component: str, deployment: Obj | None) -> str:
    """Return the release of a program, such as `v0.16.1`, by the image of its Deployment.

    The text is empty if the image does not name it.

    :param component: `fleet`, `caapf` or `turtles`
    :param deployment: the Deployment of its controller
    """
    for container in list_at(deployment, "spec", "template", "spec", "containers"):
        image = _IMAGE.search(str(container.get("image") or ""))
        if image and image[1] == _IMAGES[component]:
            return image[2]
    return ""


def page(table: Support) -> str:
    """Return the Markdown of `docs/reference/support.md`."""
    head = [
        "# What is supported",
        "",
        "`caphv doctor` compares versions that it sees with this table.",
        "",
        "| Program | Releases | Why | Tested how |",
        "|---|---|---|---|",
    ]
    rows = [
        f"| {component.title} | {_range(component)} | {component.why} | {component.tested} |"
        for component in table.components.values()
    ]
    return "\n".join([*head, *rows, "", MARK, ""])


def _range(component: Component) -> str:
    # `newest` may be a series, such as 1.7, of which `oldest` is a release.
    if component.oldest.startswith(component.newest):
        text = f"{component.newest}, from {component.oldest}"
    else:
        text = f"{component.oldest} to {component.newest}"
    for release, reason in component.broken.items():
        text += f", not {release}: {reason}"
    return text


def _component(row: Obj) -> Component:
    features = {
        name: Feature(parse(feature["from"]), tuple(map(parse, feature.get("except", ()))))
        for name, feature in row.get("features", {}).items()
    }
    return Component(
        name=row["name"],
        title=row["title"],
        oldest=row["from"],
        newest=row["to"],
        why=row["why"],
        tested=row["tested"],
        broken=row.get("except", {}),
        features=features,
    )


@cache
def support() -> Support:
    """Return the shipped table."""
    content = json.loads(_TABLE.read_text(encoding="utf-8"))
    components = {row["name"]: _component(row) for row in content["components"]}
    patches = {
        parse(minor): int(patch) for minor, patch in content["helmController"]["retry"].items()
    }
    return Support(components, patches)


def main() -> int:
    """Write the page, or check with `--check` that it is fresh."""
    page_file = data.folder("docs") / "reference" / "support.md"
    return generated.main(None, "caphv.api.supported", {page_file: page(support())})


if __name__ == "__main__":
    sys.exit(main())
