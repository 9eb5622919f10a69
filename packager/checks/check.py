"""Checks what a cluster's bundles would install, and what that changes against what they installed before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from caphv.api.object import Obj
from caphv.validation.finding import Fault, Finding, LocatedFinding
from packager.addons.merge import at
from packager.addons.settings import AddonSettings
from packager.checks import immutable, kinds, podfamilies, references
from packager.checks.charts import Chart, Charts
from packager.checks.contents import Bundle, ChartRef, Release, bundles_of
from packager.checks.helm import Helm, HelmError
from packager.checks.values import unknown_values
from packager.tree import Tree

RENDER = "chart-render"
Located = LocatedFinding[str]
"""A finding with the path of the file in the repository."""


@dataclass(frozen=True)
class CheckedChart:
    """A chart of a cluster and whether it was rendered; if not, its objects are unknown."""

    bundle: str
    chart: ChartRef
    rendered: bool


@dataclass(frozen=True)
class Checked:
    """All findings about a cluster, and its charts."""

    cluster: str
    findings: tuple[Located, ...] = ()
    charts: tuple[CheckedChart, ...] = ()


@dataclass(frozen=True)
class _Object:
    obj: Obj
    file: str
    source: str
    """What made it, for messages: a chart and its template, or empty for a manifest."""
    namespace: str
    early: bool = False
    """Whether it is created before the others: a CRD of a chart's folder `crds`."""


@dataclass
class _Content:
    """A bundle with all objects that are known."""

    bundle: Bundle
    objects: list[_Object] = field(default_factory=list)
    unknown: list[ChartRef] = field(default_factory=list)
    """Charts that were not rendered."""


class Checker:
    """Checks clusters; what was rendered for one is remembered for others. Safe to use from several threads."""

    def __init__(self, helm: Helm | None, charts: Charts | None) -> None:
        self._helm, self._charts = helm, charts
        self._rendered: dict[bytes, list[tuple[str, Obj]]] = {}

    def check(self, tree: Tree, settings: AddonSettings, before: Tree) -> Checked:
        """Check the files of a cluster; `before` is what the repository holds of it, empty for a new one.

        Raises ValueError with the path of a file that is not YAML.
        """
        run = _Run(self, settings)
        contents = [run.content(bundle) for bundle in bundles_of(tree)]
        findings = [*run.findings, *_unserved(contents, settings), *_missing(contents, settings)]
        findings += _families(contents, settings)
        charts = tuple(run.charts)
        changed = {path: content for path, content in before.items() if tree.get(path) != content}
        if changed:
            folders = {path.rpartition("/")[0] for path in changed} | {
                path.rpartition("/")[0] for path in tree if path not in before
            }
            findings += _changed(_within(before, folders), contents, _Run(self, settings))
        findings.sort(key=lambda one: (one.place, one.finding.field, one.finding.rule))
        return Checked(str(settings.cluster), tuple(findings), charts)

    def find(self, release: Release) -> Chart | None:
        """Return the chart of a release if it is available, else None. Raises HelmError."""
        if self._charts is None:
            return None
        files = release.chart_files
        return self._charts.find(release.chart) if files is None else self._charts.of_bundle(files)

    @property
    def needs_charts(self) -> bool:
        """Whether a chart that is not available is an error."""
        return bool(self._charts and self._charts.are_given)

    def render(self, release: Release, values: Obj, settings: AddonSettings) -> list[tuple[str, Obj]]:
        """Return what a release renders to. Raises HelmError."""
        chart = self.find(release)
        if self._helm is None or chart is None:
            return []
        version = settings.kubernetes_version
        place = [str(chart.path), release.name, release.namespace, settings.distribution, version]
        key = orjson.dumps([place, values], option=orjson.OPT_SORT_KEYS)
        if key not in self._rendered:
            served = {name for name, _ in kinds.served(settings.distribution, version)}
            self._rendered[key] = self._helm.template(chart.path, release, values, version, served)
        return self._rendered[key]


