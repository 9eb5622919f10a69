"""Renders the bundles of clusters: facts in, files out, the same bytes for the same input.

A cluster's files depend on that cluster, its record in the repository and the options, and on nothing else, so one
changed setting renders one cluster, and one faulty cluster leaves the others alone. A `Renderer` remembers what it
rendered and from what.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import orjson

from caphv import data
from caphv.api import names
from caphv.api.object import Key, Obj
from caphv.validation.finding import Fault, FieldPath, Finding, in_order
from packager.addons.gather import annotations_of_cluster
from packager.addons.merge import at, merged, origin
from packager.addons.settings import AddonSettings, Charts, ClusterFacts, Packaging, settings_of
from packager.addons.versions import BUNDLES_FOLDER, Table, Versions, checked_repository, table
from packager.git.folder import RECORD
from packager.rendering import (
    branches,
    bundles,
    lockfile,
    render_cache,
    secretscan,
    sources,
    storageclasses,
    vendored,
    yaml,
)
from packager.rendering.templates import SUFFIX, TemplateError, Templates, check_folder
from packager.tree import Tree, cluster_folder, content_hash, path_of

TEMPLATE_RULE = "bundles-template"
"""Rule of findings about a template, which every cluster has that it is rendered for."""
_COMMON = 512
"""Sets of settings whose files are remembered: some ten kilobytes each."""
_VALUES = f"values.yaml{SUFFIX}"
_FLEET = f"{bundles.FLEET_YAML}{SUFFIX}"


@dataclass(frozen=True)
class RenderOptions:
    """How to render. `templates` is a user's folder over the shipped ones, `chart_repository` a mirror of all charts.

    `default` for the mirror, and `shipped`, ask for what none of both means, where a cluster's record has one.
    `force` allows changes that break the network of a live cluster.
    """

    templates: Path | None = None
    chart_repository: str = ""
    force: bool = False
    shipped: bool = False

    @property
    def mirror(self) -> str:
        """URL of the mirror, empty for the charts' own repositories."""
        return "" if self.chart_repository == sources.DEFAULT else self.chart_repository


def render_options(templates: str, chart_repository: str, *, force: bool = False) -> RenderOptions:
    """Return options from the texts of flags; both may be empty or `default`."""
    shipped = templates == sources.DEFAULT
    folder = Path(templates) if templates and not shipped else None
    return RenderOptions(folder, chart_repository, force, shipped)


@dataclass(frozen=True)
class Rendered:
    """The files of one cluster and what there is to say about it.

    A cluster with a finding that is no advice has no files (`ok` is false): what the repository holds stays. `forced`:
    the user allows changes that break the network of a live cluster. `branch` has only the bundles of its group.
    """

    cluster: Key
    tree: Tree = field(default_factory=dict)
    hash: str = ""
    settings: AddonSettings | None = None
    versions: Versions | None = None
    findings: tuple[Finding, ...] = ()
    forced: bool = False
    branch: str = ""

    @property
    def ok(self) -> bool:
        """Whether the files are what the cluster should have."""
        return self.settings is not None and all(finding.advice for finding in self.findings)


