"""Order and contents of the steps of a restore."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.object import Obj
from operations.change.changes import ChangeError
from tests.support.clusters import Builder
from tests.support.restoreguest import RestoreGuest
from tests.support.restoresteps import distribution, plan, three

pytestmark = pytest.mark.unit

DELETED = "2026-01-01T12:00:00Z"


# Order


def test_all_servers_stop_first_and_the_others_join_last() -> None:
    result = plan(three())
    assert [(step.title.split()[0], step.machine) for step in result] == [
        *(("Stop", name) for name in ("cp-2", "cp-1", "cp-3")),
        ("Restore", "cp-2"),
        *(("Set", name) for name in ("cp-1", "cp-3")),
    ]
    # Nothing is deleted: the snapshots of a server are in the same folder. Older killall scripts delete disks.
    assert not any(word in step.script for step in result for word in ("rm -r", "killall"))


def test_a_user_for_ssh_cannot_be_an_option() -> None:
    users = {step.machine: step.user for step in plan(three())}
    assert (users["cp-2"], users["cp-3"]) == ("sles", "")


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
    assert (result[2].title.split()[0], result[2].script, result[2].login) == ("Shut", "", "")
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


# Input


def test_an_rke2controlplane_that_cannot_be_read_is_no_reason_to_guess() -> None:
    with pytest.raises(ChangeError, match="cannot be read"):
        plan(three(), control_plane=None)
    with pytest.raises(ChangeError, match="KubeadmControlPlane takes no snapshots"):
        distribution("KubeadmControlPlane")
    with pytest.raises(ChangeError, match="Rancher provisions"):
        distribution("RKEControlPlane")


@pytest.mark.parametrize("folder", ["relative", "/a b", "/a;b", "/a/../b", "/a$(b)", "/", 5])
def test_a_data_folder_cannot_act_as_a_command(folder: object) -> None:
    with pytest.raises(ChangeError, match="dataDir"):
        plan(three(), control_plane={"spec": {"agentConfig": {"dataDir": folder}}})


def test_servers_of_k3s_join_at_its_port() -> None:
    def k3s(port: str) -> Obj:
        return {"spec": {"kthreesConfigSpec": {"serverConfig": {"httpsListenPort": port}}}}

    assert distribution("KThreesControlPlane", None).join_port == 6443
    assert distribution("KThreesControlPlane", k3s("7443")).join_port == 7443
    with pytest.raises(ChangeError, match="is not a port"):
        distribution("KThreesControlPlane", k3s("1; reboot"))


@pytest.mark.parametrize(("snapshot", "s3"), [("", True), ("", False), ("a/b", True), ("../x", False), ("x", False)])
def test_a_reset_always_has_a_file(snapshot: str, s3: bool) -> None:
    """Without one, it keeps the old database."""
    with pytest.raises(ChangeError, match="of a file"):
        plan(three(), snapshot=snapshot, s3=s3)


@pytest.mark.parametrize(("snapshot", "s3"), [("${x}", True), ("$x", True), ("/a/$$", False)])
def test_a_reset_never_loses_its_file_to_systemd(snapshot: str, s3: bool) -> None:
    """It expands variables in arguments of units, which no quotes of a shell prevent."""
    with pytest.raises(ChangeError, match=r"contains \$: copy the snapshot"):
        plan(three(), snapshot=snapshot, s3=s3)


@given(st.text(min_size=1))
def test_a_name_of_a_snapshot_cannot_act_as_a_command(name: str) -> None:
    """It comes from the workload cluster."""
    try:
        restore = plan(Builder(), "cp-1", name)[1]
    except ChangeError:
        return
    (line,) = (line for line in restore.script.splitlines() if line.startswith("snapshot="))
    assert shlex.split(line) == [f"snapshot={name}"]


@given(st.text() | st.text().map("fd00::1%{}".format))
def test_an_address_cannot_act_as_a_command(text: str) -> None:
    """It comes from the guest's agent, and other servers join it."""
    builder = three()
    builder.harvester_machines["cp-2"]["status"]["addresses"] = [{"type": "InternalIP", "address": text}]
    try:
        result = plan(builder)
    except ChangeError:
        return
    (line,) = (line for line in result[4].script.splitlines() if line.startswith("url="))
    assert set(shlex.split(line)[0].removeprefix("url=https:")) <= set("0123456789abcdef.:[]/")
    assert set(result[3].address) <= set("0123456789abcdef.:")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.0.1", "::1", "0.0.0.0", "224.0.0.1", "fe80::1", "fd00::1%x"])
def test_a_step_never_runs_on_another_computer(address: str) -> None:
    """The address 127.0.0.1 is that of the user's own."""
    builder = three()
    builder.harvester_machines["cp-3"]["status"]["addresses"] = [{"type": "InternalIP", "address": address}]
    assert (plan(builder)[2].address, plan(builder)[2].script) == ("", "")


def test_two_machines_with_one_address_are_refused() -> None:
    builder = three()
    for name in ("cp-1", "cp-3"):
        builder.harvester_machines[name]["status"]["addresses"] = [{"type": "InternalIP", "address": "10.0.0.9"}]
    with pytest.raises(ChangeError, match=r"cp-1 and cp-3 report address 10\.0\.0\.9"):
        plan(builder)


def test_a_server_of_ipv6_is_named_once(tmp_path: Path) -> None:
    builder, guest = three(), RestoreGuest(tmp_path, "server: https://gone:9345\n", name="cp-1")
    builder.harvester_machines["cp-2"]["status"]["addresses"] = [{"type": "InternalIP", "address": "fd00::1"}]
    result = plan(builder, control_plane=guest.control_plane)
    assert guest.run(result[1].script).returncode == 0
    for _ in range(2):
        assert guest.run(result[4].script).returncode == 0
    assert guest.config.read_text() == "#server: https://gone:9345\nserver: https://[fd00::1]:9345\n"


def test_an_address_of_ipv6_has_brackets() -> None:
    builder = three()
    builder.harvester_machines["cp-2"]["status"]["addresses"] = [{"type": "InternalIP", "address": "fd00::1"}]
    assert "url='https://[fd00::1]:9345'" in plan(builder)[4].script


@pytest.mark.parametrize("kind", ["RKE2ControlPlane", "KThreesControlPlane"])
def test_scripts_are_valid_for_a_shell(kind: str) -> None:
    for step in plan(three(), "cp-1", "/backup/a'b", s3=False, kind=kind):
        subprocess.run(["sh", "-n"], input=step.script, text=True, check=True)
