"""Count what Fleet does for one commit: `python -m tools.bench.fleet --help`.

The stand-in of Fleet reads the repository as Fleet does: a commit on a branch runs every GitRepo of
that branch again, and each bundle with a chart in a repository downloads it. Nothing is timed: the
figures are the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from caphv.api.object import Obj
from packager.addons.facts import ClusterFacts
from packager.rendering import yaml
from packager.rendering.gitrepo import GitRepoOptions, git_repos
from packager.rendering.renderer import Renderer
from packager.rendering.vendored import ROOT, VendoredChart, folder_of
from tests.support.addons.bundles import Bundle, bundles_of
from tests.support.addons.charts import opaque

_REPO = "https://git.example.com/fleet.git"
_CHANGE = {"ccm": {"replicas": 2}}
VENDORED = "Fleet, vendored"
_CHARTS = ("harvester-cloud-provider", "harvester-csi-driver")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--clusters", default=300, help="Clusters with RKE2 in the repository.")
@click.option("--groups", default=10, help="GitRepos that they are spread over.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def main(clusters: int, groups: int, output: str) -> None:
    """Count what one changed setting of one cluster makes Fleet do, by who installs the charts."""
    rows = [
        measure(clusters, groups, installer) for installer in ("Fleet", "HelmController", VENDORED)
    ]
    if output == "json":
        print(json.dumps(rows, indent=2))
        return
    for name in rows[0]:
        print(f"{name:24}" + "".join(f"{row[name]:>20}" for row in rows))


def measure(clusters: int, groups: int, installer: str) -> dict[str, Any]:
    """Return the counts of one commit.

    `installer` names the program that installs the charts: Fleet, Fleet with vendored charts, or
    the Helm controller.
    """
    addons = [
        {
            "charts": {"installedBy": installer.partition(",")[0]},
            "fleet": {"group": f"group-{number % groups}"},
        }
        for number in range(clusters)
    ]
    vendor = _vendored_charts() if installer == VENDORED else {}
    facts = [_cluster(number, values) for number, values in enumerate(addons)]

    changed = [_cluster(0, {**addons[0], **_CHANGE}), *facts[1:]]
    before, _ = _read_commit(facts, vendor)
    files = {
        path: content
        for result in Renderer().render(facts, vendor)
        for path, content in result.tree.items()
    }
    after, counts = _read_commit(changed, {**vendor, **files})
    touched = [name for name, bundle in after.items() if before[name] != bundle]
    return {"charts installed by": installer, **counts, "bundles changed": len(touched)}


def _read_commit(
    facts: Sequence[ClusterFacts], previous: Mapping[str, bytes]
) -> tuple[dict[str, Bundle], Obj]:
    """Read a commit through all GitRepos; return the bundles by name, and its cost."""
    downloads = 0

    def chart(helm: Mapping[str, Any]) -> Sequence[Obj]:
        nonlocal downloads
        # Without a repository, the chart is in the bundle.
        downloads += "repo" in helm
        return opaque(helm)

    results = Renderer().render(facts, previous)
    assert all(result.ok for result in results), [
        result.findings for result in results if not result.ok
    ]
    settings = [result.settings for result in results if result.settings]
    repos = git_repos(settings, GitRepoOptions(_REPO))

    # Map each path of a GitRepo, which names a cluster's folders, to the files below it.
    folders: dict[str, dict[str, bytes]] = {}
    for result in results:
        folder = f"clusters/{result.cluster.namespace}/{result.cluster.name}/*"
        folders[folder] = dict(result.tree)
    bundles: dict[str, Bundle] = {}
    for repo in repos:
        for path in repo["spec"]["paths"]:
            # Read one path at a time, because the stand-in compares every folder with every path.
            narrowed = {**repo, "spec": {**repo["spec"], "paths": [path]}}
            bundles |= {
                bundle.name: bundle for bundle in bundles_of(folders[path], narrowed, chart)
            }
    return bundles, {
        "GitRepos run": len(repos),
        "bundles read": len(bundles),
        "chart downloads": downloads,
    }


def _vendored_charts() -> dict[str, bytes]:
    """Return the vendored charts of a repository, each with a single file."""
    versions = Renderer().table.newest.charts
    charts = [
        VendoredChart(name, versions[name], "", {"Chart.yaml": f"name: {name}\n".encode()})
        for name in _CHARTS
    ]
    (folders,) = folder_of(charts).values()
    return {
        f"{ROOT.name}/{name}/{path}": text
        for name, folder in folders.items()
        for path, text in folder.files.items()
    }


def _cluster(number: int, addons: Obj) -> ClusterFacts:
    metadata = {
        "namespace": "clusters",
        "name": f"cluster-{number}",
        "annotations": {"addons.caphv.io/values": yaml.dump(addons)},
    }
    spec = {"topology": {"version": "v1.36.2+rke2r1", "classRef": {"name": "harvester-rke2"}}}
    kinds = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster"}
    return ClusterFacts({**kinds, "metadata": metadata, "spec": spec})


if __name__ == "__main__":
    main()