class Renderer:
    """Renders with one set of options; keeps compiled templates and what it rendered last of each cluster."""

    def __init__(self, options: RenderOptions = RenderOptions(), versions: Path | None = None) -> None:
        """Load the table of versions, the shipped one without a path.

        Raises:
            ValueError: the chart repository or the table is none, or templates are where none would be read.
            FileNotFoundError: the folder of templates is not there.
        """
        if options.mirror:
            checked_repository(options.mirror)
        if options.templates:
            check_folder(options.templates)
        self.options = options
        self.table: Table = table(versions)
        self._overlays: dict[str, str] = {}
        self._vendored: tuple[bytes, vendored.Charts] = b"", {}
        self._templates: dict[str, Templates] = {}
        self._known: dict[Key, tuple[bytes, Rendered]] = {}
        self.shareable: dict[str, bool] = {}
        self.common: OrderedDict[bytes, dict[str, bytes] | None] = OrderedDict()

    def render(
        self, facts: Iterable[ClusterFacts], previous: Tree, pins: Mapping[Key, Versions] = MappingProxyType({})
    ) -> list[Rendered]:
        """Render clusters; `previous` is the repository as it is, of which only the clusters' records are read.

        A cluster keeps the versions of its record, unless `pins` has others for it; without both it gets the newest.
        Two clusters of one key are both refused, because one would overwrite the other.
        """
        results = [self.render_one(found, previous, pins.get(found.key)) for found in facts]
        keys = [result.cluster for result in results]
        twice = {key for key in keys if keys.count(key) > 1} if len(set(keys)) < len(keys) else set()
        return [_refused(result) if result.cluster in twice else result for result in results]

    def render_one(self, facts: ClusterFacts, previous: Tree, pin: Versions | None = None) -> Rendered:
        """Render one cluster, or return what was rendered from the same input before."""
        try:
            folder = cluster_folder(*facts.key)
        except ValueError as error:
            finding = Finding(("metadata", "name"), Fault.INVALID, str(error), "cluster-name", facts.key.name)
            return Rendered(facts.key, findings=(finding,))
        before = previous.get(f"{folder}/{lockfile.FILE}")
        inputs = _fingerprint(facts, before, pin)
        if before is None:
            inputs += hashlib.sha256(previous.get(f"{folder}/{RECORD}") or b"").digest()
        for shared in (vendored.INDEX, branches.FILE):
            inputs += hashlib.sha256(previous.get(shared) or b"").digest()
        known = self._known.get(facts.key)
        if known and known[0] == inputs:
            return known[1]
        result = self._render(facts, folder, previous, pin)
        self._known[facts.key] = (inputs, result)
        return result

    def forget(self, keep: Iterable[Key]) -> None:
        """Forget all clusters but these: deleted ones would stay in memory."""
        kept = set(keep)
        self._known = {key: value for key, value in self._known.items() if key in kept}

    def _render(self, facts: ClusterFacts, folder: str, previous: Tree, pin: Versions | None) -> Rendered:
        settings, findings = settings_of(facts)
        if settings is None:
            return Rendered(facts.key, findings=tuple(findings))
        try:
            old = lockfile.held(previous, folder)
        except ValueError as error:
            detail = f"{error}: restore it from the history of the repository, or remove the folder {folder}"
            finding = Finding((f"{folder}/{lockfile.FILE}",), Fault.INVALID, detail, "bundles-record")
            return Rendered(facts.key, findings=(*findings, finding))
        versions = pin or (old.versions if old else self.table.newest)
        forced = self.options.force or (
            annotations_of_cluster(facts).get(names.ALLOW_NETWORK_CHANGE_ANNOTATION) == "true"
        )
        if old and not forced:
            findings = findings + lockfile.changes(settings, old.network)
        if old:
            findings = findings + self._left_out(old.sources, previous, folder)
            findings = findings + lockfile.moved_charts(settings, old.installer)
        findings = findings + _too_new(settings, versions)
        findings = findings + self._without_pod_networks(settings, versions)
        findings = findings + self.table.unsupported(versions, settings.kubernetes_version)
        try:
            charts = self._charts(previous)
        except ValueError as error:
            return Rendered(facts.key, settings=settings, findings=(*findings, vendored.finding(error)))
        try:
            branch = branches.branch_of(settings, branches.groups(previous.get(branches.FILE)))
        except ValueError as error:
            return Rendered(facts.key, settings=settings, findings=(*findings, branches.finding(error)))
        findings = findings + self._unavailable(settings, charts)
        tree, found = self._files(settings, versions, folder, charts)
        classes = f"{folder}/{storageclasses.FILE}"
        findings = findings + storageclasses.changes(settings, previous.get(classes), tree.get(classes))
        findings = in_order([*findings, *found])
        if any(not finding.advice for finding in findings):
            return Rendered(facts.key, settings=settings, versions=versions, findings=tuple(findings))
        digest = content_hash(tree)
        tree[lockfile.record_path(settings)] = lockfile.write(
            settings,
            lockfile.Record(
                versions, settings.network, digest, self._made_of(versions.templates), settings.installer, branch
            ),
        )
        return Rendered(facts.key, tree, digest, settings, versions, tuple(findings), forced, branch)

    def _left_out(self, before: sources.Sources | None, previous: Tree, folder: str) -> list[Finding]:
        if before is None:
            if self.options.chart_repository:
                return []
            before = sources.found_in(previous, folder, self.table.repositories.values())
        options = self.options
        return sources.left_out(before, options.chart_repository, options.templates, shipped=options.shipped)

    def _charts(self, previous: Tree) -> vendored.Charts:
        """Return the charts that the repository holds. Raises ValueError."""
        index = previous.get(vendored.INDEX) or b""
        if index != self._vendored[0]:
            self._vendored = index, vendored.read(previous)
        return self._vendored[1]

    def _unavailable(self, settings: AddonSettings, charts: vendored.Charts) -> list[Finding]:
        """Refuse versions of charts that Fleet would not find: one of them stops all clusters of a GitRepo.

        A mirror may have others, vendored charts are not downloaded, and a Helm controller fails for its cluster only.
        """
        if self.options.mirror:
            return []
        cni = (f"rke2-{settings.cni.name}", settings.cni.version, settings.cni.packaging)
        chosen = {
            "cni": cni,
            "ccm": ("harvester-cloud-provider", settings.ccm.version, settings.packaging),
            "csi": ("harvester-csi-driver", settings.csi.version, settings.packaging),
        }
        findings = []
        for addon, (chart, version, packaging) in chosen.items():
            if not version or packaging is not Packaging.CHART or (chart, version) in charts:
                continue
            if self.table.missing(chart, version):
                detail = (
                    f"{self.table.repositories[chart]} is not known to have this version of {chart}, and Fleet would "
                    "update no cluster of the GitRepo without it: choose one of fleet-bundles/versions.json, such as "
                    f"{self.table.known[chart][0]}, or add the chart to the repository with caphv bundles vendor"
                )
                path = origin(settings.origins, (addon, "version"))
                findings.append(Finding(path, Fault.UNSUPPORTED, detail, "bundles-chart-version", version))
        return findings

    def _without_pod_networks(self, settings: AddonSettings, versions: Versions) -> list[Finding]:
        """Advise where the templates of 0.11 leave Cilium without an IP family; a user's templates may not."""
        cni = settings.cni
        given = at(cni.values, "global")
        affected = versions.templates == _FIRST_TEMPLATES and not self._made_of(versions.templates).templates
        if not affected or cni.name != "cilium" or cni.packaging is Packaging.HELM_CHART_CONFIG:
            return []
        on = {"4": at(given, "clusterCIDRv4"), "6": at(given, "clusterCIDRv6") or at(cni.values, "ipv6", "enabled")}
        families = {"6" if ":" in cidr else "4" for cidr in cni.pod_cidrs}
        missing = [f"cni.values.global.clusterCIDRv{family}" for family in sorted(families) if not on[family]]
        if not missing:
            return []
        detail = (
            f"release {versions.release} of the bundles does not tell Cilium its networks, and its agents do not "
            "serve their IP families: upgrade this cluster with caphv bundles upgrade, or set " + " and ".join(missing)
        )
        path = origin(settings.origins, ("cni", "name"))
        return [Finding(path, Fault.UNSUPPORTED, detail, "bundles-cilium", cni.name, advice=True)]

    def _made_of(self, version: str) -> sources.Sources:
        if version not in self._overlays:
            shipped = data.folder(BUNDLES_FOLDER) / path_of(version)
            self._overlays[version] = sources.hash_of(self.options.templates, shipped)
        return sources.Sources(self.options.mirror, self._overlays[version])

    def templates(self, version: str) -> Templates:
        """Return the templates of a version, with the user's over them. Raises as `Templates` does."""
        if version not in self._templates:
            try:
                folders = [data.folder(BUNDLES_FOLDER) / path_of(version)]
            except ValueError as error:
                raise FileNotFoundError(str(error)) from None
            if self.options.templates:
                folders.append(self.options.templates)
            self._templates[version] = Templates(folders)
        return self._templates[version]

    def files(self, settings: AddonSettings, versions: Versions) -> tuple[dict[str, bytes], list[Finding]]:
        """Return the files that settings make with these versions, whatever the repository holds, and findings."""
        return self._files(settings, versions, cluster_folder(*settings.cluster))

    def _files(
        self, settings: AddonSettings, versions: Versions, folder: str, charts: vendored.Charts = MappingProxyType({})
    ) -> tuple[dict[str, bytes], list[Finding]]:
        try:
            templates = self.templates(versions.templates)
        except TemplateError as error:
            return {}, [_template_finding(error)]
        except FileNotFoundError:
            detail = "this release has no such templates: upgrade the bundles, or use the release that rendered them"
            path = ("versions", "templates")
            return {}, [Finding(path, Fault.UNSUPPORTED, detail, "bundles-templates", versions.templates)]
        findings: list[Finding] = []
        made = self._shared(templates, settings, versions)
        if made is None:
            made, findings = self._bundles(templates, settings, versions)
        made = vendored.embed(made, charts) if charts else made
        return {f"{folder}/{path}": content for path, content in made.items()}, findings

    def _shared(self, templates: Templates, settings: AddonSettings, versions: Versions) -> dict[str, bytes] | None:
        """Return what was rendered for all clusters of these settings; None when they have to be rendered alone."""
        if versions.templates not in self.shareable:
            parsed = templates.parsed.values()
            self.shareable[versions.templates] = render_cache.only_writes_names(parsed, templates.bundles)
        if not (self.shareable[versions.templates] and render_cache.is_plain(settings.cluster)):
            return None
        key = render_cache.key(settings, versions)
        if key is None:
            return None
        if key not in self.common:
            made, findings = self._bundles(templates, replace(settings, cluster=render_cache.STAND_IN), versions)
            self.common[key] = None if findings else made
            if len(self.common) > _COMMON:
                self.common.popitem(last=False)
        common = self.common[key]
        return None if common is None else render_cache.renamed(common, settings.cluster, templates.bundles)

    def _bundles(
        self, templates: Templates, settings: AddonSettings, versions: Versions
    ) -> tuple[dict[str, bytes], list[Finding]]:
        """Render all bundles: files by `<bundle>/<name>`."""
        context = bundles.context(settings, versions, self.table, self.options.mirror)
        files: dict[str, bytes] = {}
        findings: list[Finding] = []
        for bundle in templates.bundles:
            try:
                made, found = _bundle(templates, bundle, context, settings)
            except TemplateError as error:
                made, found = {}, [_template_finding(error)]
            findings += found
            files.update({f"{bundle}/{name}": content for name, content in made.items()})
        return files, findings


