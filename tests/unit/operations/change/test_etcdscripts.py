"""Scripts for the servers: they run in a real shell, with programs that only take notes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from operations.change.changes import ChangeError
from sandbox.processes import pki
from tests.support.clusters import Builder
from tests.support.restoreguest import AUTHORITY, RestoreGuest
from tests.support.restoresteps import ID, plan, steps_on, three

pytestmark = pytest.mark.unit


# A server that is restored, and one that joins


@pytest.mark.parametrize(
    "config",
    [
        "token: x\n",
        "token: x",
        "server: https://gone:9345\ntoken: x\n",
        "server: a\n",
        "'server' : a\n",
        '"server": a\n',
    ],
)
def test_a_restore_from_its_begin_to_its_end(tmp_path: Path, config: str) -> None:
    restored = RestoreGuest(tmp_path / "restored", config)
    other = RestoreGuest(tmp_path / "other", config, name="cp-1")
    stop, restore, _, _ = steps_on(restored)
    _, _, stop_other, join = steps_on(other)

    for guest, step in ((restored, stop), (other, stop_other)):
        assert guest.run(step.script).returncode == 0
        # A VM that restarts now starts no server.
        assert not any(guest.has(name) for name in ("active", "enabled", "pods"))
        assert [file.name for file in guest.manifests.iterdir()] == ["own.yaml"]
    assert restored.run(restore.script).returncode == 0
    assert (restored.content, restored.joined) == ("restored", [])
    assert other.run(join.script).returncode == 0
    assert other.joined == [f"server: https://{restore.address}:9345"]
    keys = [line for line in restored.config.read_text().splitlines() if "server" in line]
    assert all(line.startswith("#") for line in keys)
    aside = other.database.with_name(f"db.before-restore-{ID}")
    assert (other.content, (aside / "etcd" / "content").read_text()) == ("", "old\n")
    for guest in (restored, other):
        assert guest.has("active")
        assert guest.has("enabled")


def test_steps_that_were_complete_do_nothing_when_they_are_repeated(tmp_path: Path) -> None:
    restored, other = RestoreGuest(tmp_path / "restored"), RestoreGuest(tmp_path / "other", name="cp-1")
    stop, restore, _, _ = steps_on(restored)
    _, _, stop_other, join = steps_on(other)
    for _ in range(2):
        for guest, step in ((restored, stop), (other, stop_other), (restored, restore), (other, join)):
            assert guest.run(step.script).returncode == 0
    assert (restored.resets, restored.has("active"), other.has("active")) == (1, True, True)
    assert len(list(other.database.parent.glob("db.before-restore-*"))) == 1
    assert other.config.read_text().count("server:") == 1
    # Servers that run again are not stopped.
    assert (restored.log.count("disable --now"), other.log.count("disable --now")) == (1, 1)


def test_another_restore_of_the_same_servers_is_a_new_one(tmp_path: Path) -> None:
    restored = RestoreGuest(tmp_path)
    for identity in (ID, "00000001"):
        stop, restore, _, _ = steps_on(restored, identity=identity)
        assert restored.run(stop.script).returncode == 0
        assert not restored.has("active")
        assert restored.run(restore.script).returncode == 0
    assert restored.resets == 2


@pytest.mark.parametrize(
    "broken",
    [
        *("systemctl?disable*", "rke2*", "systemd-run?--quiet*", "systemctl?enable*", "systemctl?start*"),
        *("sed*", "touch*", "mv*", "mkdir*"),
    ],
)
def test_a_restore_that_was_interrupted_at_any_step_continues(tmp_path: Path, broken: str) -> None:
    """The steps are run until the first failure, and then all again."""
    restored, other = RestoreGuest(tmp_path / "restored"), RestoreGuest(tmp_path / "other", name="cp-1")
    stop, restore, _, _ = steps_on(restored)
    _, _, stop_other, join = steps_on(other)
    tool = broken.rstrip("*").replace("?", " ")
    if " " not in tool and tool not in ("rke2", "systemd-run"):
        for guest in (restored, other):
            fail_once(guest, tool)

    order = ((restored, stop), (other, stop_other), (restored, restore), (other, join))
    for guest, step in order:
        if guest.run(step.script, broken).returncode:
            # No server runs with the old database next to a restored one.
            assert restored.content == "old" or not other.has("active") or other.content == ""
            break
    for attempt in range(3):
        if all(guest.run(step.script).returncode == 0 for guest, step in order):
            break
        assert attempt < 2
    assert (restored.content, other.content) == ("restored", "")
    aside = other.database.with_name(f"db.before-restore-{ID}")
    assert (aside / "etcd" / "content").read_text() == "old\n"
    assert restored.has("active")
    assert other.has("active")


def fail_once(guest: RestoreGuest, tool: str) -> None:
    """Let a tool fail the first time that it is called, as when the VM is stopped at that moment."""
    program = guest.programs / tool
    real = program.resolve()
    program.unlink()
    mark = guest.folder / f"{tool}-failed"
    program.write_text(f'#!/bin/sh\ntest -e {mark} && exec {real} "$@"\n: > {mark}\nexit 1\n')
    program.chmod(0o755)


def test_a_server_that_was_not_restored_does_not_start(tmp_path: Path) -> None:
    guest = RestoreGuest(tmp_path)
    stop, restore, _, _ = steps_on(guest)
    assert guest.run(stop.script).returncode == 0
    result = guest.run(restore.script, "rke2*")
    assert (result.returncode, f"journalctl -u caphv-etcd-restore-{ID}-" in result.stderr) == (1, True)
    assert not guest.has("active")


def test_a_reset_has_the_environment_of_the_service(tmp_path: Path) -> None:
    """The paths differ between RPM and archive; that of the RPM turns SELinux on."""
    guest = RestoreGuest(tmp_path)
    stop, restore, _, _ = steps_on(guest)
    assert guest.run(stop.script).returncode == 0
    assert guest.run(restore.script).returncode == 0
    (reset,) = (line for line in guest.log.splitlines() if line.startswith("systemd-run --quiet"))
    assert f"-p EnvironmentFile=-{tmp_path}/none -p EnvironmentFile=-{guest.environment} " in reset


def test_each_attempt_has_a_unit_of_its_own(tmp_path: Path) -> None:
    """A unit exists as long as a process that it started, for example one of containerd."""
    guest = RestoreGuest(tmp_path)
    (guest.programs / "date").unlink()
    (guest.programs / "date").write_text('#!/bin/sh\nwc -l <"$STATE/log"\n')
    (guest.programs / "date").chmod(0o755)
    stop, restore, _, _ = steps_on(guest)
    assert guest.run(stop.script).returncode == 0
    assert guest.run(restore.script, "rke2*").returncode == 1
    assert guest.run(restore.script).returncode == 0
    units = [word for word in guest.log.split() if word.startswith("--unit=")]
    assert len(units) == len(set(units)) == 2


@pytest.mark.parametrize("flag", [False, True])
def test_a_reset_that_ended_early_is_repeated(tmp_path: Path, flag: bool) -> None:
    """The old database is there, and perhaps the mark of an older reset."""
    guest = RestoreGuest(tmp_path, programs={"rke2": ""})
    if flag:
        (guest.database / "reset-flag").touch()
    stop, restore, _, _ = steps_on(guest)
    assert guest.run(stop.script).returncode == 0
    for attempt in (1, 2):
        result = guest.run(restore.script)
        assert (result.returncode, "ended early" in result.stderr, guest.has("active")) == (1, True, False)
        assert guest.resets == attempt


@pytest.mark.parametrize("state", ["active", "activating", "deactivating"])
@pytest.mark.parametrize("which", [1, 3], ids=["restore", "join"])
def test_a_server_that_runs_is_neither_restored_nor_joined(tmp_path: Path, which: int, state: str) -> None:
    """Two with the old database are a quorum of the old cluster, next to the restored one."""
    guest = RestoreGuest(tmp_path, name="cp-2" if which == 1 else "cp-1")
    (guest.state / "active").write_text(f"{state}\n")
    result = guest.run(steps_on(guest)[which].script)
    assert (result.returncode, "repeat the step that stops it" in result.stderr) == (1, True)
    assert (guest.content, guest.resets) == ("old", 0)


def test_a_second_reset_of_a_server_is_refused(tmp_path: Path) -> None:
    """As by a second operator, or where the block is pasted alone."""
    guest = RestoreGuest(tmp_path, name="cp-2")
    stop, restore, _, _ = steps_on(guest)
    assert guest.run(stop.script).returncode == 0
    (guest.state / "reset-active").touch()
    result = guest.run(restore.script)
    assert (result.returncode, "a reset runs on this machine" in result.stderr, guest.resets) == (1, True, 0)


def test_pods_that_ignore_a_signal_are_killed(tmp_path: Path) -> None:
    guest = RestoreGuest(tmp_path)
    stop, _, _, _ = steps_on(guest)
    assert guest.run(stop.script, mortal="-KILL").returncode == 0
    assert not guest.has("pods")


@pytest.mark.parametrize("fault", ["Pods do not end", "etcd listens"])
def test_a_server_whose_etcd_runs_is_not_stopped(tmp_path: Path, fault: str) -> None:
    guest = RestoreGuest(tmp_path)
    stop, restore, _, _ = steps_on(guest)
    if fault == "etcd listens":
        guest.sockets.write_text("   1: 0100007F:094B 00000000:0000 0A 00000000:00000000 00\n")
    assert guest.run(stop.script, mortal="never" if fault == "Pods do not end" else "-TERM").returncode == 1
    if fault == "etcd listens":
        assert guest.run(restore.script).returncode == 1
        assert guest.resets == 0


@pytest.mark.parametrize("which", range(4), ids=["stop", "restore", "stop another", "join"])
@pytest.mark.parametrize("fault", ["host name", "authority"])
def test_no_step_acts_on_the_wrong_machine(tmp_path: Path, which: int, fault: str) -> None:
    """An address of a VM that is off may be that of a server of another cluster."""
    guest = RestoreGuest(tmp_path, name="cp-2" if which < 2 else "cp-1")
    if which % 2:
        (guest.state / "active").write_text("inactive\n")
    if fault == "host name":
        guest.name = "cp-22"
    else:
        guest.authority.write_text(pki.CA.create("test").certificate.decode())
    before = guest.config.read_text(), guest.content, guest.has("pods"), (guest.state / "active").read_text()
    assert guest.run(steps_on(guest)[which].script).returncode == 1
    assert (guest.config.read_text(), guest.content, guest.has("pods"), (guest.state / "active").read_text()) == before
    assert not list(guest.database.parent.glob("db.*"))


@pytest.mark.parametrize("name", ["cp-2", "cp-2.example.com"])
def test_a_machine_may_have_a_domain(tmp_path: Path, name: str) -> None:
    guest = RestoreGuest(tmp_path, name=name)
    guest.authority.write_text("-----x-----\n" + AUTHORITY.replace("\n", "\r\n"))
    assert guest.run(steps_on(guest)[0].script).returncode == 0


@pytest.mark.parametrize("authority", ["", "x", "-----BEGIN CERTIFICATE-----\n$(reboot)\n-----END CERTIFICATE-----"])
def test_without_the_authority_of_the_cluster_nothing_is_planned(authority: str) -> None:
    with pytest.raises(ChangeError, match="has no CA"):
        plan(three(), authority=authority)


@pytest.mark.parametrize("answer", [None, "other"])
def test_without_a_restored_server_no_other_one_loses_its_database(tmp_path: Path, answer: str | None) -> None:
    """All scripts that are printed run, whatever failed before, if they are pasted at once."""
    restored, other = RestoreGuest(tmp_path / "restored"), RestoreGuest(tmp_path / "other", name="cp-1")
    stop, restore, _, _ = steps_on(restored)
    _, _, stop_other, join = steps_on(other)
    assert restored.run(stop.script).returncode == 0
    assert other.run(stop_other.script).returncode == 0
    assert restored.run(restore.script, "rke2*").returncode == 1
    other.cacerts = tmp_path / "cacerts"
    if answer:
        other.cacerts.write_bytes(pki.CA.create("test").certificate)

    result = other.run(join.script)
    assert (result.returncode, "restore it first" in result.stderr) == (1, True)
    assert (other.content, other.joined, other.has("active")) == ("old", [], False)
    other.cacerts = other.authority
    assert other.run(join.script).returncode == 0


def test_a_machine_that_never_joined_is_in_nobodys_way(tmp_path: Path) -> None:
    """Quorum is often lost while a new machine is made."""
    builder = three()
    for name in ("cp-1", "cp-3"):
        builder.machines[name]["status"].pop("nodeRef")
    new = RestoreGuest(tmp_path / "new", name="cp-1")
    shutil.rmtree(new.data / "server")
    (new.state / "pods").unlink()
    bare = RestoreGuest(tmp_path / "bare", name="cp-3")
    shutil.rmtree(bare.data)
    for tool in ("rke2", "flock"):
        (bare.programs / tool).unlink()

    data = new.control_plane
    for index, guest, name in ((1, new, "cp-1"), (2, bare, "cp-3")):
        data = guest.control_plane
        check = plan(builder, control_plane=data, checks=True)[index]
        assert check.machine == name
        assert guest.run(check.script).returncode == 0
        assert guest.has("active")
        _, *stops, _, join, last = plan(builder, control_plane=data)
        for _ in range(2):
            assert guest.run(stops[index - 1].script).returncode == 0
            assert not guest.has("active")
            assert not guest.has("enabled")
        new.cacerts = tmp_path / "cacerts"
        new.cacerts.write_text(AUTHORITY)
        result = guest.run((join, last)[index - 1].script)
        assert (result.returncode, guest.has("active")) == (0, guest is new), result.stderr
    assert new.joined == ["server: https://10.0.0.106:9345"]

    # That of a machine with a Node must be there.
    guest = RestoreGuest(tmp_path / "moved", name="cp-1")
    shutil.rmtree(guest.data / "server")
    assert guest.run(plan(three(), control_plane=guest.control_plane)[1].script).returncode == 1
    assert guest.has("active")


REFUSALS = {
    "host name": "this is cp-7, not cp-2",
    "authority": "a server of another cluster",
    "snapshot": "the snapshot is not there",
    "data folder": "is not the data folder of rke2",
    "mount of etcd": "etcd is a mount point",
    "mount of db": "db is a mount point",
    "config.yaml.d": "names the server to join",
    "environment": "RKE2_URL names the server to join",
    "tool": "rke2 is not installed",
    "lock": "another step runs",
    "reset": "a reset runs",
}


def test_a_check_changes_nothing(tmp_path: Path) -> None:
    for name, index in (("cp-2", 0), ("cp-1", 1)):
        guest = RestoreGuest(tmp_path / name, "server: https://gone:9345\n", name=name)
        check = plan(three(), control_plane=guest.control_plane, checks=True)[index]
        before = sorted((str(file), file.is_file() and file.read_text()) for file in guest.data.rglob("*"))
        assert guest.run(check.script).returncode == 0
        assert before == sorted((str(file), file.is_file() and file.read_text()) for file in guest.data.rglob("*"))
        assert (guest.has("active"), guest.has("pods"), guest.has("enabled")) == (True, True, True)
        assert guest.joined == ["server: https://gone:9345"]


@pytest.mark.parametrize("fault", REFUSALS)
@pytest.mark.parametrize("checks", [True, False])
def test_what_cannot_be_restored_is_refused_before_a_server_stops(tmp_path: Path, fault: str, checks: bool) -> None:
    guest = RestoreGuest(tmp_path)
    snapshot = str(tmp_path / "snapshot")
    result = plan(three(), "cp-2", snapshot, s3=False, control_plane=guest.control_plane, checks=checks)
    if fault != "snapshot":
        Path(snapshot).write_text("x")
    if fault == "data folder":
        guest.authority.unlink()
    elif fault == "host name":
        guest.name = "cp-7"
    elif fault == "authority":
        guest.authority.write_text(pki.CA.create("test").certificate.decode())
    elif fault.startswith("mount"):
        folder = guest.database / "etcd" if fault.endswith("etcd") else guest.database
        guest.mounts.write_text(f"/dev/vdb {folder.resolve()} ext4 rw 0 0\n")
    elif fault == "config.yaml.d":
        (tmp_path / "config.yaml.d").mkdir()
        (tmp_path / "config.yaml.d" / "50-own.yaml").write_text('"server": https://other:9345\n')
    elif fault == "environment":
        guest.environment.write_text("RKE2_URL=https://other:9345\n")
    elif fault == "tool":
        (guest.programs / "rke2").unlink()
    elif fault == "reset":
        (guest.state / "reset-active").touch()

    if fault == "lock":
        with subprocess.Popen(["flock", str(tmp_path / "lock"), "sleep", "60"]) as holder:
            while not (tmp_path / "lock").exists() or not is_locked(tmp_path / "lock"):
                pass
            answer = guest.run(result[0].script)
            holder.kill()
    else:
        answer = guest.run(result[0].script)
    assert (answer.returncode, REFUSALS[fault] in answer.stderr) == (1, True), answer.stderr
    assert guest.has("active")
    assert guest.has("pods")


def is_locked(file: Path) -> bool:
    return subprocess.run(["flock", "-n", str(file), "true"], check=False).returncode != 0


def test_a_script_that_arrives_in_part_does_nothing(tmp_path: Path) -> None:
    guest = RestoreGuest(tmp_path)
    stop, _, _, _ = steps_on(guest)
    guest.run(stop.script[: -len("main </dev/null")])
    guest.run(stop.script[: len(stop.script) // 2])
    assert guest.log == ""
    assert guest.has("active")


def test_k3s_has_other_names_and_a_file_is_not_looked_for_in_the_store(tmp_path: Path) -> None:
    guest = RestoreGuest(tmp_path, program="k3s", name="cp-1")
    (tmp_path / "db").write_text("x")
    snapshot = str(tmp_path / "db")
    result = plan(Builder(), "cp-1", snapshot, s3=False, kind="KThreesControlPlane", control_plane=None)
    (guest.state / "pods").unlink()  # it has none
    for step in result:
        assert guest.run(step.script).returncode == 0
    assert f"k3s server --cluster-reset --etcd-s3=false --cluster-reset-restore-path={snapshot}\n" in guest.log
    assert "systemctl disable --now k3s\n" in guest.log
    assert "pkill" not in guest.log
    assert (guest.content, guest.has("active")) == ("restored", True)
    assert "https://" not in "".join(step.script for step in result)
