"""Checks the objects that bundles would install, and compares them with the current ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from caphv.api.object import Obj, at
from caphv.validation.finding import Fault, Finding, LocatedFinding
from packager.addons.settings import AddonSettings
from packager.checks import immutable, kinds, podfamilies, references
from packager.checks.charts import Chart, Charts
from packager.checks.contents import Bundle, ChartRef, Release, bundles_of
from packager.checks.helm import Helm, HelmError, TemplateObject
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
    """Chart and template that the object comes from, for messages; empty for a manifest."""
    namespace: str
    early: bool = False
    """Whether Helm creates it before the others: a CRD of a chart's folder `crds`."""

    @property
    def identity(self) -> immutable.Identity:
        """Group, kind, namespace and name."""
        return immutable.identity(self.obj, self.namespace)


@dataclass
class _Content:
    """A bundle with all of its objects, as far as its charts can be rendered."""

    bundle: Bundle
    objects: list[_Object] = field(default_factory=list)
    unknown: list[ChartRef] = field(default_factory=list)
    """Charts that were not rendered."""

    @property
    def distribution_files(self) -> set[str]:
        """Files that configure RKE2's own charts, whose versions come with RKE2."""
        return {release.file for release in self.bundle.releases if not release.chart.version}

    def defined_kinds(self, *, early_only: bool = False) -> set[kinds.Kind]:
        """Return the kinds that CRDs in this bundle define."""
        objects = [item.obj for item in self.objects if item.early or not early_only]
        return set(kinds.crd_kinds(objects))


class Checker:
    """Checks clusters, and remembers rendered charts for all of them. Thread-safe."""

    def __init__(self, helm: Helm | None, charts: Charts | None) -> None:
        self._helm = helm
        self._charts = charts
        self._rendered: dict[bytes, list[TemplateObject]] = {}

    def check(self, tree: Tree, settings: AddonSettings, before: Tree) -> Checked:
        """Check the files of a cluster.

        `before` holds the cluster's files in the repository, and is empty for a new cluster. Raises
        `ValueError` with the path of a file that is not YAML.
        """
        # The run finds faults of charts, and the checks below find faults of objects.
        run = _Run(self, settings)
        contents = [run.content(bundle) for bundle in bundles_of(tree)]
        charts = tuple(run.charts)
        findings = [
            *run.findings,
            *_check_kinds(contents, settings),
            *_check_references(contents, settings),
            *_check_pod_families(contents, settings),
        ]

        # Compare only bundles with a changed file, because charts take long to render.
        changed = [path for path, content in before.items() if tree.get(path) != content]
        if changed:
            added = [path for path in tree if path not in before]
            folders = {path.rpartition("/")[0] for path in (*changed, *added)}
            old = {
                path: content
                for path, content in before.items()
                if path.rpartition("/")[0] in folders
            }
            findings += _check_changes(old, contents, _Run(self, settings))

        findings.sort(
            key=lambda located: (located.place, located.finding.field, located.finding.rule)
        )
        return Checked(str(settings.cluster), tuple(findings), charts)

    def find(self, release: Release) -> Chart | None:
        """Return the chart of a release, None when it is not available. Raises `HelmError`."""
        if self._charts is None:
            return None
        if release.chart_files is None:
            return self._charts.find(release.chart)
        return self._charts.bundled_chart(release.chart_files)

    @property
    def needs_charts(self) -> bool:
        """Whether a chart that is not available is an error."""
        return bool(self._charts and self._charts.are_given)

    def render(
        self, release: Release, values: Obj, settings: AddonSettings
    ) -> list[TemplateObject]:
        """Return the objects of a release, each with its template. Raises `HelmError`."""
        chart = self.find(release)
        if self._helm is None or chart is None:
            return []

        version = settings.kubernetes_version
        inputs = [str(chart.path), release.name, release.namespace, settings.distribution, version]
        key = orjson.dumps([*inputs, values], option=orjson.OPT_SORT_KEYS)
        if key not in self._rendered:
            served = {name for name, _ in kinds.served_kinds(settings.distribution, version)}
            self._rendered[key] = self._helm.template(chart.path, release, values, version, served)
        return self._rendered[key]


