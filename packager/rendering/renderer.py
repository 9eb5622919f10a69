"""Renders the bundles of clusters, so that the same input gives the same bytes.

The bundles of a cluster depend on its objects, the options, the vendored charts and the cluster's
own files in the repository, above all its lockfile. So a changed setting renders one cluster again,
and a faulty cluster does not affect others.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import orjson

from caphv import data
from caphv.api import names
from caphv.api.object import Key, at
from caphv.validation.finding import Fault, Finding, in_order
from packager.addons.facts import ClusterFacts, annotations_of_cluster
from packager.addons.merge import origin
from packager.addons.settings import AddonSettings, Packaging, settings_of
from packager.addons.versions import (
    BUNDLES_FOLDER,
    Table,
    Versions,
    load_table,
    shipped_templates,
    validate_repository,
)
from packager.git.folder import FILE_LIST, MARK, parse_file_list
from packager.rendering import (
    bundles,
    fleetrelease,
    lockfile,
    render_cache,
    sources,
    storageclasses,
    vendored,
)
from packager.rendering.options import RenderOptions
from packager.rendering.rendered import (
    Rendered,
    RenderedFiles,
    lockfile_finding,
    other_templates_finding,
    refuse_duplicate,
    template_finding,
)
from packager.rendering.templates import TemplateError, Templates, check_folder
from packager.tree import Tree, cluster_folder, content_hash

# Sets of settings whose files stay in memory. Each takes some ten kilobytes.
_MAX_COMMON = 512


class _RecordedTree(Mapping[str, bytes]):
    """The files of a repository, which records what is read of them.

    `digests` has the SHA-256 digest of each file that was read, None for a missing file.
    """

    def __init__(self, files: Tree) -> None:
        self.files = files
        self.digests: dict[str, bytes | None] = {}

    def __getitem__(self, path: str) -> bytes:
        content = self.files.get(path)
        self.digests[path] = _digest(content)
        if content is None:
            raise KeyError(path)
        return content

    def __iter__(self) -> Iterator[str]:
        raise TypeError("rendering reads files by path only")

    def __len__(self) -> int:
        raise TypeError("rendering reads files by path only")


@dataclass(frozen=True, slots=True)
class _CachedResult:
    """The last result of a cluster, with the fingerprint and the files that it depends on."""

    fingerprint: bytes
    digests: Mapping[str, bytes | None]
    rendered: Rendered

    def is_current(self, fingerprint: bytes, previous: Tree) -> bool:
        """Return whether rendering would read the same input again."""
        return fingerprint == self.fingerprint and all(
            _digest(previous.get(path)) == digest for path, digest in self.digests.items()
        )


@dataclass(frozen=True, slots=True)
class _VendoredCharts:
    """The vendored charts, and the content of their index."""

    index: bytes
    charts: vendored.Charts


@dataclass(frozen=True, slots=True)
class _ChartReference:
    """The chart of an add-on, as Fleet would download it; `version` is empty without one."""

    addon: str
    chart: str
    version: str
    packaging: Packaging


class Renderer:
    """Renders with one set of options; keeps compiled templates and the last result per cluster."""

    def __init__(
        self, options: RenderOptions | None = None, versions_file: Path | None = None
    ) -> None:
        """Check the options and load the table of chart versions.

        Raises `ValueError` if the mirror, the release of Fleet or the table is invalid, or if the
        folder of templates has files that would not be read, and `FileNotFoundError` if that folder
        does not exist.

        :param options: defaults to the shipped templates and the charts' own repositories
        :param versions_file: table of chart versions, defaults to the shipped one
        """
        self.options = options or RenderOptions()
        if self.options.mirror:
            validate_repository(self.options.mirror)
        if self.options.templates:
            check_folder(self.options.templates)
        fleetrelease.validate_release(self.options.fleet_version)

        self.table: Table = load_table(versions_file)
        self._vendored = _VendoredCharts(index=b"", charts={})
        self._results: dict[Key, _CachedResult] = {}
        # Files by set of settings; None for a set that has to be rendered for each cluster.
        self.common_files: OrderedDict[bytes, dict[str, bytes] | None] = OrderedDict()

    def render(
        self,
        facts: Iterable[ClusterFacts],
        previous: Tree,
        pins: Mapping[Key, Versions] = MappingProxyType({}),
    ) -> list[Rendered]:
        """Render clusters.

        A cluster gets its versions from `pins`, else from its lockfile, else the newest. Two
        clusters with the same key are both refused, because one would overwrite the other.

        :param facts: objects of each cluster
        :param previous: current files of the repository
        :param pins: versions to use instead of those in lockfiles
        """
        results = [self.render_one(cluster, previous, pins.get(cluster.key)) for cluster in facts]
        counts = Counter(result.cluster for result in results)
        return [
            refuse_duplicate(result) if counts[result.cluster] > 1 else result for result in results
        ]

    def render_one(
        self, facts: ClusterFacts, previous: Tree, pin: Versions | None = None
    ) -> Rendered:
        """Render one cluster, or return its last result if the input is the same."""
        try:
            folder = cluster_folder(*facts.key)
        except ValueError as error:
            path = ("metadata", "name")
            finding = Finding(path, Fault.INVALID, str(error), "cluster-name", facts.key.name)
            return Rendered(facts.key, findings=(finding,))

        fingerprint = _fingerprint(facts, pin)
        last = self._results.get(facts.key)
        if last and last.is_current(fingerprint, previous):
            return last.rendered
        files = _RecordedTree(previous)
        rendered = self._render(facts, folder, files, pin)
        self._results[facts.key] = _CachedResult(fingerprint, files.digests, rendered)
        return rendered

    def forget(self, keep: Iterable[Key]) -> None:
        """Forget the results of all other clusters, which would stay in memory after deletion."""
        keys = set(keep)
        self._results = {key: result for key, result in self._results.items() if key in keys}

    def _render(
        self, facts: ClusterFacts, folder: str, previous: _RecordedTree, pin: Versions | None
    ) -> Rendered:
        """Merge the settings, compare them with the lockfile, and render files and a lockfile.

        Findings of all steps are collected, so that a user sees them at once. A step whose input
        cannot be read ends the rendering early.
        """
        checked = settings_of(facts)
        settings = checked.settings
        if settings is None:
            return Rendered(facts.key, findings=tuple(checked.findings))

        findings = list(checked.findings)
        try:
            old = lockfile.read(previous, folder)
        except ValueError as error:
            return Rendered(facts.key, findings=(*findings, lockfile_finding(folder, error)))
        # Only an upgrade or a revert pins versions; otherwise a cluster keeps those it has.
        locked_versions = old.versions if old else None
        versions = pin or locked_versions or self.table.newest

        annotation = annotations_of_cluster(facts).get(names.ALLOW_NETWORK_CHANGE_ANNOTATION)
        forced = self.options.force or annotation == "true"
        if old:
            findings += self._check_changes(settings, old, forced=forced)
        findings += self.table.advise_on_kubernetes(versions, settings.kubernetes_version)

        try:
            charts = self._charts(previous)
        except ValueError as error:
            findings.append(vendored.changed_chart_finding(error))
            return Rendered(facts.key, settings=settings, findings=tuple(findings))
        findings += self._check_chart_versions(settings, charts)

        # Bundles of another release's templates stay, because only this release's are available.
        is_current = versions.templates == shipped_templates()
        if is_current:
            bundle_files = self.files(settings, versions, folder, charts)
        else:
            refusal = other_templates_finding(versions, is_asked=bool(pin))
            bundle_files = RenderedFiles(_files_in(previous, folder), [refusal])
        tree = bundle_files.files

        classes = f"{folder}/{storageclasses.FILE}"
        findings += fleetrelease.check_release(tree, self.options.fleet_version)
        findings += storageclasses.check_changes(settings, previous.get(classes), tree.get(classes))
        findings = in_order([*findings, *bundle_files.findings])
        if not all(finding.advice for finding in findings):
            return Rendered(
                facts.key, settings=settings, versions=versions, findings=tuple(findings)
            )

        # The lockfile holds the hash of the other files, so it comes last.
        digest = content_hash(tree)
        path = f"{folder}/{lockfile.FILE}"
        if is_current:
            locked = lockfile.Lockfile(
                versions=versions,
                network=settings.network,
                content_hash=digest,
                sources=self._sources,
                installer=settings.installer,
            )
            tree[path] = lockfile.serialize(settings, locked)
        else:
            tree[path] = previous[path]
        return Rendered(
            facts.key,
            tree=tree,
            hash=digest,
            settings=settings,
            versions=versions,
            findings=tuple(findings),
            forced=forced,
        )

    def _check_changes(
        self, settings: AddonSettings, old: lockfile.Lockfile, *, forced: bool
    ) -> list[Finding]:
        """Return a finding for each change that would break a live cluster."""
        options = self.options
        network = [] if forced else lockfile.check_network(settings, old.network)
        omitted = sources.check_left_out(
            old.sources, options.chart_repository, options.templates, shipped=options.shipped
        )
        return [*network, *omitted, *lockfile.check_installer(settings, old.installer)]

    def _charts(self, previous: _RecordedTree) -> vendored.Charts:
        """Return the vendored charts. Raises `ValueError` if the index or a chart is invalid.

        Valid charts are read again only after a change of their index, which has their digests.
        """
        index = previous.get(vendored.INDEX) or b""
        if index != self._vendored.index:
            files = _RecordedTree(previous.files)
            try:
                self._vendored = _VendoredCharts(index, vendored.read(files))
            except ValueError:
                # An invalid chart may be restored while the index stays the same.
                previous.digests |= files.digests
                raise
        return self._vendored.charts

    def _check_chart_versions(
        self, settings: AddonSettings, charts: vendored.Charts
    ) -> list[Finding]:
        """Return a finding for each chart version that Fleet could not download.

        One such chart stops all clusters of a GitRepo. Charts from a mirror are not checked,
        because a mirror may have other versions. Vendored charts are not checked, because Fleet
        does not download them. Charts that RKE2's Helm controller installs are not checked, because
        they fail for their own cluster only.
        """
        if self.options.mirror:
            return []
        cni = settings.cni
        ccm = settings.ccm
        csi = settings.csi
        packaging = settings.packaging
        references = (
            _ChartReference("cni", f"rke2-{cni.name}", cni.version, cni.packaging),
            _ChartReference("ccm", "harvester-cloud-provider", ccm.version, packaging),
            _ChartReference("csi", "harvester-csi-driver", csi.version, packaging),
        )
        return [
            self._missing_version_finding(settings, reference)
            for reference in references
            if reference.version
            and reference.packaging is Packaging.CHART
            and (reference.chart, reference.version) not in charts
            and self.table.lacks(reference.chart, reference.version)
        ]

    def _missing_version_finding(
        self, settings: AddonSettings, reference: _ChartReference
    ) -> Finding:
        chart = reference.chart
        detail = (
            f"{self.table.repositories[chart]} is not known to have this version of {chart}, and "
            "Fleet would update no cluster of the GitRepo without it: choose one of "
            f"fleet-bundles/versions.json, such as {self.table.known[chart][0]}, or add the chart "
            "to the repository with caphv bundles vendor"
        )
        path = origin(settings.origins, (reference.addon, "version"))
        return Finding(path, Fault.UNSUPPORTED, detail, "bundles-chart-version", reference.version)

    @functools.cached_property
    def _sources(self) -> sources.Sources:
        overlay = sources.hash_of(self.options.templates, data.folder(BUNDLES_FOLDER))
        return sources.Sources(self.options.mirror, overlay)

    @functools.cached_property
    def templates(self) -> Templates:
        """The shipped templates, overridden by the user's. Raises as `Templates` does."""
        folders = [data.folder(BUNDLES_FOLDER)]
        if self.options.templates:
            folders.append(self.options.templates)
        return Templates(folders)

    def files(
        self,
        settings: AddonSettings,
        versions: Versions,
        folder: str,
        charts: vendored.Charts = MappingProxyType({}),
    ) -> RenderedFiles:
        """Render all bundles of a cluster as files by path in the repository, with findings.

        :param settings: merged settings of the cluster
        :param versions: versions of charts and templates
        :param folder: the cluster's folder in the repository
        :param charts: vendored charts, which bundles hold instead of a chart's address
        """
        try:
            templates = self.templates
        except TemplateError as error:
            return RenderedFiles({}, [template_finding(error)])

        common = self._render_common(templates, settings, versions)
        if common is None:
            rendered = self._render_bundles(templates, settings, versions)
        else:
            rendered = RenderedFiles(common, [])
        files = vendored.embed(rendered.files, charts) if charts else rendered.files
        by_path = {f"{folder}/{path}": content for path, content in files.items()}
        return RenderedFiles(by_path, rendered.findings)

    @functools.cached_property
    def is_shareable(self) -> bool:
        """Whether clusters with equal settings share files. Raises as `Templates` does."""
        return render_cache.only_writes_names(
            self.templates.syntax_trees.values(), self.templates.bundles
        )

    def _render_common(
        self, templates: Templates, settings: AddonSettings, versions: Versions
    ) -> dict[str, bytes] | None:
        """Return the files of all clusters with these settings, with this cluster's names.

        Returns None if the cluster has to be rendered alone. This is a fast path for fleets with
        many clusters and few sets of settings.
        """
        if not (self.is_shareable and render_cache.is_plain(settings.cluster)):
            return None
        key = render_cache.cache_key(settings, versions)
        if key is None:
            return None

        if key not in self.common_files:
            stand_in = replace(settings, cluster=render_cache.STAND_IN)
            rendered = self._render_bundles(templates, stand_in, versions)
            # Findings name a cluster, so clusters with findings are rendered one by one.
            self.common_files[key] = None if rendered.findings else rendered.files
            if len(self.common_files) > _MAX_COMMON:
                self.common_files.popitem(last=False)

        common = self.common_files[key]
        if common is None:
            return None
        return render_cache.rename(common, settings.cluster, templates.bundles)

    def _render_bundles(
        self, templates: Templates, settings: AddonSettings, versions: Versions
    ) -> RenderedFiles:
        """Render all bundles as files by `<bundle>/<name>`."""
        context = bundles.context(settings, versions, self.table, self.options.mirror)
        files: dict[str, bytes] = {}
        findings: list[Finding] = []
        for bundle in templates.bundles:
            try:
                rendered = bundles.render(templates, bundle, context, settings)
            except TemplateError as error:
                findings.append(template_finding(error))
                continue
            findings += rendered.findings
            files.update({f"{bundle}/{name}": content for name, content in rendered.files.items()})
        return RenderedFiles(files, findings)


