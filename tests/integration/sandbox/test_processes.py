"""Processes and programs of a sandbox."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sandbox.processes import binaries, gobuild
from sandbox.processes import children as processes
from sandbox.processes.children import ProcessError
from tests.support.waiting import until

pytestmark = pytest.mark.integration

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
WITH_CHILD = f"import subprocess, time; subprocess.Popen({SLEEP!r}); print('up', flush=True); time.sleep(60)"


async def never() -> bool:
    return False


def own_timer_slack() -> str:
    return Path("/proc/self/timerslack_ns").read_text().strip()


async def wait_up(process: processes.Process) -> None:
    async def probe() -> bool:
        return "up" in process.log_tail()

    await processes.wait_ready(process, probe, 10)


async def test_children_of_a_killed_parent_are_found_and_stopped(tmp_path: Path) -> None:
    parent = processes.start(tmp_path, "parent", [sys.executable, "-c", WITH_CHILD])
    await wait_up(parent)
    os.kill(parent.pid, signal.SIGKILL)
    (child,) = [process for process in processes.find(tmp_path) if process.pid != parent.pid]
    await processes.stop_all(tmp_path)
    # It may be a zombie until the process that adopted it waits for it.
    assert not processes.Process("child", child.pid, tmp_path).alive
    assert processes.find(tmp_path) == []


async def test_a_killed_process_that_its_parent_does_not_wait_for_has_stopped(tmp_path: Path) -> None:
    parent = processes.start(tmp_path, "parent", [sys.executable, "-c", WITH_CHILD])
    await wait_up(parent)
    (child,) = [process for process in processes.find(tmp_path) if process.pid != parent.pid]
    async with asyncio.timeout(30):
        await processes.stop([child])
    assert child.status() == psutil.STATUS_ZOMBIE
    assert [process.pid for process in processes.find(tmp_path)] == [parent.pid]
    await processes.stop_all(tmp_path)


async def test_processes_of_others_are_never_touched(tmp_path: Path) -> None:
    other = processes.start(tmp_path / "other", "other", SLEEP) if (tmp_path / "other").mkdir() is None else None
    assert other
    mine = processes.start(tmp_path, "mine", SLEEP)
    await processes.stop_all(tmp_path)
    assert not mine.alive
    assert other.alive
    await processes.end(other)


@pytest.mark.skipif(sys.platform != "linux", reason="timers have a slack on Linux only")
@pytest.mark.parametrize("seconds", [0.05, 0.0])
async def test_timers_of_servers_may_be_late_and_those_of_others_may_not(seconds: float, tmp_path: Path) -> None:
    print_slack = "print(open('/proc/self/timerslack_ns').read(), 'up')"
    processes.start(tmp_path, "another", SLEEP, timer_slack=0.1)
    process = processes.start(tmp_path, "server", [sys.executable, "-c", print_slack], timer_slack=seconds)
    try:
        await until(lambda: "up" in process.log_tail())
        assert process.log_tail().split()[0] == ("50000000" if seconds else own_timer_slack())
    finally:
        await processes.stop_all(tmp_path)


async def test_what_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = processes.start(tmp_path, "stubborn", [sys.executable, "-c", STUBBORN])
    await wait_up(process)
    await processes.stop_all(tmp_path, grace=0.2)
    assert not process.alive


def test_a_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    process = processes.start(tmp_path, "failing", [sys.executable, "-c", "raise SystemExit('no such luck')"])
    with pytest.raises(ProcessError, match=r"failing exited during start-up(.|\n)*no such luck"):
        asyncio.run(processes.wait_ready(process, never, 10))


def test_a_start_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    process = processes.start(tmp_path, "slow", SLEEP)
    with pytest.raises(ProcessError, match="slow was not ready after 0 s"):
        asyncio.run(processes.wait_ready(process, never, 0.2))
    asyncio.run(processes.end(process))


def test_a_taken_port_is_recognised(tmp_path: Path) -> None:
    (port,) = processes.free_ports(1)
    script = f"import socket; socket.socket().bind(('127.0.0.1', {port}))"
    with processes.socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        process = processes.start(tmp_path, "late", [sys.executable, "-c", script])
        # A process that has exited may no longer exist, so psutil cannot wait for it.
        deadline = time.monotonic() + 60
        while process.alive and time.monotonic() < deadline:
            time.sleep(0.05)
    # CPython words it like Go but for the capital.
    process.log.write_text(process.log.read_text().lower())
    assert processes.port_was_taken(process)


def program(path: Path, output: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
    return path


def test_programs_are_taken_from_assets_then_path_then_envtest_then_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = program(tmp_path / "assets" / "etcd", "etcd Version: 3.6.1")
    on_path = program(tmp_path / "bin" / "etcd", "etcd Version: 3.5.9")
    cached = program(tmp_path / "cache" / "bin" / f"etcd-{binaries.ETCD.version}", "never asked")
    envtest = program(tmp_path / "kubebuilder-envtest" / "k8s" / "1.36.0-linux-amd64" / "etcd", "etcd Version: 3.6.0")
    monkeypatch.setenv("CAPHV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{on_path.parent}:/usr/bin:/bin")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(assets.parent))
    assert binaries.binary("etcd") == assets
    monkeypatch.delenv("KUBEBUILDER_ASSETS")
    assert binaries.binary("etcd") == on_path
    on_path.unlink()
    assert binaries.binary("etcd") == envtest
    envtest.unlink()
    assert binaries.binary("etcd") == cached


@pytest.mark.parametrize("version", ["Kubernetes v1.29.4", "nonsense"])
def test_a_program_that_is_too_old_is_named_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str
) -> None:
    old = program(tmp_path / "assets" / "kube-apiserver", version)
    cached = program(tmp_path / "cache" / "bin" / f"kube-apiserver-{binaries.KUBE_APISERVER.version}", "never asked")
    monkeypatch.setenv("CAPHV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(old.parent))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert binaries.binary("kube-apiserver") == cached
    assert str(old) in caplog.text
    assert "1.33 or newer" in caplog.text


FAKE_GO = """\
#!/bin/sh
case "$1 $2" in
  "version "*) echo "go version go1.26.0 linux/amd64" ;;
  "mod download") echo '{"GoMod": "/dev/null", "Dir": "/"}' ;;
  "list -deps") echo one; echo two ;;
  "build "*)
    echo started >> "$BUILDS"; sleep 0.5; echo "one" >&2
    [ -n "$FAIL" ] && echo "disk is full" >&2 && exit 1
    for word in "$@"; do case "$word" in -o=*) echo program > "${word#-o=}" ;; esac; done ;;
