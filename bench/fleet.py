"""Count what Fleet does for one commit: `python -m bench.fleet --help`.

The stand-in of Fleet reads the repository as Fleet does: a commit on a branch runs every GitRepo of that branch again,
and each bundle with a chart in a repository downloads it. Nothing is timed: the figures are the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from caphv.api.object import Obj
from packager.addons.settings import ClusterFacts
from packager.rendering import yaml
from packager.rendering.gitrepo import GitRepoOptions, git_repos
from packager.rendering.renderer import Renderer
from packager.rendering.vendored import ROOT, VendoredChart, folder_of
from sandbox.addons.bundles import Bundle, bundles_of
from sandbox.addons.charts import opaque

_REPO = "https://git.example.com/fleet.git"
_CHANGE = {"ccm": {"replicas": 2}}
VENDORED = "Fleet, vendored"
BRANCHES = "Fleet, own branches"
_CHARTS = ("harvester-cloud-provider", "harvester-csi-driver")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.option("--clusters", default=300, help="Clusters with RKE2 in the repository.")
@click.option("--groups", default=10, help="GitRepos that they are spread over.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def main(clusters: int, groups: int, output: str) -> None:
    """Count what one changed setting of one cluster makes Fleet do, by who installs the charts."""
    rows = [measure(clusters, groups, how) for how in ("Fleet", "HelmController", VENDORED, BRANCHES)]
    if output == "json":
        print(json.dumps(rows, indent=2))
        return
    for name in rows[0]:
        print(f"{name:24}" + "".join(f"{row[name]:>20}" for row in rows))


def measure(clusters: int, groups: int, how: str) -> dict[str, Any]:
    """Return the counts of one commit.

    `how`: by Fleet, with vendored charts or without, or with a branch for each group, or by the Helm controller.
    """
    addons = [
        {"charts": {"installedBy": how.partition(",")[0]}, "fleet": {"group": f"group-{number % groups}"}}
        for number in range(clusters)
    ]
    vendor = _vendored() if how == VENDORED else {}
    options = GitRepoOptions(_REPO)
    if how == BRANCHES:
        options = replace(options, own_branches=frozenset(f"group-{number}" for number in range(groups)))
    facts = [_cluster(number, one) for number, one in enumerate(addons)]
    changed = [_cluster(0, {**addons[0], **_CHANGE}), *facts[1:]]
    before, _ = _read(facts, vendor, options)
    files = {path: content for one in Renderer().render(facts, vendor) for path, content in one.tree.items()}
    # Only the branch of the changed cluster gets a commit.
    after, counts = _read(changed, {**vendor, **files}, options, "clusters/clusters/cluster-0/*")
    touched = [name for name, bundle in after.items() if before[name] != bundle]
    return {"charts installed by": how, **counts, "bundles changed": len(touched)}


def _read(
    facts: Sequence[ClusterFacts], previous: Mapping[str, bytes], options: GitRepoOptions, changed: str = ""
) -> tuple[dict[str, Bundle], Obj]:
    """Read a commit through all GitRepos of the branches that it changes; return the bundles by name, and its cost.

    `changed` is the path of a cluster, empty for all.
    """
    fetched = 0

    def chart(helm: Mapping[str, Any]) -> Sequence[Obj]:
        nonlocal fetched
        fetched += "repo" in helm
        return opaque(helm)

    results = Renderer().render(facts, previous)
    assert all(result.ok for result in results), [result.findings for result in results if not result.ok]
    repos = git_repos([one.settings for one in results if one.settings], options)
    branches = {repo["spec"]["branch"] for repo in repos if not changed or changed in repo["spec"]["paths"]}
    repos = [repo for repo in repos if repo["spec"]["branch"] in branches]
    folders: dict[str, dict[str, bytes]] = {}
    for result in results:
        folder = f"clusters/{result.cluster.namespace}/{result.cluster.name}/*"
        folders[folder] = dict(result.tree)
    found: dict[str, Bundle] = {}
    for repo in repos:
        for path in repo["spec"]["paths"]:
            # One path at a time: the stand-in compares every folder with every path.
            one = {**repo, "spec": {**repo["spec"], "paths": [path]}}
            found |= {bundle.name: bundle for bundle in bundles_of(folders[path], one, chart)}
    return found, {"GitRepos run": len(repos), "bundles read": len(found), "chart downloads": fetched}


def _vendored() -> dict[str, bytes]:
    """Return a repository's vendored charts, of one file each."""
    versions = Renderer().table.newest.charts
    charts = [VendoredChart(name, versions[name], "", {"Chart.yaml": f"name: {name}\n".encode()}) for name in _CHARTS]
    (folders,) = folder_of(charts).values()
    return {f"{ROOT.name}/{name}/{path}": text for name, one in folders.items() for path, text in one.files.items()}


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
