"""`caphv etcd restore` on servers in memory: from the first check to the end of the pause."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from caphv.api.names import ETCD_RESTORE_ANNOTATION
from caphv.api.object import Obj
from caphv.runtime.errors import Unreachable
from caphv.runtime.kubeconfig import Kubeconfig
from commands.access import ssh
from commands.access.changes import confirm
from commands.options.changes import ChangeOptions
from tests.support import kubeconfigs
from tests.support.clusters import Builder
from tests.support.commandservers import Servers
from tests.support.etcdsnapshots import snapshot_file

pytestmark = pytest.mark.unit

NAME = "etcd-snapshot-cp-1-12"


def node(name: str, member: str = "") -> Obj:
    conditions = [{"type": "Ready", "status": "True"}]
    metadata = {"name": name, "annotations": {"etcd.rke2.cattle.io/node-name": member or f"{name}-1a2b"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"conditions": conditions}}


def lease(name: str) -> Obj:
    metadata = {"name": name, "namespace": "kube-node-lease"}
    spec = {"renewTime": datetime.now(UTC).isoformat()}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Servers:
    servers = Servers(monkeypatch, tmp_path)
    servers.put(Builder(control_planes=3, workers=1))
    value = base64.b64encode(yaml.safe_dump(kubeconfigs.valid()).encode()).decode()
    metadata = {"name": "shop-kubeconfig", "namespace": "team"}
    servers.management.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"value": value}})
    monkeypatch.setattr(Kubeconfig, "client", lambda *_, **__: servers.workload)
    servers.workload.serve("k3s.cattle.io/v1", "ETCDSnapshotFile")
    servers.workload.put(snapshot_file("cp-1", "2026-01-01T12:00:00Z", s3=True))
    for name in ("cp-1", "cp-2", "cp-3", "worker-1"):
        servers.workload.put(node(name))
        servers.workload.put(lease(name))
    builder = servers.management
    control_plane = builder.find("RKE2ControlPlane", "shop", "team")
    assert control_plane is not None
    store = {"bucket": "etcd-snapshots", "folder": "team/shop"}
    control_plane["spec"] |= {"serverConfig": {"etcd": {"backupConfig": {"s3": store}}}}
    builder.put(control_plane)
    return servers


def call(servers: Servers, *words: str) -> Any:
    return servers.caphv("etcd", "restore", "team/shop", *words)


def cluster(servers: Servers) -> Obj:
    obj = servers.management.find("Cluster", "shop", "team")
    assert obj is not None
    return obj


def test_a_restore_begins_continues_and_ends(servers: Servers) -> None:
    begun = call(servers, NAME, "--yes")
    assert begun.exit_code == 0, begun.output
    assert "# When its Nodes are ready again: caphv etcd restore team/shop --finish" in begun.stdout
    assert cluster(servers)["spec"]["paused"] is True
    record = json.loads(cluster(servers)["metadata"]["annotations"][ETCD_RESTORE_ANNOTATION])
    assert len(record.pop("id")) == 8
    assert record == {"snapshot": NAME, "s3": True, "machine": "cp-1", "member": "cp-1-1a2b", "paused": True}

    # Later, or on another computer.
    again = call(servers)
    assert (again.exit_code, f"snapshot={NAME}" in again.stdout) == (0, True)
    assert call(servers, "other").exit_code == 2

    # Nothing was restored yet.
    early = call(servers, "--finish", "--yes")
    assert (early.exit_code, "the snapshot was not restored" in early.stdout) == (1, True)
    servers.workload.put(node("cp-1", member="cp-1-3c4d"))
    done = call(servers, "--finish", "--yes")
    assert done.exit_code == 0, done.output
    assert cluster(servers)["spec"]["paused"] is False
    assert ETCD_RESTORE_ANNOTATION not in cluster(servers)["metadata"]["annotations"]
    assert call(servers, "--finish", "--yes").exit_code == 2


def test_an_api_that_does_not_answer_prevents_the_end_and_not_the_beginning(servers: Servers) -> None:
    servers.workload.errors["list Node"] = Unreachable("no answer")
    assert call(servers, NAME, "--yes").exit_code == 2, "on which machine is unknown"
    begun = call(servers, NAME, "--on", "cp-2", "--yes")
    assert (begun.exit_code, "snapshot: the workload cluster does not answer" in begun.stdout) == (0, True)
    refused = call(servers, "--finish", "--yes")
    assert (refused.exit_code, cluster(servers)["spec"]["paused"]) == (1, True)
    assert "no answer" in refused.stdout
    given_up = call(servers, "--finish", "--yes", "--force")
    assert (given_up.exit_code, "systemctl enable --now rke2-server" in given_up.stderr) == (0, True)
    assert cluster(servers)["spec"]["paused"] is False


def test_a_dry_run_shows_the_commands_and_changes_nothing(servers: Servers) -> None:
    before = json.dumps(cluster(servers))
    text = call(servers, NAME, "--dry-run")
    assert (text.exit_code, "Restore the snapshot" in text.stdout) == (0, True)
    data = call(servers, NAME, "--dry-run", "-o", "json")
    assert data.exit_code == 0
    (content,) = json.loads(data.stdout)["items"]
    assert (content["applied"], len(content["steps"])) == (False, 9)
    assert content["steps"][6]["machine"] == "cp-1"
    assert json.dumps(cluster(servers)) == before


def test_a_failed_check_changes_nothing_unless_forced(servers: Servers) -> None:
    broken = snapshot_file("cp-1", "2026-01-01T12:00:00Z", s3=True, error="full")
    servers.workload.put(broken)
    refused = call(servers, NAME, "--yes")
    assert (refused.exit_code, "paused" in cluster(servers)["spec"]) == (1, False)
    assert json.loads(call(servers, NAME, "--yes", "-o", "json").stdout)["items"][0]["applied"] is False
    forced = call(servers, NAME, "--yes", "--force", "-o", "json")
    assert (forced.exit_code, json.loads(forced.stdout)["items"][0]["applied"]) == (0, True)
    assert cluster(servers)["spec"]["paused"] is True


def test_without_a_terminal_consent_is_an_option(servers: Servers) -> None:
    assert call(servers, NAME).exit_code == 2
    assert "paused" not in cluster(servers)["spec"]


def test_no_key_of_what_is_read_is_shown(servers: Servers) -> None:
    control_plane = servers.management.find("RKE2ControlPlane", "shop", "team")
    assert control_plane is not None
    content = "token: K10secret\netcd-s3-secret-key: K10secret\n"
    control_plane["spec"]["files"] = [
        {"path": "/etc/rancher/rke2/config.yaml.d/55-etcd-snapshots.yaml", "content": content}
    ]
    servers.management.put(control_plane)
    for words in ((NAME, "--dry-run"), (NAME, "--dry-run", "-o", "json"), (NAME, "--yes"), ()):
        assert "K10secret" not in call(servers, *words).output


def test_a_question_cannot_act_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a snapshot comes from the workload cluster."""
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(click, "confirm", lambda question, **_: asked.append(question))
    confirm(ChangeOptions(yes=False, dry_run=False), "/x\x1b[2J\x1b]0;t\x07\rPause cluster other?")
    assert asked[0].isprintable()


