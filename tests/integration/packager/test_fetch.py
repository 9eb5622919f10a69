"""Charts that the real helm pulls from a chart repository and from an OCI registry."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sandbox.processes import binaries
from tests.support.packager.chart_servers import ChartServer
from tests.support.packager.charts import archived, shipped
from tests.support.packager.commands import call, manifest, write
from tests.support.packager.git_servers import tls_context
from tests.support.packager.repositories import Origin

pytestmark = pytest.mark.integration

WANTED = {
    "harvester-cloud-provider": "0.2.15",
    "harvester-csi-driver": "0.1.31",
    "rke2-snapshot-controller": "5.2.003",
    "rke2-snapshot-controller-crd": "5.2.003",
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ChartServer]:
    """All charts of the shipped table; helm trusts the server."""
    folder = shipped(tmp_path / "charts")
    for path in [path for path in folder.iterdir() if path.is_dir()]:
        archived(path, WANTED[path.name])
    context, authority = tls_context(tmp_path)
    (tmp_path / "ca.pem").write_text(authority)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("CAPHV_HELM", str(binaries.binary("helm")))
    with ChartServer.of_folder(folder).serve(context) as served:
        assert {*served.archives} == {*WANTED.items()}
        yield served


@pytest.fixture
def clusters(tmp_path: Path) -> Path:
    addons = {"distribution": "kubeadm", "cni": {"name": "none"}}
    return write(tmp_path / "clusters", manifest("a", addons), manifest("b", addons))


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A local folder instead of Fleet's repository."""
    folder = tmp_path / "fleet"
    folder.mkdir()
    return folder


@pytest.fixture(params=["repository", "registry"])
def address(request: pytest.FixtureRequest, server: ChartServer) -> str:
    """Address of the charts: `https://…`, or `oci://…`."""
    return str(getattr(server, request.param))


def test_a_check_pulls_each_chart_once(clusters: Path, server: ChartServer, address: str) -> None:
    found = call("check", clusters, "--chart-repo", address, "-o", "json")
    assert found.exit_code == 0, found.output
    for one in json.loads(found.stdout)["items"]:
        assert one["findings"] == []
        assert {row["name"] for row in one["charts"] if row["rendered"]} == {*WANTED}
    pulled = [path for path in server.paths if path.endswith(".tgz") or "/manifests/" in path]
    assert {path.rpartition("/")[0] for path in pulled} == (
        {"/charts"} if "https" in address else {f"/v2/charts/{name}/manifests" for name in WANTED}
    )
    archives = {path for path in pulled if path.endswith(".tgz")}
    assert len(archives) == sum(path.endswith(".tgz") for path in server.paths)


def test_vendored_charts_are_what_the_server_has(
    clusters: Path, server: ChartServer, address: str, origin: Origin, tmp_path: Path
) -> None:
    place = ("--repo", origin.url, "--git-cache", tmp_path / "cache", "--chart-repo", address)
    found = call("vendor", clusters, *place)
    assert found.exit_code == 0, found.output
    index = yaml.safe_load(origin.files()["vendored-charts/fleet/charts/index.yaml"])
    assert {row["name"]: row["version"] for row in index["charts"]} == WANTED
    assert all(row["repository"].startswith(address) for row in index["charts"])
    found = call("push", clusters, *place)
    assert found.exit_code == 0, found.output
    assert "clusters/team/a/ccm/chart/values.yaml" in origin.files()
    # Bundles hold their charts now.
    before = len(server.paths)
    found = call("check", clusters, *place, "-o", "json")
    assert (found.exit_code, len(server.paths)) == (0, before), found.output


def test_a_chart_that_cannot_be_pulled_is_named(clusters: Path, fleet: Path, server: ChartServer, address: str) -> None:
    server.archives = {key: content for key, content in server.archives.items() if key[0] != "harvester-csi-driver"}
    found = call("check", clusters, "--chart-repo", address, "-o", "json")
    assert found.exit_code == 1
    (row,) = json.loads(found.stdout)["items"][0]["findings"]
    assert (row["file"].split("/", 3)[3], "harvester-csi-driver" in row["message"]) == ("csi/fleet.yaml", True)
    # Nothing is vendored if one chart is missing.
    found = call("vendor", clusters, "--folder", fleet, "--chart-repo", address)
    assert found.exit_code == 2
    assert "chart harvester-csi-driver 0.1.31: " in found.stderr
    assert list(fleet.iterdir()) == []


def test_an_answer_without_a_chart_is_refused(clusters: Path, fleet: Path, server: ChartServer, address: str) -> None:
    server.archives["harvester-csi-driver", "0.1.31"] = b"<html>a login page</html>"
    found = call("vendor", clusters, "--folder", fleet, "--chart-repo", address)
    assert found.exit_code == 2
    assert "chart harvester-csi-driver 0.1.31: " in found.stderr


def test_a_registry_with_another_content_than_its_digest_is_refused(
    clusters: Path, fleet: Path, server: ChartServer
) -> None:
    server.swapped = True
    found = call("vendor", clusters, "--folder", fleet, "--chart-repo", server.registry)
    assert found.exit_code == 2
    assert "digest" in found.stderr


def test_a_registry_gets_the_credentials_of_helm(
    clusters: Path, server: ChartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.password = "secret"
    arguments = ("check", clusters, "--chart-repo", server.registry, "-o", "json")
    found = call(*arguments)
    assert (found.exit_code, "credential" in found.stdout) == (1, True), found.stdout
    config = tmp_path / "registry.json"
    auth = base64.b64encode(b"helm:secret").decode()
    config.write_text(json.dumps({"auths": {server.host: {"auth": auth}}}))
    monkeypatch.setenv("HELM_REGISTRY_CONFIG", str(config))
    found = call(*arguments)
    assert found.exit_code == 0, found.output
    assert auth not in found.output


def test_a_server_that_is_not_trusted_is_refused(
    clusters: Path, fleet: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty.pem").write_text("")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "empty.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    found = call("vendor", clusters, "--folder", fleet, "--chart-repo", address)
    assert found.exit_code == 2
    assert "certificate" in found.stderr