def user_values(settings: AddonSettings, bundle: str) -> Mapping[str, object]:
    """Free values of the user for a bundle's chart; empty for bundles that have none."""
    values = {"cni": settings.cni.values, "ccm": settings.ccm.values, "csi": settings.csi.values}
    return values.get(bundle, {})


def _bundle(
    templates: Templates, bundle: str, context: Obj, settings: AddonSettings
) -> tuple[dict[str, bytes], list[Finding]]:
    """Files of one bundle by name, none for a bundle whose fleet.yaml is empty, and what is wrong with them."""
    full = {**context, "values": _values(templates, bundle, context, settings)}
    if _FLEET not in templates.bundles[bundle]:
        raise TemplateError(f"{bundle}/{_FLEET}", "is missing: every bundle needs it")
    documents = templates.render(f"{bundle}/{_FLEET}", full)
    if not documents:
        return {}, []
    if len(documents) > 1:
        raise TemplateError(f"{bundle}/{_FLEET}", "must make one document")
    findings = bundles.check_fleet_yaml(documents[0], (bundle, bundles.FLEET_YAML), settings, bundle)
    findings += secretscan.check(full["values"], (bundle, "values"))
    if not findings:
        # A bundle without it would be uninstalled when its GitRepo, branch or path is lost.
        documents[0].setdefault("keepResources", True)
    files = {bundles.FLEET_YAML: documents}
    for file in templates.bundles[bundle]:
        manifests = [] if file in (_FLEET, _VALUES) else templates.render(f"{bundle}/{file}", full)
        name = file.removesuffix(SUFFIX)
        for index, manifest in enumerate(manifests):
            findings += bundles.check_manifest(manifest, (bundle, name, index))
        if manifests:
            files[name] = manifests
    if findings:
        return {}, findings
    try:
        return {name: yaml.dump_all(made).encode() for name, made in files.items()}, []
    except (TypeError, ValueError) as error:
        raise TemplateError(bundle, f"cannot be written: {error}") from None