class _Run:
    """One pass over the bundles of a cluster."""

    def __init__(self, checker: Checker, settings: AddonSettings) -> None:
        self._checker, self._settings = checker, settings
        self.compares_charts = checker.needs_charts
        self.findings: list[Located] = []
        self.charts: list[CheckedChart] = []

    def content(self, bundle: Bundle) -> _Content:
        """Return the objects of a bundle; charts that are not available make it opaque."""
        content = _Content(bundle)
        content.objects += (_Object(obj, file, "", bundle.namespace) for file, obj in bundle.manifests)
        for release in bundle.releases:
            try:
                known = self._release(release, content)
            except HelmError as error:
                detail = f"{release.chart} cannot be rendered: {error}"
                self.findings.append(_located(release, Finding(release.path, Fault.INVALID, detail, RENDER)))
                known = False
            self.charts.append(CheckedChart(bundle.name, release.chart, known))
            content.unknown += [] if known else [release.chart]
        return content

    def _release(self, release: Release, content: _Content) -> bool:
        chart = self._checker.find(release)
        if chart is None:
            # RKE2's own charts come with RKE2, and need no mirror.
            if self._checker.needs_charts and release.chart.version:
                detail = f"{release.chart} is not available: add it to the folder of --charts, or use --fetch"
                self.findings.append(_located(release, Finding(release.path, Fault.REQUIRED, detail, RENDER)))
            return False
        values = dict(release.values)
        for file, obj in self._checker.render(release, values, self._settings):
            source = f"{release.chart}, {file}"
            early = file.startswith("crds/") or "/crds/" in file
            content.objects.append(_Object(obj, release.file, source, release.namespace, early))
        found = unknown_values(values, chart.values, lambda one: self._try(release, one), release.chart)
        self.findings += (_located(release, replace(one, path=(*release.path, *one.path))) for one in found)
        return True

    def _try(self, release: Release, values: Obj) -> object:
        try:
            return [obj for _, obj in self._checker.render(release, values, self._settings)]
        except HelmError as error:
            # A chart that needs a key says so: the key has an effect.
            return str(error)


def _located(release: Release, finding: Finding) -> Located:
    return LocatedFinding(release.file, finding)


def _unserved(contents: Sequence[_Content], settings: AddonSettings) -> Iterator[Located]:
    """Yield objects whose kind is not served when Fleet, or the Helm controller, creates them."""
    base = kinds.served(settings.distribution, settings.kubernetes_version)
    names = {content.bundle.name: content for content in contents}
    everywhere = {kind for content in contents for kind in kinds.defined(one.obj for one in content.objects)}
    for content in contents:
        before = _dependencies(content, names)
        known = base | {kind for one in before for kind in kinds.defined(item.obj for item in one.objects)}
        known |= set(kinds.defined(item.obj for item in content.objects if item.early))
        unsure = any(one.unknown for one in before)
        # The Helm controller tries again until the kinds of other charts are there.
        retries = {release.file for release in content.bundle.releases if not release.by_fleet}
        # The CRDs of RKE2's own charts come with RKE2.
        own = {release.file for release in content.bundle.releases if not release.chart.version}
        for item in content.objects:
            kind = str(item.obj.get("apiVersion")), str(item.obj.get("kind"))
            if kind in known or (item.source and item.file in own):
                continue
            if item.source and item.file in retries and kind in everywhere:
                continue
            detail = f"no matches for kind {kind[1]} in version {kind[0]}: {_remedy(kind, everywhere, settings)}"
            if item.source:
                detail = f"{_name(item)}: {detail}"
            finding = Finding(("kind",), Fault.UNSUPPORTED, detail, kinds.KIND, kind[1], advice=unsure)
            yield LocatedFinding(item.file, finding)


def _remedy(kind: kinds.Kind, everywhere: set[kinds.Kind], settings: AddonSettings) -> str:
    if kind in everywhere:
        return "its CRD is in another bundle, or in the templates of the same chart: add that bundle to dependsOn"
    version = settings.kubernetes_version or "this version of Kubernetes"
    return (
        f"{settings.distribution} in {version} does not serve it, and no bundle defines it: add a bundle with its CRD"
    )


