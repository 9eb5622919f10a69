"""`caphv bundles upgrade` with a management cluster in memory in which a test plays Fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from caphv.api.object import Obj, Resource
from caphv.api.resources import FLEET_BUNDLES
from caphv.runtime.errors import Forbidden
from tests.support.commandservers import Servers
from tests.support.packager.commands import manifest
from tests.support.packager.repositories import Origin

pytestmark = pytest.mark.unit

OLDER = "2026.11"


class Fleet:
    """Bundles of Fleet as if it had applied the head of the branch to all clusters but those in `stuck`."""

    def __init__(self, servers: Servers, origin: Origin) -> None:
        self.origin = origin
        self.stuck: set[str] = set()
        self.error: Forbidden | None = None
        self._list = servers.management.list
        servers.management.list = self.list  # type: ignore[method-assign]

    async def list(self, resource: Resource, namespace: str = "", **options: Any) -> Obj:
        if resource is not FLEET_BUNDLES:
            return await self._list(resource, namespace, **options)
        if self.error:
            raise self.error
        files = self.origin.files()
        paths = [path for path in files if path.startswith("clusters/") and path.endswith("/fleet.yaml")]
        return {"metadata": {}, "items": [self._bundle(path, yaml.safe_load(files[path])) for path in paths]}

    def _bundle(self, path: str, fleet_yaml: Obj) -> Obj:
        _, namespace, cluster, *_ = path.split("/")
        labels = {**fleet_yaml["labels"], "fleet.cattle.io/commit": self.origin.head()}
        metadata = {"name": fleet_yaml["name"], "namespace": namespace, "uid": path, "resourceVersion": "1"}
        summary: Obj = {"desiredReady": 1, "ready": 1, "nonReadyResources": []}
        if cluster in self.stuck:
            summary |= {"ready": 0, "nonReadyResources": [{"message": "image cannot be pulled"}]}
        return {
            "apiVersion": FLEET_BUNDLES.api_version,
            "kind": FLEET_BUNDLES.kind,
            "metadata": {**metadata, "labels": labels, "generation": 1},
            "spec": {},
            "status": {"observedGeneration": 1, "summary": summary},
        }


class Case:
    """Clusters `a` (canary), `b` and `c`, whose bundles have the newest release."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        monkeypatch.setattr("packager.waves._INTERVAL", 0.01)
        self.servers, self.origin = Servers(monkeypatch, folder), Origin.make(folder / "origin.git")
        self.fleet = Fleet(self.servers, self.origin)
        self.servers.management.serve("cluster.x-k8s.io/v1beta2", "ClusterClass")
        self.servers.management.serve("infrastructure.cluster.x-k8s.io/v1beta1", "HarvesterCluster")
        self.put("a", **{"caphv.io/wave": "canary"})
        self.put("b")
        self.put("c")
        pushed = self.bundles("push")
        assert pushed.exit_code == 0, pushed.output
        self.newest = set(self.releases().values()).pop()

    def put(self, name: str, addons: Obj | None = None, **labels: str) -> None:
        """Store a Cluster on the management cluster."""
        self.servers.management.put({"apiVersion": "cluster.x-k8s.io/v1beta2", **manifest(name, addons, **labels)})

    def bundles(self, command: str, *more: str) -> Result:
        return self.servers.caphv("bundles", command, *more, "--repo", self.origin.url)

    def upgrade(self, waves: str, *more: str, release: str = OLDER, gate: str = "60s") -> Result:
        return self.bundles("upgrade", "--waves", waves, "--gate", f"ready={gate}", "--release", release, *more)

    def releases(self) -> dict[str, str]:
        """Releases of the clusters' bundles in the repository."""
        listed = json.loads(self.bundles("list", "-o", "json").stdout)
        return {row["name"].split("/")[1]: row["versions"]["release"] for row in listed["clusters"]}


@pytest.fixture
def case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Case:
    for name in ("REPO", "BRANCH", "PATH", "CREDENTIALS", "REVIEW"):
        monkeypatch.delenv(f"CAPHV_GIT_{name}", raising=False)
    return Case(monkeypatch, tmp_path)