def test_a_machine_that_is_deleted_leaves_no_server_without_a_database(servers: Servers) -> None:
    assert call(servers, NAME, "--on", "cp-2", "--yes").exit_code == 0
    machine = servers.management.find("Machine", "cp-2", "team")
    assert machine is not None
    machine["metadata"]["deletionTimestamp"] = "2026-01-01T12:00:00Z"
    servers.management.put(machine)
    result = call(servers)
    assert (result.exit_code, "mv " in result.output, "--finish --force" in result.output) == (2, False, True)


def test_a_pause_that_has_ended_begins_again(servers: Servers) -> None:
    assert call(servers, NAME, "--yes").exit_code == 0
    obj = cluster(servers)
    obj["spec"]["paused"] = False
    servers.management.put(obj)
    result = call(servers, "--yes")
    assert (result.exit_code, "its pause has ended" in result.stdout) == (0, True), result.output
    assert cluster(servers)["spec"]["paused"] is True


def test_a_record_that_cannot_be_read_is_given_up(servers: Servers) -> None:
    obj = cluster(servers)
    obj["metadata"]["annotations"] = {ETCD_RESTORE_ANNOTATION: "x"}
    obj["spec"]["paused"] = True
    servers.management.put(obj)
    assert call(servers, "--finish", "--yes").exit_code == 2
    result = call(servers, "--finish", "--force", "--yes")
    assert (result.exit_code, "kubectl patch cluster shop" in result.output) == (0, True), result.output
    assert not cluster(servers)["metadata"]["annotations"]
    assert cluster(servers)["spec"]["paused"] is True