class _Run:
    """One pass over the bundles of a cluster."""

    def __init__(self, checker: Checker, settings: AddonSettings) -> None:
        self._checker = checker
        self._settings = settings
        self.compares_charts = checker.needs_charts
        self.findings: list[Located] = []
        self.charts: list[CheckedChart] = []

    def content(self, bundle: Bundle) -> _Content:
        """Return the objects of a bundle; charts that are not available contribute none."""
        content = _Content(bundle)
        content.objects += (
            _Object(obj=obj, file=file, source="", namespace=bundle.namespace)
            for file, obj in bundle.manifests
        )
        for release in bundle.releases:
            try:
                is_rendered = self._add_release_objects(release, content)
            except HelmError as error:
                self._report(release, Fault.INVALID, f"{release.chart} cannot be rendered: {error}")
                is_rendered = False
            self.charts.append(CheckedChart(bundle.name, release.chart, is_rendered))
            if not is_rendered:
                content.unknown.append(release.chart)
        return content

    def _add_release_objects(self, release: Release, content: _Content) -> bool:
        """Add the objects of a release to its bundle, and return whether its chart is available.

        Raises `HelmError` if the chart cannot be rendered.
        """
        chart = self._checker.find(release)
        if chart is None:
            # RKE2's own charts come with RKE2, and need no mirror.
            if self._checker.needs_charts and release.chart.version:
                detail = (
                    f"{release.chart} is not available: add it to the folder of --charts, or use "
                    "--fetch"
                )
                self._report(release, Fault.REQUIRED, detail)
            return False

        values = dict(release.values)
        for file, obj in self._checker.render(release, values, self._settings):
            source = f"{release.chart}, {file}"
            early = file.startswith("crds/") or "/crds/" in file
            content.objects.append(
                _Object(
                    obj=obj,
                    file=release.file,
                    source=source,
                    namespace=release.namespace,
                    early=early,
                )
            )

        for finding in unknown_values(
            values, chart.values, lambda changed: self._try_render(release, changed), release.chart
        ):
            path = (*release.path, *finding.path)
            self.findings.append(LocatedFinding(release.file, replace(finding, path=path)))
        return True

    def _report(self, release: Release, fault: Fault, detail: str) -> None:
        finding = Finding(release.path, fault, detail, RENDER)
        self.findings.append(LocatedFinding(release.file, finding))

    def _try_render(self, release: Release, values: Obj) -> object:
        """Return the objects of a release, or the message when Helm cannot render them."""
        try:
            objects = self._checker.render(release, values, self._settings)
            return [item.obj for item in objects]
        except HelmError as error:
            # A chart that fails without a key uses it, so the message must count as a difference.
            return str(error)


def _check_kinds(contents: Sequence[_Content], settings: AddonSettings) -> Iterator[Located]:
    """Yield objects whose kind is not served when Fleet, or the Helm controller, creates them."""
    base = kinds.served_kinds(settings.distribution, settings.kubernetes_version)
    bundles = {content.bundle.name: content for content in contents}
    defined = {kind for content in contents for kind in content.defined_kinds()}

    for content in contents:
        # A bundle can use kinds of bundles before it, and of its own folders `crds`.
        dependencies = _dependencies(content, bundles)
        served = base | content.defined_kinds(early_only=True)
        served |= {kind for dependency in dependencies for kind in dependency.defined_kinds()}
        # A chart that was not rendered may hold the CRD that is missed.
        unsure = any(dependency.unknown for dependency in dependencies)

        # The Helm controller retries until the kinds of other charts exist.
        retried = {release.file for release in content.bundle.releases if not release.by_fleet}
        distribution_files = content.distribution_files
        for item in content.objects:
            kind = (str(item.obj.get("apiVersion")), str(item.obj.get("kind")))
            # The CRDs of RKE2's own charts come with RKE2.
            if kind in served or (item.source and item.file in distribution_files):
                continue
            if item.source and item.file in retried and kind in defined:
                continue
            detail = (
                f"no matches for kind {kind[1]} in version {kind[0]}: "
                f"{_remedy(kind, defined, settings)}"
            )
            if item.source:
                detail = f"{_name(item)}: {detail}"
            finding = Finding(
                ("kind",), Fault.UNSUPPORTED, detail, kinds.KIND, kind[1], advice=unsure
            )
            yield LocatedFinding(item.file, finding)


def _remedy(kind: kinds.Kind, defined: set[kinds.Kind], settings: AddonSettings) -> str:
    if kind in defined:
        return (
            "add the bundle with its CRD to dependsOn; a CRD in the templates of the same chart "
            "belongs into the chart's folder crds"
        )
    version = settings.kubernetes_version or "this version of Kubernetes"
    return (
        f"{settings.distribution} in {version} does not serve it, and no bundle defines it: add a "
        "bundle with its CRD"
    )