def _values(templates: Templates, bundle: str, context: Obj, settings: AddonSettings) -> Obj:
    """Values of a bundle's chart: what its template makes, and the user's over them."""
    file = f"{bundle}/{_VALUES}"
    made = templates.render(file, context) if _VALUES in templates.bundles[bundle] else []
    if len(made) > 1 or not all(isinstance(document, dict) for document in made):
        raise TemplateError(file, "must make one object")
    return merged(made[0] if made else {}, user_values(settings, bundle))


_FIRST_TEMPLATES = "v1"


def _too_new(settings: AddonSettings, versions: Versions) -> list[Finding]:
    """Return a refusal for each setting that the templates of 0.11 leave out."""
    if versions.templates != _FIRST_TEMPLATES:
        return []
    values = {"cni": settings.cni.values_from, "ccm": settings.ccm.values_from, "csi": settings.csi.values_from}
    fields: list[FieldPath] = [(name, "valuesFrom") for name, rows in values.items() if rows]
    fields += [("imageRegistry",)] if settings.image_registry else []
    fields += [("charts",)] if settings.charts != Charts() else []
    detail = (
        f"release {versions.release} of the bundles has no such setting: upgrade this cluster with "
        "caphv bundles upgrade, or remove the field"
    )
    return [Finding(origin(settings.origins, path), Fault.UNSUPPORTED, detail, "bundles-setting") for path in fields]


def _template_finding(error: TemplateError) -> Finding:
    return Finding(("templates", error.file), Fault.INVALID, error.message, TEMPLATE_RULE)


def _refused(result: Rendered) -> Rendered:
    detail = "two clusters have this namespace and name: give each its own"
    finding = Finding(("metadata", "name"), Fault.DUPLICATE, detail, "cluster-twice", result.cluster.name)
    return Rendered(result.cluster, findings=(*result.findings, finding))


def _fingerprint(facts: ClusterFacts, before: bytes | None, pin: Versions | None) -> bytes:
    metadata = facts.cluster.get("metadata") or {}
    parts = [
        [metadata.get("labels"), metadata.get("annotations"), facts.cluster.get("spec")],
        (facts.harvester_cluster or {}).get("spec"),
        [(facts.control_plane or {}).get("kind"), (facts.control_plane or {}).get("spec")],
        sorted(facts.fleet_clusters),
        before.decode(errors="replace") if before is not None else None,
        pin.as_data() if pin else None,
    ]
    try:
        content = orjson.dumps(parts, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS, default=repr)
    except TypeError:  # a number that is too large for it
        content = repr(parts).encode()
    return hashlib.sha256(content).digest()