@pytest.mark.parametrize("words", [("--finish", NAME), ("--finish", "--on", "cp-1"), ("--finish", "--ssh")])
def test_the_end_takes_what_the_cluster_records(servers: Servers, words: tuple[str, ...]) -> None:
    assert call(servers, *words).exit_code == 2


def test_a_snapshot_must_be_named(servers: Servers) -> None:
    result = call(servers)
    assert (result.exit_code, "name a snapshot" in result.output) == (2, True)


SSH = """#!/bin/sh
script="$(cat)"
echo "$* ${#script}" >> "$LOG"
printf 'Done.\\033[2J\\n'
case "$(wc -l < "$LOG")" in $BROKEN) exit 255;; esac
"""


@pytest.mark.parametrize("broken", range(1, 10))
def test_what_is_printed_ends_at_the_first_failure(
    servers: Servers, ssh_log: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    """All of it runs if it is pasted into a shell at once."""
    printed = call(servers, NAME, "--yes").stdout
    monkeypatch.setenv("BROKEN", str(broken))
    result = subprocess.run(["sh"], input=printed[printed.index("(set -e") :], text=True, check=False)
    assert (result.returncode, len(ssh_log.read_text().splitlines())) == (255, broken)


@pytest.fixture
def ssh_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Replace SSH by a program that writes down its arguments."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("BROKEN", "never")
    return tmp_path / "log"


def test_steps_run_by_ssh_in_order(servers: Servers, ssh_log: Path) -> None:
    begun = call(servers, NAME, "--ssh", "--yes")
    assert begun.exit_code == 0, begun.output
    assert "7/9 Restore the snapshot, and start the server: Machine cp-1" in begun.stderr
    assert "caphv etcd restore team/shop --finish" in begun.stderr
    assert "\x1b" not in begun.output
    lines = ssh_log.read_text().splitlines()
    assert len(lines) == 9
    assert all(line.startswith("-a -x ") and "PermitLocalCommand=no" in line for line in lines)
    assert all("BatchMode=yes" in line and "sudo -n sh -s" in line for line in lines)
    assert cluster(servers)["spec"]["paused"] is True


@pytest.mark.parametrize("broken", range(1, 10))
def test_ssh_stops_at_the_first_failure_and_continues(
    servers: Servers, ssh_log: Path, monkeypatch: pytest.MonkeyPatch, broken: int
) -> None:
    monkeypatch.setenv("BROKEN", str(broken))
    begun = call(servers, NAME, "--ssh", "--yes")
    assert (begun.exit_code, len(ssh_log.read_text().splitlines())) == (1, broken)
    # Nothing stops before all machines are as expected.
    has_begun = broken > 3
    assert ("continue with caphv etcd restore team/shop --ssh" in begun.stderr) is has_begun
    assert ("nothing was changed" in begun.stderr) is not has_begun
    assert ("paused" in cluster(servers)["spec"]) is has_begun

    monkeypatch.setenv("BROKEN", "never")
    again = call(servers, *([] if has_begun else [NAME]), "--ssh", "--yes", "-o", "json")
    assert again.exit_code == 0, again.output
    assert len(json.loads(again.stdout)["items"][0]["steps"]) == 9
    assert len(ssh_log.read_text().splitlines()) == broken + 9


def test_an_interruption_says_how_to_continue(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def run_script(user: str, address: str, script: str) -> int:
        calls.append(address)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(ssh, "run_script", run_script)
    result = call(servers, NAME, "--ssh", "--yes")
    assert (result.exit_code, len(calls)) == (1, 4)
    assert "may still run on Machine cp-1" in result.stderr
    assert "continue with caphv etcd restore team/shop --ssh" in result.stderr


def test_nothing_runs_without_consent_or_where_a_step_must_be_done_by_hand(servers: Servers, ssh_log: Path) -> None:
    assert call(servers, NAME, "--ssh").exit_code == 2
    assert call(servers, NAME, "--ssh", "--dry-run").exit_code == 0
    machine = servers.management.find("HarvesterMachine", "cp-3", "team")
    assert machine is not None
    servers.management.put(machine | {"status": {}})
    refused = call(servers, NAME, "--ssh", "--yes", "--force")
    assert (refused.exit_code, "without --ssh" in refused.stderr) == (2, True)
    assert not ssh_log.exists()
    assert "paused" not in cluster(servers)["spec"]

    # One that has begun asks again.
    assert call(servers, NAME, "--yes", "--force").exit_code == 0
    assert call(servers, "--ssh").exit_code == 2
    assert not ssh_log.exists()
