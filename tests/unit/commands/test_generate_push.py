"""`caphv generate --push`: bundles of a cluster that Fleet is to equip."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.generate import LEAST, call
from tests.support.packager.repositories import Origin, git

pytestmark = pytest.mark.unit


def test_without_push_the_output_names_what_is_missing() -> None:
    result = call(*LEAST, "--fleet-addon-repo", "https://git.example.com/f.git")
    assert result.exit_code == 0
    assert "no cloud provider and no CSI driver: add --push, or run a packager" in result.stderr
    assert call(*LEAST).stderr == ""


def test_push_puts_the_bundles_where_the_gitrepo_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    origin = Origin.make(tmp_path / "fleet.git")
    target = (*LEAST, "--fleet-addon-repo", origin.url, "--push")
    result = call(*target)
    assert result.exit_code == 0, result.stderr
    (path,) = next(obj for obj in yaml.safe_load_all(result.stdout) if obj["kind"] == "GitRepo")["spec"]["paths"]
    folder = path.removesuffix("/*")
    assert {f"{folder}/{bundle}/fleet.yaml" for bundle in ("ccm", "cni", "csi")} <= set(origin.files())
    assert "add --push" not in result.stderr
    # Again changes nothing; another setting is one more commit.
    assert "the bundles are already there" in call(*target).stderr
    assert call(*target, "--cni-mtu", "1400").exit_code == 0
    assert origin.count() == 2
    # What would break a running network is refused, and nothing is pushed.
    refused = call(*target, "--pod-cidr", "10.99.0.0/16")
    assert refused.exit_code == 1
    assert "live-network" in refused.stderr or "was rendered as" in refused.stderr
    assert origin.count() == 2


def test_push_follows_the_environment_as_bundles_push_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = Origin.make(tmp_path / "fleet.git")
    origin.push({"README.md": "bundles of clusters"})
    monkeypatch.setenv("CAPHV_GIT_CACHE", str(tmp_path / "clone"))
    monkeypatch.setenv("CAPHV_GIT_AUTHOR", "Platform <platform@example.com>")
    monkeypatch.setenv("CAPHV_GIT_REVIEW", "caphv/new-cluster")
    # These name the repository of other commands.
    monkeypatch.setenv("CAPHV_GIT_REPO", "https://other.example.com/fleet.git")
    monkeypatch.setenv("CAPHV_GIT_BRANCH", "other")
    monkeypatch.setenv("CAPHV_GIT_PATH", "other")
    result = call(*LEAST, "--fleet-addon-repo", origin.url, "--push")
    assert result.exit_code == 0, result.stderr
    assert f"{origin.url}, branch caphv/new-cluster" in result.stderr
    assert origin.branches() == ["caphv/new-cluster", "main"]
    assert origin.count() == 1
    assert (
        git(origin.folder, "log", "-1", "--format=%an <%ae>", "caphv/new-cluster") == "Platform <platform@example.com>"
    )
    assert list((tmp_path / "clone").iterdir())


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CAPHV_GIT_TIMEOUT", "0.5", "0.5 is not in the range"),
        ("CAPHV_GIT_MAX_SIZE", "0", "0 is not in the range"),
        ("CAPHV_GIT_CREDENTIALS", "/missing", "Directory '/missing' does not exist"),
    ],
)
def test_a_variable_with_an_invalid_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    origin = Origin.make(tmp_path / "fleet.git")
    result = call(*LEAST, "--fleet-addon-repo", origin.url, "--push")
    assert result.exit_code == 2
    assert message in result.stderr
    assert variable in result.stderr
    assert origin.branches() == []


def test_push_needs_a_repository() -> None:
    result = call(*LEAST, "--push")
    assert result.exit_code == 2
    assert "name it with --fleet-addon-repo" in result.stderr
