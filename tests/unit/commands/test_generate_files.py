"""`caphv generate --to`: which files it writes and replaces, and where secrets may go."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tests.support.generate import GUIDE, TOKEN, call, objects, offline

pytestmark = pytest.mark.unit


def test_a_folder_for_a_repository_gets_no_secret(tmp_path: Path, kubeconfig: Path) -> None:
    folder = tmp_path / "out"
    result = call(*GUIDE, *offline(kubeconfig), "--to", str(folder))
    assert result.exit_code == 0
    files = {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert "manifests/prod-ns/production-cluster/cluster/cluster.yaml" in files
    assert not any(TOKEN in text or "kind: Secret" in text for text in files.values())
    assert TOKEN not in result.output
    assert stat.S_IMODE((folder / "manifests").stat().st_mode) & 0o022 == 0


def test_files_that_exist_are_replaced_on_request_only(tmp_path: Path, kubeconfig: Path) -> None:
    folder = tmp_path / "out"
    words = (*GUIDE, *offline(kubeconfig), "--to", str(folder))
    assert call(*words).exit_code == 0
    assert call(*words).exit_code == 0
    cluster = folder / "manifests" / "prod-ns" / "production-cluster" / "cluster" / "cluster.yaml"
    cluster.write_text("mine\n")

    refused = call(*words, "--cni-mtu", "1400")
    assert refused.exit_code == 2
    assert "cluster/cluster.yaml" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert cluster.read_text() == "mine\n"

    assert call(*words, "--overwrite").exit_code == 0
    assert "kind: Cluster" in cluster.read_text()


def test_the_kubeconfig_to_check_with_is_never_written(tmp_path: Path, kubeconfig: Path) -> None:
    checked = call(*GUIDE, "--check-kubeconfig", str(kubeconfig), "--no-harvester")
    assert checked.exit_code == 0
    assert "Secret" not in {obj["kind"] for obj in objects(checked)}
    assert TOKEN not in checked.output

    bad = tmp_path / "bad.yaml"
    bad.write_text("a: 1")
    refused = call(*GUIDE, "--check-kubeconfig", str(bad), "--no-harvester")
    assert refused.exit_code == 1
    assert f"--check-kubeconfig {bad}" in refused.stderr
