"""Commands for the servers: the printed scripts run in a shell with programs that only take notes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Key, Obj
from operations.change.changes import ChangeError
from operations.change.clusterparts import cluster_and_parts
from operations.change.etcdsteps import Distribution, Step, distribution_of, steps
from tests.support.clusters import Builder

pytestmark = pytest.mark.unit

NAME = "etcd-snapshot-cp-2-12"
DELETED = "2026-01-01T12:00:00Z"
RKE2: Obj = {"spec": {}}
# Each program writes its name and arguments, and fails if it is the one that should.
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
case "$(basename "$0") $*" in $BROKEN) exit 1;; esac
"""


def three() -> Builder:
    return Builder(control_planes=3, workers=1)


def distribution(kind: str = "RKE2ControlPlane", control_plane: Obj | None = RKE2) -> Distribution:
    return distribution_of({"spec": {"controlPlaneRef": {"kind": kind}}}, control_plane)


def plan(
    builder: Builder,
    machine: str = "cp-2",
    snapshot: str = NAME,
    *,
    s3: bool = True,
    kind: str = "RKE2ControlPlane",
    control_plane: Obj | None = RKE2,
) -> tuple[Step, ...]:
    _, _, cluster = cluster_and_parts(builder.objects(), Key("team", "shop"))
    users = {"cp-2": "sles", "cp-3": "-oProxyCommand=x"}
    return steps(cluster, distribution(kind, control_plane), snapshot, machine, users, s3=s3)


