"""Renders one bundle of a cluster from its templates, and checks the result.

Every bundle must have its cluster's name and target, so that it goes to that cluster only, and must
not hold secrets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from caphv.api import names
from caphv.api.object import Key, Obj
from caphv.validation import schema
from caphv.validation.finding import Fault, FieldPath, Finding
from packager import secretscan
from packager.addons.facts import RANCHER, RANCHER_WORKSPACE
from packager.addons.merge import merge
from packager.addons.settings import AddonSettings
from packager.addons.versions import Chart, Table, Versions
from packager.addons.versions import chart as chart_of
from packager.rendering import yaml
from packager.rendering.rendered import RenderedFiles
from packager.rendering.templates import SUFFIX, TemplateError, Templates

FLEET_YAML = "fleet.yaml"
BUNDLE_LABEL = "caphv.io/bundle"
_VALUES = f"values.yaml{SUFFIX}"
_FLEET = f"{FLEET_YAML}{SUFFIX}"
_MAX_NAME_LENGTH = 53
_HASH_LENGTH = 10


def bundle_name(cluster: Key, bundle: str) -> str:
    """Return the name of the Fleet bundle, unique in all workspaces: `<bundle>-<cluster>-<hash>`.

    Helm allows 53 characters, so a long name is cut; the hash over namespace, name and bundle keeps
    two cut names apart.
    """
    identity = f"{cluster.namespace}/{cluster.name}/{bundle}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:_HASH_LENGTH]
    readable = f"{bundle}-{cluster.name}".replace(".", "-").lower()
    return f"{readable[: _MAX_NAME_LENGTH - _HASH_LENGTH - 1].rstrip('-')}-{digest}"


def targets(settings: AddonSettings) -> list[Obj]:
    """Return `overrideTargets` of a cluster's bundles, which select its Fleet Cluster.

    CAAPF gives a Fleet Cluster the Cluster's own name, in a workspace of its namespace, unless
    CAAPF is configured to name it otherwise. Rancher generates a name, and labels the Fleet Cluster
    with name and namespace of the Cluster; only both together identify it.
    """
    if settings.fleet.imported_by != RANCHER:
        return [{"clusterName": settings.fleet.cluster_name or settings.cluster.name}]
    owner = {
        names.CAPI_OWNER_LABEL: settings.cluster.name,
        names.CAPI_OWNER_NAMESPACE_LABEL: settings.cluster.namespace,
    }
    return [{"clusterSelector": {"matchLabels": owner}}]


def workspace(settings: AddonSettings) -> str:
    """Return the namespace on the management cluster in which the GitRepo of a cluster must be."""
    if settings.fleet.workspace:
        return settings.fleet.workspace
    if settings.fleet.imported_by == RANCHER:
        return RANCHER_WORKSPACE
    return settings.cluster.namespace


def context(
    settings: AddonSettings, versions: Versions, table: Table, mirror: str
) -> dict[str, Any]:
    """Return the names that templates may use: data of the cluster, and functions.

    :param settings: merged settings of the cluster
    :param versions: versions of charts
    :param table: table of versions, with the repository of each chart
    :param mirror: URL of a mirror of all charts, empty for their own repositories
    """
    cluster = settings.cluster

    def name(bundle: str) -> str:
        return bundle_name(cluster, bundle)

    def labels(bundle: str) -> dict[str, str]:
        # A label value has at most 63 characters. A bundle of a cluster with a longer name has no
        # such label, and is identified by its own name.
        if len(cluster.name) > 63:
            return {BUNDLE_LABEL: bundle}
        return {BUNDLE_LABEL: bundle, names.CLUSTER_NAME_LABEL: cluster.name}

    def chart(name: str, version: str = "") -> Chart:
        return chart_of(name, version or versions.charts[name], table=table, mirror=mirror)

    return {
        "cluster": {"namespace": cluster.namespace, "name": cluster.name},
        "settings": settings,
        "targets": targets(settings),
        "bundle_name": name,
        "labels": labels,
        "chart": chart,
    }


def render(
    templates: Templates, bundle: str, context: Obj, settings: AddonSettings
) -> RenderedFiles:
    """Return the files of one bundle by name, and findings; no files when its fleet.yaml is empty.

    :param templates: compiled templates
    :param bundle: name of the bundle
    :param context: names that templates may use, without `values`
    :param settings: merged settings of the cluster
    """
    full_context = {**context, "values": _chart_values(templates, bundle, context, settings)}
    if _FLEET not in templates.bundles[bundle]:
        raise TemplateError(f"{bundle}/{_FLEET}", "is missing: every bundle needs it")
    documents = templates.render(f"{bundle}/{_FLEET}", full_context)
    if not documents:
        return RenderedFiles({}, [])
    if len(documents) > 1:
        raise TemplateError(f"{bundle}/{_FLEET}", "must make one document")

    # A bundle with a finding is not written, and its files in the repository stay.
    path = (bundle, FLEET_YAML)
    findings = check_fleet_yaml(documents[0], path, settings, bundle)
    findings += secretscan.check(full_context["values"], (bundle, "values"))
    if not findings:
        # Without this field, Fleet uninstalls the bundle when its GitRepo, branch or path is lost.
        documents[0].setdefault("keepResources", True)

    files = {FLEET_YAML: documents}
    # All other files of a bundle are manifests, which Fleet applies next to its chart.
    for file in templates.bundles[bundle]:
        if file in (_FLEET, _VALUES):
            continue
        manifests = templates.render(f"{bundle}/{file}", full_context)
        name = file.removesuffix(SUFFIX)
        for index, manifest in enumerate(manifests):
            findings += check_manifest(manifest, (bundle, name, index))
        if manifests:
            files[name] = manifests

    if findings:
        return RenderedFiles({}, findings)
    try:
        contents = {name: yaml.dump_all(objects).encode() for name, objects in files.items()}
        return RenderedFiles(contents, [])
    except (TypeError, ValueError) as error:
        raise TemplateError(bundle, f"cannot be written: {error}") from None


def _chart_values(templates: Templates, bundle: str, context: Obj, settings: AddonSettings) -> Obj:
    """Return the values of a bundle's chart: those of its template, overridden by the user's.

    :param templates: compiled templates
    :param bundle: name of the bundle
    :param context: names that the template may use
    :param settings: merged settings of the cluster
    """
    file = f"{bundle}/{_VALUES}"
    # A bundle of manifests has no chart, and no values.
    documents = templates.render(file, context) if _VALUES in templates.bundles[bundle] else []
    if len(documents) > 1 or not all(isinstance(document, dict) for document in documents):
        raise TemplateError(file, "must make one object")
    return merge(documents[0] if documents else {}, _user_values(settings, bundle))


def _user_values(settings: AddonSettings, bundle: str) -> Mapping[str, object]:
    """Return the user's own values for a bundle's chart; empty for bundles that have none."""
    values = {"cni": settings.cni.values, "ccm": settings.ccm.values, "csi": settings.csi.values}
    return values.get(bundle, {})


def check_fleet_yaml(
    document: Any, path: FieldPath, settings: AddonSettings, bundle: str
) -> list[Finding]:
    """Return findings about a rendered fleet.yaml: its schema, name and target, and secrets in it.

    :param document: the rendered document
    :param path: path of the document for findings
    :param settings: merged settings of the cluster
    :param bundle: name of the bundle
    """
    findings = schema.load("fleet-yaml.json").findings(document, root=path)
    if findings:
        return findings

    findings += _check_chart(document["helm"], (*path, "helm"))
    name = document["name"]
    if name != bundle_name(settings.cluster, bundle):
        detail = (
            f'must be {{{{ bundle_name("{bundle}") }}}}: another name can meet that of another'
            " cluster"
        )
        findings.append(Finding((*path, "name"), Fault.INVALID, detail, "bundle-name", name))
    if document["overrideTargets"] != targets(settings):
        detail = "must be {{ targets }}: a bundle is for its own cluster only"
        field = (*path, "overrideTargets")
        findings.append(Finding(field, Fault.FORBIDDEN, detail, "bundle-target"))
    return findings + secretscan.check(document, path)


def _check_chart(helm: Mapping[str, Any], path: FieldPath) -> list[Finding]:
    """Return a finding if a chart is not named as Fleet expects.

    Fleet takes a chart by name from an https repository, or by its whole address from an OCI
    registry.
    """
    repo = str(helm.get("repo") or "")
    chart = helm.get("chart")
    field = (*path, "chart")
    if repo.startswith("oci://") and chart:
        detail = "must be left out: repo is the whole address of the chart"
        return [Finding(field, Fault.FORBIDDEN, detail, "bundle-chart", chart)]
    if repo and not repo.startswith("oci://") and not chart:
        detail = "must name a chart of the repository"
        return [Finding(field, Fault.REQUIRED, detail, "bundle-chart")]
    return []


def check_manifest(document: Any, path: FieldPath) -> list[Finding]:
    """Return findings about a rendered manifest: fields that every object needs, and secrets."""
    rule = "bundle-manifest"
    if not isinstance(document, Mapping):
        return [Finding(path, Fault.WRONG_TYPE, "must be an object of Kubernetes", rule)]

    findings = [
        Finding((*path, field), Fault.REQUIRED, "must be set", rule)
        for field in ("apiVersion", "kind")
        if not isinstance(document.get(field), str)
    ]
    metadata = document.get("metadata")
    if not isinstance(metadata, Mapping) or not isinstance(metadata.get("name"), str):
        findings.append(Finding((*path, "metadata", "name"), Fault.REQUIRED, "must be set", rule))
    return findings + secretscan.check(document, path)