def _families(contents: Sequence[_Content], settings: AddonSettings) -> Iterator[Located]:
    """Yield IP families of Pods that the CNI turns off; RKE2 itself gives its own charts the networks."""
    for content in contents:
        own = {release.file for release in content.bundle.releases if not release.chart.version}
        for item in content.objects:
            if item.file not in own:
                for finding in podfamilies.unserved(item.obj, settings.cni.pod_cidrs):
                    yield LocatedFinding(item.file, replace(finding, detail=f"{_name(item)} {finding.detail}"))


def _dependencies(content: _Content, names: Mapping[str, _Content]) -> list[_Content]:
    """Return the bundles that are installed before a bundle."""
    found: dict[str, _Content] = {}
    waiting = list(content.bundle.depends_on)
    while waiting:
        name = waiting.pop()
        if name in names and name not in found:
            found[name] = names[name]
            waiting += names[name].bundle.depends_on
    return list(found.values())


def _missing(contents: Sequence[_Content], settings: AddonSettings) -> Iterator[Located]:
    """Yield names of bundles and objects that the cluster does not have."""
    names = {content.bundle.name for content in contents}
    for content in contents:
        for index, name in enumerate(content.bundle.depends_on):
            if name not in names:
                detail = "the cluster has no bundle of this name, so Fleet waits forever: remove it, or correct it"
                path = ("dependsOn", index, "name")
                finding = Finding(path, Fault.INVALID, detail, references.REFERENCE, name)
                yield LocatedFinding(content.bundle.fleet_yaml, finding)
    known = {immutable.identity(one.obj, one.namespace)[1:] for content in contents for one in content.objects}
    known |= {(kind, "", name) for kind, _, name in known}
    known.add(("Secret", "kube-system", settings.cloud_config.secret_name))
    unsure = any(content.unknown for content in contents)
    for content in contents:
        for item in content.objects:
            yield from _unresolved(item, known, unsure=unsure)


def _unresolved(item: _Object, known: set[tuple[str, str, str]], *, unsure: bool) -> Iterator[Located]:
    for found in references.references(item.obj, item.namespace):
        if (found.kind, found.namespace, found.name) in known or references.is_built_in(found):
            continue
        place = f" in namespace {found.namespace}" if found.namespace else ""
        # Bundles never hold Secrets: users or controllers create them.
        secret = found.kind == "Secret"
        remedy = "create it in the cluster" if secret else "add it, or correct the name"
        detail = f"{_name(item)} names a {found.kind}{place} that no bundle creates: {remedy}"
        finding = Finding(found.path, Fault.INVALID, detail, references.REFERENCE, found.name, advice=secret or unsure)
        yield LocatedFinding(item.file, finding)


def _within(tree: Tree, folders: set[str]) -> Tree:
    return {path: content for path, content in tree.items() if path.rpartition("/")[0] in folders}


def _changed(before: Tree, contents: Sequence[_Content], run: _Run) -> Iterator[Located]:
    """Yield changes of immutable fields in bundles whose files changed."""
    try:
        older = [run.content(bundle) for bundle in bundles_of(before)]
    except ValueError:
        # What cannot be read was never installed.
        return
    if run.compares_charts:
        yield from (_unknown(content, chart) for content in older for chart in content.unknown)
    old = {immutable.identity(one.obj, one.namespace): one.obj for content in older for one in content.objects}
    now = {immutable.identity(one.obj, one.namespace): one for content in contents for one in content.objects}
    for key, finding in immutable.changes(old, {key: one.obj for key, one in now.items()}):
        item = now[key]
        yield LocatedFinding(item.file, replace(finding, detail=f"{_name(item)}: {finding.detail}"))


def _unknown(content: _Content, chart: ChartRef) -> Located:
    detail = f"was {chart} before, which is not available: whether fields that cannot change stay the same is unknown"
    finding = Finding(("helm", "version"), Fault.INVALID, detail, immutable.IMMUTABLE, advice=True)
    return LocatedFinding(content.bundle.fleet_yaml, finding)


def _name(item: _Object) -> str:
    """Kind and name of an object, and what made it."""
    source = f" ({item.source})" if item.source else ""
    return f"{item.obj.get('kind')} {at(item.obj, 'metadata', 'name')}{source}"