class Guest:
    """A server with its files in a folder, where only the programs of the distribution are replaced."""

    def __init__(self, folder: Path, config: str = "token: x\n") -> None:
        self.folder = folder
        self.config = folder / "config.yaml"
        self.config.write_text(config)
        self.log = folder / "log"
        self.log.touch()
        self.database = folder / "data" / "server" / "db"
        (self.database / "etcd").mkdir(parents=True)
        programs = folder / "bin"
        programs.mkdir()
        for name in ("systemctl", "rke2"):
            (programs / name).write_text(PROGRAM)
            (programs / name).chmod(0o755)
        (programs / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
        (programs / "sudo").chmod(0o755)

    @property
    def control_plane(self) -> Obj:
        return {"spec": {"agentConfig": {"dataDir": str(self.folder / "data")}}}

    def run(self, step: Step, broken: str = "nothing") -> int:
        """Paste the commands of a step into a shell, and return its status."""
        script = "\n".join(step.commands).replace("/etc/rancher/rke2/config.yaml", str(self.config))
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        environment = {"PATH": path, "LOG": str(self.log), "BROKEN": broken}
        return subprocess.run(["/bin/sh", "-c", script], env=environment, check=False).returncode

    @property
    def has_started(self) -> bool:
        return "systemctl start rke2-server" in self.log.read_text().splitlines()

    @property
    def joined(self) -> list[str]:
        return [line for line in self.config.read_text().splitlines() if line.startswith("server:")]


def test_all_servers_stop_first_and_the_others_join_last() -> None:
    stop, *_ = result = plan(three())
    assert [(step.title.split()[0], step.machine) for step in result] == [
        *(("Stop", name) for name in ("cp-2", "cp-1", "cp-3")),
        ("Restore", "cp-2"),
        *(("Set", name) for name in ("cp-1", "cp-3")),
    ]
    assert stop.commands == ("sudo systemctl stop rke2-server",)
    # Nothing is deleted: the snapshots of a server are in the same folder.
    assert not any(word in command for step in result for command in step.commands for word in ("rm ", "killall"))


def test_a_user_for_ssh_cannot_be_an_option() -> None:
    logins = {step.machine: step.login for step in plan(three())}
    assert logins["cp-2"].startswith("sles@10.0.0.")
    assert logins["cp-3"].startswith("10.0.0.")


def test_servers_that_are_being_deleted_stop_and_do_not_join() -> None:
    """They are a quorum of the old cluster while they run."""
    builder = three()
    for name in ("cp-1", "cp-3"):
        builder.machines[name]["metadata"]["deletionTimestamp"] = DELETED
    result = plan(builder)
    assert [(step.title.split()[0], step.machine) for step in result] == [
        *(("Stop", name) for name in ("cp-2", "cp-1", "cp-3")),
        ("Restore", "cp-2"),
    ]
    assert "being deleted" in result[1].title


def test_a_server_without_an_address_is_shut_down_and_does_not_join() -> None:
    builder = three()
    builder.harvester_machines["cp-3"]["status"]["addresses"] = []
    result = plan(builder)
    assert result[2] == Step("Shut its VM down in Harvester, and leave it off", "cp-3", "", ())
    assert [step.machine for step in result[3:]] == ["cp-2", "cp-1"]


@pytest.mark.parametrize("fault", ["does not exist", "is being deleted", "has no address"])
def test_without_the_machine_to_restore_on_no_server_loses_its_database(fault: str) -> None:
    builder = three()
    if fault == "does not exist":
        del builder.machines["cp-2"]
    elif fault == "is being deleted":
        builder.machines["cp-2"]["metadata"]["deletionTimestamp"] = DELETED
    else:
        builder.harvester_machines["cp-2"]["status"]["addresses"] = []
    with pytest.raises(ChangeError, match=f"Machine cp-2 {fault}.*--finish --force"):
        plan(builder)


def test_an_rke2controlplane_that_cannot_be_read_is_no_reason_to_guess() -> None:
    with pytest.raises(ChangeError, match="cannot be read"):
        plan(three(), control_plane=None)
    with pytest.raises(ChangeError, match="dataDir"):
        plan(three(), control_plane={"spec": {"agentConfig": {"dataDir": "relative"}}})
    with pytest.raises(ChangeError, match="KubeadmControlPlane takes no snapshots"):
        distribution("KubeadmControlPlane")


@pytest.mark.parametrize(("snapshot", "s3"), [("", True), ("", False), ("a/b", True), ("../x", False), ("x", False)])
def test_a_reset_always_has_a_file(snapshot: str, s3: bool) -> None:
    with pytest.raises(ChangeError, match="of a file"):
        plan(three(), snapshot=snapshot, s3=s3)


def test_k3s_has_other_names_and_a_file_is_not_looked_for_in_the_store() -> None:
    result = plan(Builder(), "cp-1", "/backup/db", s3=False, kind="KThreesControlPlane", control_plane=None)
    text = "\n".join(command for step in result for command in step.commands)
    assert "k3s server --cluster-reset --etcd-s3=false --cluster-reset-restore-path=/backup/db &&" in text
    assert "sudo test -s /backup/db &&" in text
    assert "rke2-server" not in text
    assert "systemctl stop k3s" in text


@given(st.text(min_size=1))
def test_a_name_of_a_snapshot_cannot_act_as_a_command(name: str) -> None:
    """It comes from the workload cluster."""
    try:
        restore = plan(Builder(), "cp-1", name)[1]
    except ChangeError:
        return
    (reset,) = (command for command in restore.commands if "--cluster-reset" in command)
    assert shlex.split(reset)[-2:] == [f"--cluster-reset-restore-path={name}", "&&"]


@pytest.mark.parametrize("config", ["token: x\n", "token: x", "server: https://gone:9345\ntoken: x\n", "server: a\n"])
def test_a_server_that_joins_names_the_restored_one_which_names_none(tmp_path: Path, config: str) -> None:
    guest = Guest(tmp_path, config)
    result = plan(three(), control_plane=guest.control_plane)
    (address,) = {step.login.partition("@")[2] for step in result if step.machine == "cp-2"}

    # Again after an interruption, too.
    for _ in range(2):
        assert guest.run(result[3]) == 0
        assert guest.joined == []
    for count in (1, 2):
        (guest.database / "etcd").mkdir(parents=True, exist_ok=True)
        assert guest.run(result[4]) == 0
        assert guest.joined == [f"server: https://{address}:9345"]
        assert len(list(guest.database.parent.glob("db.before-restore-*"))) >= 1, count
    assert guest.has_started


def test_an_address_of_ipv6_has_brackets() -> None:
    builder = three()
    builder.harvester_machines["cp-2"]["status"]["addresses"] = [{"type": "InternalIP", "address": "fd00::1"}]
    assert "server: https://[fd00::1]:9345" in "\n".join(plan(builder)[4].commands)


@pytest.mark.parametrize("broken", ["rke2*", "systemctl?stop*"])
def test_a_server_that_was_not_restored_does_not_start(tmp_path: Path, broken: str) -> None:
    guest = Guest(tmp_path)
    assert guest.run(plan(three(), control_plane=guest.control_plane)[3], broken) != 0
    assert not guest.has_started


def test_a_file_that_is_not_there_is_not_restored(tmp_path: Path) -> None:
    guest = Guest(tmp_path)
    result = plan(three(), snapshot=str(tmp_path / "missing"), s3=False, control_plane=guest.control_plane)
    assert guest.run(result[3]) != 0
    assert "rke2" not in guest.log.read_text().replace("rke2-server", "")


@pytest.mark.parametrize("fault", ["database is elsewhere", "does not stop", "names another server"])
def test_a_server_that_still_has_its_old_database_does_not_start(tmp_path: Path, fault: str) -> None:
    """Two of them are a quorum of the old cluster, next to the restored one."""
    guest = Guest(tmp_path)
    step = plan(three(), control_plane=guest.control_plane)[4]
    if fault == "database is elsewhere":
        (guest.database / "etcd").rename(tmp_path / "elsewhere")
    elif fault == "names another server":
        (tmp_path / "config.yaml.d").mkdir()
        (tmp_path / "config.yaml.d" / "50-own.yaml").write_text("server: https://other:9345\n")
    assert guest.run(step, "systemctl?stop*" if fault == "does not stop" else "nothing") != 0
    assert not guest.has_started


def test_steps_are_data() -> None:
    """Programs join the lines of a step."""
    for step in plan(three()):
        *most, last = step.commands
        assert all(command.endswith(" &&") for command in most)
        assert not last.endswith("&&")
        assert json.dumps(step.commands)
