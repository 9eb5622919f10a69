"""Checks that the release of Fleet supports what bundles need."""

from __future__ import annotations

import re

from caphv.api.supported import support
from caphv.validation.finding import Fault, FieldPath, Finding
from packager.git.folder import Tree
from packager.rendering.bundles import FLEET_YAML

RULE = "bundles-fleet"
_RELEASE = re.compile(r"v?\d{1,4}\.\d{1,4}\.\d{1,6}(?:[-+][0-9A-Za-z.+-]{1,64})?")
# The packager writes these files itself, always in this form.
_OCI = re.compile(rb"^  repo: ['\"]?(oci://[^\s'\"]+)", re.MULTILINE)
_DRIFT = re.compile(rb"^correctDrift:", re.MULTILINE)


def validate_release(release: str) -> str:
    """Return a release of Fleet, empty for the oldest supported one.

    Raises `ValueError` for other texts.
    """
    if release and not _RELEASE.fullmatch(release):
        raise ValueError(
            f"{release[:40]!r} is not a release of Fleet: use one such as v0.16.1, the tag of its "
            "image"
        )
    return release


def check_release(tree: Tree, release: str) -> list[Finding]:
    """Return findings about charts that Fleet cannot read, and advice about fields that it ignores.

    `tree` are the files of one cluster. Without a release, Fleet is the oldest supported one.
    """
    fleet = support().components["fleet"]
    shown = release or fleet.oldest
    files = {
        path: content for path, content in sorted(tree.items()) if path.endswith(f"/{FLEET_YAML}")
    }
    findings = []

    lacks_oci = fleet.lacks("oci-charts", release)
    for path, content in files.items():
        if lacks_oci and (match := _OCI.search(content)):
            detail = (
                f"Fleet {shown} does not read charts from oci:// addresses, and would update no "
                f"cluster of the GitRepo: upgrade Fleet to {fleet.oldest} or later, use a mirror "
                "https://… (--chart-repo), or add the charts to the repository with caphv "
                "bundles vendor"
            )
            field: FieldPath = (_bundle(path), FLEET_YAML, "helm", "repo")
            findings.append(Finding(field, Fault.UNSUPPORTED, detail, RULE, match[1].decode()))

    # All bundles of manifests have the field, so one finding is enough.
    drifting = [path for path, content in files.items() if _DRIFT.search(content)]
    if drifting and fleet.lacks("drift-correction", release):
        remedy = (
            f"upgrade Fleet, and set --fleet-version to the new release ({fleet.oldest} to "
            f"{fleet.newest})"
        )
        detail = f"Fleet {shown} leaves what others changed in the bundles of manifests: {remedy}"
        field = (_bundle(drifting[0]), FLEET_YAML, "correctDrift")
        findings.append(Finding(field, Fault.UNSUPPORTED, detail, RULE, release, advice=True))

    # A release that lacks something is reported already.
    if release and not findings and (problem := fleet.problem(release)):
        detail = f"{problem}: run a supported release of Fleet ({fleet.oldest} to {fleet.newest})"
        field = ("fleetVersion",)
        findings.append(Finding(field, Fault.UNSUPPORTED, detail, RULE, release, advice=True))
    return findings


def _bundle(path: str) -> str:
    """Return the bundle of a file."""
    return path.split("/")[-2]