def _files_in(previous: Tree, folder: str) -> dict[str, bytes]:
    """Return the files of a cluster's bundles in the repository.

    They do not include the lockfile, the list of files and the mark of a moved cluster.
    """
    listed = parse_file_list(previous.get(f"{folder}/{FILE_LIST}"))
    bundle_files = sorted(listed - {lockfile.FILE, FILE_LIST, MARK})
    contents = {f"{folder}/{name}": previous.get(f"{folder}/{name}") for name in bundle_files}
    return {path: content for path, content in contents.items() if content is not None}


def _digest(content: bytes | None) -> bytes | None:
    return None if content is None else hashlib.sha256(content).digest()


def _fingerprint(facts: ClusterFacts, pin: Versions | None) -> bytes:
    """Return a hash over the pinned versions and all fields of objects that rendering reads."""
    parts = [
        [
            at(facts.cluster, "metadata", "labels"),
            at(facts.cluster, "metadata", "annotations"),
            facts.cluster.get("spec"),
        ],
        at(facts.harvester_cluster, "spec"),
        [at(facts.control_plane, "kind"), at(facts.control_plane, "spec")],
        sorted(facts.fleet_clusters),
        pin.as_data() if pin else None,
    ]

    try:
        content = orjson.dumps(
            parts, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS, default=repr
        )
    except TypeError:  # an integer of more than 64 bits
        content = repr(parts).encode()
    return hashlib.sha256(content).digest()
