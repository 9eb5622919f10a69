"""Renders the bundles of clusters, so that the same input gives the same bytes.

The files of a cluster depend on its objects, its lockfile in the repository and the options, and on
nothing else. So a changed setting renders one cluster, and a faulty cluster does not affect others.
A `Renderer` remembers the last result of each cluster with a fingerprint of its input.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
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
    shipped_templates,
    table,
    validate_repository,
)
from packager.git.folder import MARK, RECORD, parse_record
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
    lockfile_finding,
    other_templates_finding,
    refuse_duplicate,
    template_finding,
)
from packager.rendering.templates import TemplateError, Templates, check_folder
from packager.tree import Tree, cluster_folder, content_hash

# Number of sets of settings whose files stay in memory. Each takes some ten kilobytes.
_COMMON = 512


class Renderer:
    """Renders with one set of options; keeps compiled templates and the last result per cluster."""

    def __init__(self, options: RenderOptions | None = None, versions: Path | None = None) -> None:
        """Load the table of versions from a file, the shipped table without one.

        Raises:
            ValueError: the chart repository, the release of Fleet or the table is invalid, or the
                folder of templates has files that would not be read.
            FileNotFoundError: the folder of templates does not exist.
        """
        options = options or RenderOptions()
        if options.mirror:
            validate_repository(options.mirror)
        if options.templates:
            check_folder(options.templates)
        fleetrelease.validate_release(options.fleet_version)

        self.options = options
        self.table: Table = table(versions)

        # Content of the index of vendored charts, and the charts read from it.
        self._vendored: tuple[bytes, vendored.Charts] = b"", {}
        # Last result of each cluster, with the fingerprint of its input.
        self._results: dict[Key, tuple[bytes, Rendered]] = {}
        # Whether clusters with equal settings share files; None until the templates are checked.
        self.shareable: bool | None = None
        self.common: OrderedDict[bytes, dict[str, bytes] | None] = OrderedDict()

    def render(
        self,
        facts: Iterable[ClusterFacts],
        previous: Tree,
        pins: Mapping[Key, Versions] = MappingProxyType({}),
    ) -> list[Rendered]:
        """Render clusters.

        A cluster keeps the versions of its lockfile, unless `pins` has others for it; without both
        it gets the newest. Two clusters with one key are both refused, because one would overwrite
        the other.

        :param facts: objects of each cluster
        :param previous: the repository as it is; only files in the folders of clusters are read
        :param pins: versions to use instead of those of lockfiles
        """
        results = [self.render_one(cluster, previous, pins.get(cluster.key)) for cluster in facts]
        counts = Counter(result.cluster for result in results)
        return [
            refuse_duplicate(result) if counts[result.cluster] > 1 else result for result in results
        ]

    def render_one(
        self, facts: ClusterFacts, previous: Tree, pin: Versions | None = None
    ) -> Rendered:
        """Render one cluster, or return the last result when its input is the same."""
        try:
            folder = cluster_folder(*facts.key)
        except ValueError as error:
            path = ("metadata", "name")
            finding = Finding(path, Fault.INVALID, str(error), "cluster-name", facts.key.name)
            return Rendered(facts.key, findings=(finding,))

        record = previous.get(f"{folder}/{lockfile.FILE}")
        inputs = _fingerprint(facts, record, pin)
        if record is None:
            # A missing lockfile is an error when the list of the cluster's files has it.
            inputs += hashlib.sha256(previous.get(f"{folder}/{RECORD}") or b"").digest()
        inputs += hashlib.sha256(previous.get(vendored.INDEX) or b"").digest()

        last = self._results.get(facts.key)
        if last and last[0] == inputs:
            return last[1]
        result = self._render(facts, folder, previous, pin)
        self._results[facts.key] = (inputs, result)
        return result

    def forget(self, keep: Iterable[Key]) -> None:
        """Forget all clusters but these, because results of deleted ones would stay in memory."""
        kept = set(keep)
        self._results = {key: result for key, result in self._results.items() if key in kept}

    def _render(
        self, facts: ClusterFacts, folder: str, previous: Tree, pin: Versions | None
    ) -> Rendered:
        """Merge the settings, compare them with the lockfile, render files and write a lockfile."""
        settings, findings = settings_of(facts)
        if settings is None:
            return Rendered(facts.key, findings=tuple(findings))

        try:
            old = lockfile.find_record(previous, folder)
        except ValueError as error:
            return Rendered(facts.key, findings=(*findings, lockfile_finding(folder, error)))
        # An upgrade or a revert names versions. All other renderings keep the lockfile's versions.
        locked_versions = old.versions if old else None
        versions = pin or locked_versions or self.table.newest
        annotation = annotations_of_cluster(facts).get(names.ALLOW_NETWORK_CHANGE_ANNOTATION)
        forced = self.options.force or annotation == "true"
        if old:
            findings = findings + self._compare(settings, old, forced=forced)
        findings = findings + self.table.advise_on_kubernetes(versions, settings.kubernetes_version)

        try:
            charts = self._charts(previous)
        except ValueError as error:
            findings = [*findings, vendored.changed_chart_finding(error)]
            return Rendered(facts.key, settings=settings, findings=tuple(findings))
        findings = findings + self._unavailable(settings, charts)

        # Only templates of this release are available, so bundles of another release stay as they
        # are.
        is_current = versions.templates == shipped_templates()
        if is_current:
            tree, template_findings = self._files(settings, versions, folder, charts)
        else:
            tree = _files_in(previous, folder)
            template_findings = [other_templates_finding(versions, is_asked=bool(pin))]

        classes = f"{folder}/{storageclasses.FILE}"
        findings = findings + fleetrelease.check_release(tree, self.options.fleet_version)
        findings = findings + storageclasses.check_changes(
            settings, previous.get(classes), tree.get(classes)
        )
        findings = in_order([*findings, *template_findings])
        if not all(finding.advice for finding in findings):
            return Rendered(
                facts.key, settings=settings, versions=versions, findings=tuple(findings)
            )

        # Compute the hash before the lockfile is added, because the lockfile holds the hash.
        digest = content_hash(tree)
        record = lockfile.Record(
            versions, settings.network, digest, self._sources, settings.installer
        )
        path = lockfile.record_path(settings)
        tree[path] = lockfile.serialize(settings, record) if is_current else previous[path]
        return Rendered(facts.key, tree, digest, settings, versions, tuple(findings), forced)

    def _compare(
        self, settings: AddonSettings, old: lockfile.Record, *, forced: bool
    ) -> list[Finding]:
        """Return refusals of changes since the last rendering that would break a live cluster."""
        options = self.options
        network = [] if forced else lockfile.check_network(settings, old.network)
        omitted = sources.check_left_out(
            old.sources, options.chart_repository, options.templates, shipped=options.shipped
        )
        return [*network, *omitted, *lockfile.check_installer(settings, old.installer)]

    def _charts(self, previous: Tree) -> vendored.Charts:
        """Return the charts in the repository, read again only after their index changed.

        Raises:
            ValueError: the index or a chart was changed by hand.
        """
        index = previous.get(vendored.INDEX) or b""
        if index != self._vendored[0]:
            self._vendored = index, vendored.read(previous)
        return self._vendored[1]

    def _unavailable(self, settings: AddonSettings, charts: vendored.Charts) -> list[Finding]:
        """Refuse versions of charts that Fleet would not find.

        One such chart stops all clusters of a GitRepo. Charts from a mirror are not checked,
        because a mirror may have other versions. Vendored charts are not checked, because Fleet
        does not download them. Charts that RKE2's Helm controller installs are not checked, because
        they fail for their own cluster only.
        """
        if self.options.mirror:
            return []
        addons = {
            "cni": (f"rke2-{settings.cni.name}", settings.cni.version, settings.cni.packaging),
            "ccm": ("harvester-cloud-provider", settings.ccm.version, settings.packaging),
            "csi": ("harvester-csi-driver", settings.csi.version, settings.packaging),
        }

        findings = []
        for addon, (chart, version, packaging) in addons.items():
            if not version or packaging is not Packaging.CHART or (chart, version) in charts:
                continue
            if not self.table.lacks(chart, version):
                continue
            detail = (
                f"{self.table.repositories[chart]} is not known to have this version of "
                f"{chart}, and Fleet would update no cluster of the GitRepo without it: "
                "choose one of fleet-bundles/versions.json, such as "
                f"{self.table.known[chart][0]}, or add the chart to the repository with caphv "
                "bundles vendor"
            )
            path = origin(settings.origins, (addon, "version"))
            rule = "bundles-chart-version"
            findings.append(Finding(path, Fault.UNSUPPORTED, detail, rule, version))
        return findings

    @functools.cached_property
    def _sources(self) -> sources.Sources:
        overlay = sources.hash_of(self.options.templates, data.folder(BUNDLES_FOLDER))
        return sources.Sources(self.options.mirror, overlay)

    @functools.cached_property
    def templates(self) -> Templates:
        """The shipped templates, with the user's over them. Raises as `Templates` does."""
        folders = [data.folder(BUNDLES_FOLDER)]
        if self.options.templates:
            folders.append(self.options.templates)
        return Templates(folders)

    def files(
        self, settings: AddonSettings, versions: Versions
    ) -> tuple[dict[str, bytes], list[Finding]]:
        """Return files and findings for settings and versions, whatever the repository holds."""
        return self._files(settings, versions, cluster_folder(*settings.cluster))

    def _files(
        self,
        settings: AddonSettings,
        versions: Versions,
        folder: str,
        charts: vendored.Charts = MappingProxyType({}),
    ) -> tuple[dict[str, bytes], list[Finding]]:
        """Render all bundles of a cluster as files by path in the repository.

        :param settings: merged settings of the cluster
        :param versions: versions of charts and templates
        :param folder: the cluster's folder in the repository
        :param charts: vendored charts, which replace addresses of charts
        """
        try:
            templates = self.templates
        except TemplateError as error:
            return {}, [template_finding(error)]

        findings: list[Finding] = []
        files = self._render_common(templates, settings, versions)
        if files is None:
            files, findings = self._render_bundles(templates, settings, versions)
        if charts:
            files = vendored.embed(files, charts)
        return {f"{folder}/{path}": content for path, content in files.items()}, findings

    def _render_common(
        self, templates: Templates, settings: AddonSettings, versions: Versions
    ) -> dict[str, bytes] | None:
        """Return the files that clusters with equal settings share, with this cluster's names.

        Returns None if the cluster has to be rendered alone. This is a fast path for fleets with
        many clusters and few sets of settings.
        """
        if self.shareable is None:
            self.shareable = render_cache.only_writes_names(
                templates.syntax_trees.values(), templates.bundles
            )
        if not (self.shareable and render_cache.is_plain(settings.cluster)):
            return None
        key = render_cache.cache_key(settings, versions)
        if key is None:
            return None

        if key not in self.common:
            stand_in = replace(settings, cluster=render_cache.STAND_IN)
            files, findings = self._render_bundles(templates, stand_in, versions)
            self.common[key] = None if findings else files
            if len(self.common) > _COMMON:
                self.common.popitem(last=False)

        common = self.common[key]
        if common is None:
            return None
        return render_cache.rename(common, settings.cluster, templates.bundles)

    def _render_bundles(
        self, templates: Templates, settings: AddonSettings, versions: Versions
    ) -> tuple[dict[str, bytes], list[Finding]]:
        """Render all bundles as files by `<bundle>/<name>`."""
        context = bundles.context(settings, versions, self.table, self.options.mirror)
        files: dict[str, bytes] = {}
        findings: list[Finding] = []
        for bundle in templates.bundles:
            try:
                contents, bundle_findings = bundles.render(templates, bundle, context, settings)
            except TemplateError as error:
                findings.append(template_finding(error))
                continue
            findings += bundle_findings
            files.update({f"{bundle}/{name}": content for name, content in contents.items()})
        return files, findings