def test_a_dry_run_shows_the_waves_and_commits_nothing(case: Case) -> None:
    shown = json.loads(case.upgrade("canary,50%,rest", "--dry-run", "-o", "json").stdout)
    assert [wave["clusters"] for wave in shown["waves"]] == [["team/a"], ["team/b", "team/c"]]
    assert case.origin.count() == 1
    nothing = case.upgrade("canary,rest", release=case.newest)
    assert (nothing.exit_code, case.origin.count()) == (0, 1)


def test_each_wave_is_a_commit_that_follows_a_ready_one(case: Case) -> None:
    result = case.upgrade("canary,1,rest", "-o", "json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [(wave["clusters"], wave["state"]) for wave in report["waves"]] == [
        (["team/a"], "ready"),
        (["team/b"], "ready"),
        (["team/c"], "ready"),
    ]
    assert report["waves"][-1]["commit"] == case.origin.head()
    assert (case.origin.count(), set(case.releases().values())) == (4, {OLDER})


def test_a_wave_that_is_not_ready_is_reverted_and_ends_the_upgrade(case: Case) -> None:
    case.fleet.stuck = {"b"}
    result = case.upgrade("canary,1,rest", "-o", "json", gate="1s")
    assert result.exit_code == 1
    ready, reverted = json.loads(result.stdout)["waves"]
    assert (ready["state"], ready["problems"], "revert" in ready) == ("ready", {}, False)
    assert (reverted["state"], reverted["revert"]) == ("reverted", case.origin.head())
    assert "image cannot be pulled" in str(reverted["problems"]["team/b"])
    assert case.releases() == {"a": OLDER, "b": case.newest, "c": case.newest}

    # The same command continues once the cause is fixed.
    case.fleet.stuck = set()
    again = case.upgrade("canary,1,rest")
    assert again.exit_code == 0, again.output
    assert len(again.stdout.splitlines()) == 2
    assert set(case.releases().values()) == {OLDER}


def test_a_cluster_that_cannot_be_upgraded_is_left_out(case: Case) -> None:
    case.put("b", {"cni": {"mtu": 1}})
    result = case.upgrade("canary,rest", "-o", "json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert [wave["clusters"] for wave in report["waves"]] == [["team/a"], ["team/c"]]
    (row,) = report["leftOut"]
    assert (row["cluster"], "mtu" in row["messages"][0]) == ("team/b", True)
    assert "cluster team/b: left out: " in result.stderr
    assert case.releases() == {"a": OLDER, "b": case.newest, "c": OLDER}


def test_nothing_is_committed_while_fleet_cannot_be_asked(case: Case) -> None:
    case.fleet.error = Forbidden(403, "Forbidden", "cannot list bundles")
    result = case.upgrade("canary,rest")
    assert (result.exit_code, "cannot be read in the management cluster" in result.output) == (2, True)
    assert case.origin.count() == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--waves", "canary,rest"],
        ["--gate", "ready=1m", "--all"],
        ["--waves", "canary,rest", "--gate", "1m"],
        ["--waves", "canary,rest", "--gate", "done=1m"],
        ["--waves", "canary", "--gate", "ready=1m"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "--count", "1"],
        ["--waves", "canary,rest", "--gate", "ready=1m", "--review", "x"],
        ["--all", "--release", "none"],
    ],
)
def test_wrong_usage_commits_nothing(case: Case, options: list[str]) -> None:
    assert case.bundles("upgrade", *options).exit_code == 2
    assert case.origin.count() == 1


def test_an_upgrade_at_once_leaves_the_rest_as_it_is(case: Case) -> None:
    shown = case.bundles("upgrade", "--count", "1", "--release", OLDER, "--dry-run")
    assert "+++ b/clusters/team/a/" in shown.stdout
    assert "+++ b/clusters/team/b/" not in shown.stdout
    assert case.origin.count() == 1
    assert case.bundles("upgrade", "--count", "1", "--release", OLDER).exit_code == 0
    assert case.releases() == {"a": OLDER, "b": case.newest, "c": case.newest}
    assert f"Upgrade to release {OLDER} of the bundles." in case.origin.message()
