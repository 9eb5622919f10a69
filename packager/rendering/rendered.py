"""The files of one rendered cluster, and findings of rendering itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from caphv.api.object import Key
from caphv.validation.finding import Fault, Finding
from packager.addons.settings import AddonSettings
from packager.addons.versions import Versions
from packager.rendering import lockfile
from packager.rendering.templates import TemplateError
from packager.tree import Tree

TEMPLATE_RULE = "bundles-template"
"""Rule of findings about a template. Every cluster that the template is rendered for has them."""
_OTHER_TEMPLATES_RULE = "bundles-templates"
_LOCKFILE_RULE = "bundles-record"
_DUPLICATE_RULE = "cluster-twice"


class RenderedFiles(NamedTuple):
    """Files by path, and findings about them. Files that have a finding are left out."""

    files: dict[str, bytes]
    findings: list[Finding]


@dataclass(frozen=True)
class Rendered:
    """The files of one cluster, and findings about it.

    A cluster with a finding that is more than advice has no files (`ok` is false), and its files in
    the repository stay. `forced`: the user allows changes that break the network of a live cluster.
    """

    cluster: Key
    tree: Tree = field(default_factory=dict)
    hash: str = ""
    settings: AddonSettings | None = None
    versions: Versions | None = None
    findings: tuple[Finding, ...] = ()
    forced: bool = False

    @property
    def ok(self) -> bool:
        """Whether the cluster could be rendered."""
        return self.settings is not None and all(finding.advice for finding in self.findings)


def other_templates_finding(versions: Versions, *, is_asked: bool) -> Finding:
    """Return the finding that templates of another release rendered the bundles.

    The finding is advice while the bundles stay as they are. It is an error if a revert asks for
    these versions (`is_asked`), because they cannot be rendered.
    """
    detail = (
        f"release {versions.release} of the bundles was rendered with templates of another release "
        "of caphv: "
    )
    # Only the history still has the files that those templates rendered.
    if is_asked:
        detail += "revert the commit that changed them"
    else:
        detail += (
            "the bundles stay as they are, whatever the settings say, until you upgrade this "
            "cluster with caphv bundles upgrade, which shows the difference with --dry-run"
        )

    return Finding(
        ("versions", "templates"),
        Fault.UNSUPPORTED,
        detail,
        _OTHER_TEMPLATES_RULE,
        versions.templates,
        advice=not is_asked,
    )


def lockfile_finding(folder: str, error: ValueError) -> Finding:
    """Return the finding of a cluster whose lockfile is missing or invalid."""
    detail = (
        f"{error}: restore it from the history of the repository, or remove the folder {folder}"
    )
    return Finding((f"{folder}/{lockfile.FILE}",), Fault.INVALID, detail, _LOCKFILE_RULE)


def template_finding(error: TemplateError) -> Finding:
    """Return the finding of a template that cannot be read or rendered."""
    return Finding(("templates", error.file), Fault.INVALID, error.message, TEMPLATE_RULE)


def refuse_duplicate(result: Rendered) -> Rendered:
    """Return the refusal of a cluster that shares its namespace and name with another one."""
    detail = "two clusters have this namespace and name: give each its own"
    path = ("metadata", "name")
    finding = Finding(path, Fault.DUPLICATE, detail, _DUPLICATE_RULE, result.cluster.name)
    return Rendered(result.cluster, findings=(*result.findings, finding))
