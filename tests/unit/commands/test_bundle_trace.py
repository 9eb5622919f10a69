"""`caphv bundles trace` with a management cluster in memory: at which stage a setting stopped, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from caphv.runtime.errors import Unreachable
from tests.support.commandservers import Servers
from tests.support.packager.commands import manifest
from tests.support.packager.definitions import definition
from tests.support.packager.repositories import Origin, git

pytestmark = pytest.mark.unit

MTU: Obj = {"cni": {"name": "calico", "mtu": 1400}}


class Case:
    """Cluster `team/demo`, whose bundles are in a repository."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        self.servers, self.origin = Servers(monkeypatch, folder), Origin.make(folder / "origin.git")
        self.servers.management.serve("cluster.x-k8s.io/v1beta2", "ClusterClass")
        self.servers.management.serve("infrastructure.cluster.x-k8s.io/v1beta1", "HarvesterCluster")
        for kind in ("Cluster", "GitRepo", "Bundle", "BundleDeployment"):
            self.servers.management.serve("fleet.cattle.io/v1alpha1", kind)
        self.put(MTU)
        pushed = self.servers.caphv("bundles", "push", "--repo", self.origin.url)
        assert pushed.exit_code == 0, pushed.output

    def put(self, addons: Obj, *, suspended: bool = False) -> None:
        """Store the Cluster on the management cluster."""
        cluster = manifest("demo", addons)
        if suspended:
            cluster["metadata"]["annotations"]["addons.caphv.io/suspend"] = "true"
        self.servers.management.put({"apiVersion": "cluster.x-k8s.io/v1beta2", **cluster})

    def trace(self, *arguments: str) -> Any:
        return self.servers.caphv("bundles", "trace", *arguments)

    def stages(self, *arguments: str) -> dict[str, list[Obj]]:
        """Return the stages of each bundle that is followed."""
        result = self.trace("team/demo", *arguments, "-o", "json")
        assert result.exit_code == 1, result.output
        return {bundle["name"].partition("-")[0]: bundle["stages"] for bundle in json.loads(result.stdout)["items"]}


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Case:
    for name in ("REPO", "BRANCH", "PATH", "CREDENTIALS", "REVIEW"):
        monkeypatch.delenv(f"CAPHV_GIT_{name}", raising=False)
    return Case(monkeypatch, tmp_path)


def test_a_setting_is_followed_to_the_stage_at_which_it_stopped(case: Case) -> None:
    ((name, stages),) = case.stages("cni.mtu", "--repo", case.origin.url).items()
    assert name == "cni"
    (commit,) = (stage for stage in stages if stage["name"] == "repository")
    assert (commit["ok"], case.origin.head()[:12] in commit["detail"]) == (True, True)
    assert next(stage["name"] for stage in stages if stage["ok"] is False) == "GitRepo"
    assert case.servers.management.closed
    every = case.stages("--repo", case.origin.url)
    assert {"ccm", "cni", "csi"} <= every.keys()


def test_a_setting_that_was_never_committed_stops_before_fleet(case: Case) -> None:
    case.put({"cni": {"name": "calico", "mtu": 1300}})
    result = case.trace("team/demo", "cni.mtu", "--repo", case.origin.url, "-o", "json")
    (bundle,) = json.loads(result.stdout)["items"]
    assert (result.exit_code, bundle["stopped"]) == (1, "repository")
    # Without a repository that stage is unknown.
    unknown = json.loads(case.trace("team/demo", "cni.mtu", "-o", "json").stdout)["items"][0]
    assert unknown.get("stopped") != "repository"


def test_the_line_of_the_definition_is_named(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "definitions"
    folder.mkdir()
    found = definition("demo", addons=MTU)
    found["metadata"]["namespace"] = "team"
    (folder / "demo.yaml").write_text(yaml.safe_dump(found, sort_keys=False))
    git(folder, "init", "--quiet")
    options = ("--definitions", str(folder), "-o", "json")
    setting = json.loads(case.trace("team/demo", "cni.mtu", *options).stdout)["setting"]
    line = 1 + next(
        number for number, text in enumerate((folder / "demo.yaml").read_text().splitlines()) if "mtu: 1400" in text
    )
    assert setting["place"] == f"demo.yaml:{line}"
    (folder / "demo.yaml").unlink()
    missing = case.trace("team/demo", "cni.mtu", *options)
    assert (missing.exit_code, "no file defines cluster team/demo" in missing.output) == (2, True)


def test_what_cannot_be_followed_is_named(case: Case) -> None:
    unknown = case.trace("team/demo", "cni.mtv")
    assert (unknown.exit_code, "cni.mtv" in unknown.output) == (2, True)
    gone = case.trace("team/gone")
    assert (gone.exit_code, "has no Cluster team/gone on Harvester" in gone.output) == (2, True)
    case.put({"cni": {"mtu": 1}})
    faulty = case.trace("team/demo")
    assert (faulty.exit_code, "mtu: Invalid value: 1" in faulty.output) == (2, True)
    case.put(MTU, suspended=True)
    suspended = case.trace("team/demo")
    text = "annotation addons.caphv.io/suspend suspends its bundles"
    assert (suspended.exit_code, text in suspended.output) == (2, True)
    case.servers.management.errors["discover"] = Unreachable("no route")
    away = case.trace("team/demo")
    assert (away.exit_code, "cannot read the management cluster: no route" in away.output) == (2, True)
