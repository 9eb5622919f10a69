"""`caphv etcd snapshots` on a workload cluster in memory."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import Obj
from caphv.runtime.errors import NotFound, Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from tests.support import kubeconfigs
from tests.support.clusters import Builder
from tests.support.commandservers import Servers
from tests.support.etcdsnapshots import snapshot_file

pytestmark = pytest.mark.unit


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    servers = Servers(monkeypatch, tmp_path)
    servers.put(Builder(workers=1))
    value = base64.b64encode(yaml.safe_dump(kubeconfigs.valid()).encode()).decode()
    metadata = {"name": "shop-kubeconfig", "namespace": "team"}
    servers.management.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"value": value}})
    monkeypatch.setattr(Kubeconfig, "client", lambda *_, **__: servers.workload)
    servers.workload.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cp-1"}})
    return servers


def snapshots(servers: Servers, *files: Obj, words: tuple[str, ...] = ()) -> Any:
    servers.workload.serve("k3s.cattle.io/v1", "ETCDSnapshotFile")
    for file in files:
        servers.workload.put(file)
    return servers.caphv("etcd", "snapshots", "team/shop", *words)


def test_snapshots_are_listed_and_one_outside_of_machines_is_asked_for(servers: Servers) -> None:
    result = snapshots(servers, snapshot_file("cp-1", "2026-01-01T00:00:00Z"))
    assert result.exit_code == 0, result.output
    header, line, hint = result.stdout.splitlines()
    assert header.split() == ["SNAPSHOT", "STATE", "AGE", "SIZE", "NODE", "LOCATION"]
    assert line.split()[:2] == ["etcd-snapshot-cp-1-00", "ready"]
    assert "8.5 MiB" in line
    assert "etcdSnapshots" in hint
    stored = snapshots(servers, snapshot_file("cp-1", "2026-01-01T00:00:00Z", s3=True))
    assert (stored.exit_code, "etcdSnapshots" in stored.stdout) == (0, False)


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_programs_get_all_fields(servers: Servers, output: str) -> None:
    result = snapshots(servers, snapshot_file("gone", "2026-01-01T00:00:00Z"), words=("-o", output))
    (item,) = (json.loads if output == "json" else yaml.safe_load)(result.stdout)["items"]
    assert (item["state"], item["wrong"], item["s3"], item["size"]) == ("lost", True, False, 8937504)
    assert result.exit_code == 1


def test_a_failed_snapshot_has_its_reason_which_cannot_act_as_control_codes(servers: Servers) -> None:
    result = snapshots(servers, snapshot_file("cp-1", "2026-01-01T00:00:00Z", error="disk \x1b[2Jfull"))
    assert (result.exit_code, "\x1b" in result.stdout) == (1, False)
    assert "full" in result.stdout


def test_no_snapshot_is_not_good(servers: Servers) -> None:
    result = snapshots(servers)
    assert (result.exit_code, "No snapshots" in result.stdout) == (1, True)


def test_a_distribution_without_snapshots_is_an_error(servers: Servers) -> None:
    servers.workload.errors["list ETCDSnapshotFile"] = NotFound(404, "NotFound", "no such resource")
    result = snapshots(servers)
    assert (result.exit_code, "kubeadm takes none" in result.output) == (2, True)


def test_an_api_that_does_not_answer_is_an_error_that_says_where_else_to_look(servers: Servers) -> None:
    servers.workload.errors["list ETCDSnapshotFile"] = Unreachable("no answer")
    result = snapshots(servers)
    assert (result.exit_code, "/var/lib/rancher/rke2/server/db/snapshots" in result.output) == (2, True)