def _files_in(previous: Tree, folder: str) -> dict[str, bytes]:
    """Return the files of a cluster's bundles in the repository.

    The lockfile, the list of files, and the mark of a moved cluster are not among them.
    """
    listed = parse_record(previous.get(f"{folder}/{RECORD}")) - {lockfile.FILE, RECORD, MARK}
    contents = {f"{folder}/{name}": previous.get(f"{folder}/{name}") for name in sorted(listed)}
    return {path: content for path, content in contents.items() if content is not None}


def _fingerprint(facts: ClusterFacts, record: bytes | None, pin: Versions | None) -> bytes:
    """Return a hash over all that rendering reads: fields of objects, the lockfile and the pin."""
    parts = [
        [
            at(facts.cluster, "metadata", "labels"),
            at(facts.cluster, "metadata", "annotations"),
            facts.cluster.get("spec"),
        ],
        at(facts.harvester_cluster, "spec"),
        [at(facts.control_plane, "kind"), at(facts.control_plane, "spec")],
        sorted(facts.fleet_clusters),
        record.decode(errors="replace") if record is not None else None,
        pin.as_data() if pin else None,
    ]

    try:
        content = orjson.dumps(
            parts, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS, default=repr
        )
    except TypeError:  # a number that is too large for it
        content = repr(parts).encode()
    return hashlib.sha256(content).digest()