def _check_pod_families(contents: Sequence[_Content], settings: AddonSettings) -> Iterator[Located]:
    """Yield objects that need an IP family of Pods which the CNI turns off."""
    for content in contents:
        # RKE2 itself gives its own charts the networks.
        distribution_files = content.distribution_files
        for item in content.objects:
            if item.file in distribution_files:
                continue
            for finding in podfamilies.check_pod_families(item.obj, settings.cni.pod_cidrs):
                detail = f"{_name(item)} {finding.detail}"
                yield LocatedFinding(item.file, replace(finding, detail=detail))


def _dependencies(content: _Content, bundles: Mapping[str, _Content]) -> list[_Content]:
    """Return the bundles that Fleet installs before a bundle."""
    dependencies: dict[str, _Content] = {}
    queue = list(content.bundle.depends_on)
    while queue:
        name = queue.pop()
        if name in bundles and name not in dependencies:
            dependencies[name] = bundles[name]
            queue += bundles[name].bundle.depends_on
    return list(dependencies.values())


def _check_references(contents: Sequence[_Content], settings: AddonSettings) -> Iterator[Located]:
    """Yield names of bundles and objects that the cluster does not have."""
    bundles = {content.bundle.name for content in contents}
    for content in contents:
        for index, name in enumerate(content.bundle.depends_on):
            if name in bundles:
                continue
            detail = (
                "the cluster has no bundle of this name, so Fleet waits forever: remove it, or "
                "correct it"
            )
            path = ("dependsOn", index, "name")
            finding = Finding(path, Fault.INVALID, detail, references.REFERENCE, name)
            yield LocatedFinding(content.bundle.fleet_yaml, finding)

    objects = [item for content in contents for item in content.objects]
    targets = {item.identity[1:] for item in objects}
    # References to objects of cluster-wide kinds have no namespace.
    targets |= {(kind, "", name) for kind, _, name in targets}
    targets.add(("Secret", "kube-system", settings.cloud_config.secret_name))
    unsure = any(content.unknown for content in contents)
    for item in objects:
        yield from _check_object(item, targets, unsure=unsure)


def _check_object(
    item: _Object, targets: set[tuple[str, str, str]], *, unsure: bool
) -> Iterator[Located]:
    """Yield references of an object to others that are not in `targets`."""
    for reference in references.references(item.obj, item.namespace):
        target = (reference.kind, reference.namespace, reference.name)
        if target in targets or references.is_built_in(reference):
            continue

        namespace = f" in namespace {reference.namespace}" if reference.namespace else ""
        # Bundles never hold Secrets. Users or controllers create them in the cluster.
        is_secret = reference.kind == "Secret"
        remedy = "create it in the cluster" if is_secret else "add it, or correct the name"
        detail = (
            f"{_name(item)} names a {reference.kind}{namespace} that no bundle creates: {remedy}"
        )

        finding = Finding(
            reference.path,
            Fault.INVALID,
            detail,
            references.REFERENCE,
            reference.name,
            advice=is_secret or unsure,
        )
        yield LocatedFinding(item.file, finding)


def _check_changes(before: Tree, contents: Sequence[_Content], run: _Run) -> Iterator[Located]:
    """Yield changes of immutable fields in bundles whose files changed."""
    try:
        old_contents = [run.content(bundle) for bundle in bundles_of(before)]
    except ValueError:
        # Fleet cannot have installed files that cannot be read.
        return
    if run.compares_charts:
        for content in old_contents:
            yield from (_warn_of_unknown_chart(content, chart) for chart in content.unknown)

    old = {item.identity: item.obj for content in old_contents for item in content.objects}
    new = {item.identity: item for content in contents for item in content.objects}
    for key, finding in immutable.changes(old, {key: item.obj for key, item in new.items()}):
        item = new[key]
        yield LocatedFinding(item.file, replace(finding, detail=f"{_name(item)}: {finding.detail}"))


def _warn_of_unknown_chart(content: _Content, chart: ChartRef) -> Located:
    """Return advice about a chart whose old objects cannot be compared with the new ones."""
    detail = (
        f"was {chart} before, which is not available: whether fields that cannot change stay the "
        "same is unknown"
    )
    finding = Finding(("helm", "version"), Fault.INVALID, detail, immutable.IMMUTABLE, advice=True)
    return LocatedFinding(content.bundle.fleet_yaml, finding)


def _name(item: _Object) -> str:
    """Return kind and name of an object, with its chart and template."""
    source = f" ({item.source})" if item.source else ""
    return f"{item.obj.get('kind')} {at(item.obj, 'metadata', 'name')}{source}"