esac
"""


@pytest.fixture
def fake_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A go command that takes half a second; answers the file with a line for each build."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(FAKE_GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    monkeypatch.setenv("CAPHV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("BUILDS", str(tmp_path / "builds"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path / "builds"


def test_several_processes_build_once(fake_go: Path) -> None:
    script = "from sandbox.processes import binaries; print(binaries.binary('etcd').read_text())"
    command = [sys.executable, "-c", script]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [child.communicate()[0].strip() for child in children] == ["program"] * 3
    assert fake_go.read_text().splitlines() == ["started"]


def test_programs_are_built_at_the_same_time_and_one_failure_ends_all(
    fake_go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The core's module would have to be real.
    monkeypatch.delitem(binaries.RECIPES, "cluster-api-core")
    monkeypatch.setattr(binaries, "cluster_api_manifests", lambda _report, **_core: None)
    reported: list[tuple[str, str]] = []
    binaries.prepare(lambda name, step, _done, _total: reported.append((name, step)))
    assert fake_go.read_text().splitlines() == ["started"] * 2
    assert {path.name for path in (tmp_path / "cache" / "bin").iterdir() if not path.name.startswith(".")} == {
        f"etcd-{binaries.ETCD.version}",
        f"kube-apiserver-{binaries.KUBE_APISERVER.version}",
    }
    first_built = next(number for number, (_, step) in enumerate(reported) if step == "built")
    assert {name for name, _ in reported[:first_built]} >= {"etcd", "kube-apiserver"}
    for path in (tmp_path / "cache" / "bin").iterdir():
        path.unlink()
    monkeypatch.setenv("FAIL", "yes")
    with pytest.raises(gobuild.BuildError, match="disk is full"):
        binaries.prepare()


def test_a_failed_build_shows_output_and_remedy_and_leaves_nothing(
    fake_go: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIL", "yes")
    with pytest.raises(gobuild.BuildError, match=r"disk is full(.|\n)*KUBEBUILDER_ASSETS"):
        binaries.binary("etcd")
    assert [path.name for path in (tmp_path / "cache" / "bin").iterdir() if not path.name.endswith(".lock")] == []
    monkeypatch.delenv("FAIL")
    assert binaries.binary("etcd").read_text() == "program\n"
    assert len(fake_go.read_text().splitlines()) == 2
