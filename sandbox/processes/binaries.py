"""The real programs of a sandbox: from the machine, or built once into a cache.

A program is looked up in the folder `KUBEBUILDER_ASSETS`, in `PATH`, in the folders of
setup-envtest and in the cache, in this order. A missing program is built from its Go module into
the cache.
"""

import contextlib
import fcntl
import functools
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from sandbox.processes import gobuild
from sandbox.processes.clusterapi import (
    CLUSTER_API_CORE,
    IMPATIENT_CORE,
    KUBEADM,
    OPERATOR,
    OTHER_CORES,
    kubeadm_of,
)
from sandbox.processes.gobuild import Recipe, Report

log = logging.getLogger(__name__)

_VERSION = "k8s.io/component-base/version"
KUBE_APISERVER = Recipe(
    name="kube-apiserver",
    version="1.36.3",
    module="k8s.io/kubernetes",
    package="k8s.io/kubernetes/cmd/kube-apiserver",
    oldest=(1, 33),
    staging="v0.36.3",
    # Without these variables, its version is v0.0.0, which the Cluster API core refuses.
    variables=(
        f"{_VERSION}.gitVersion=v1.36.3",
        f"{_VERSION}.gitMajor=1",
        f"{_VERSION}.gitMinor=36",
    ),
)
ETCD = Recipe(
    name="etcd",
    version="3.6.16",
    module="go.etcd.io/etcd/server/v3",
    package="go.etcd.io/etcd/server/v3",
    oldest=(3, 5),
)
# The programs that a sandbox runs.
RECIPES = {recipe.name: recipe for recipe in (ETCD, KUBE_APISERVER, CLUSTER_API_CORE)}
# Further programs for tests: the tools with which users install and watch the provider, the
# operator that installs it in Rancher, the controller that installs charts in workload clusters,
# and builds of the core and providers that retry soon.
TOOLS = {
    recipe.name: recipe
    for recipe in (
        IMPATIENT_CORE,
        *kubeadm_of(IMPATIENT_CORE),
        OPERATOR,
        Recipe(
            name="helm",
            version="3.22.0",
            module="helm.sh/helm/v3",
            package="helm.sh/helm/v3/cmd/helm",
            # Without these variables, it renders every chart for Kubernetes 1.20.
            variables=(
                "helm.sh/helm/v3/internal/version.version=v3.22.0",
                "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
                "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
                "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1",
                "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=36",
            ),
        ),
        # Fleet 0.16 and Helm controllers link this version, which is in Fleet's go.mod.
        Recipe(
            name="helm4",
            version="4.2.2",
            module="helm.sh/helm/v4",
            package="helm.sh/helm/v4/cmd/helm",
            variables=(
                "helm.sh/helm/v4/internal/version.version=v4.2.2",
                "helm.sh/helm/v4/pkg/chart/common.k8sVersionMajor=1",
                "helm.sh/helm/v4/pkg/chart/common.k8sVersionMinor=36",
            ),
        ),
        # K3s and RKE2 link this controller.
        Recipe(
            name="helm-controller",
            version="0.17.9",
            module="github.com/k3s-io/helm-controller",
            package="github.com/k3s-io/helm-controller",
        ),
        Recipe(
            name="kubectl",
            version=KUBE_APISERVER.version,
            module=KUBE_APISERVER.module,
            package="k8s.io/kubernetes/cmd/kubectl",
            staging=KUBE_APISERVER.staging,
            variables=KUBE_APISERVER.variables,
        ),
        Recipe(
            name="kustomize",
            version="5.8.1",
            module="sigs.k8s.io/kustomize/kustomize/v5",
            package="sigs.k8s.io/kustomize/kustomize/v5",
        ),
        Recipe(
            name="clusterctl",
            version=CLUSTER_API_CORE.version,
            module=CLUSTER_API_CORE.module,
            package="sigs.k8s.io/cluster-api/cmd/clusterctl",
            variables=(f"sigs.k8s.io/cluster-api/version.gitVersion=v{CLUSTER_API_CORE.version}",),
        ),
        # This is Prometheus 3.13, under the version of its Go module. The tags leave out the
        # discovery of targets in clouds, because the check of rules does not need it.
        Recipe(
            name="promtool",
            version="0.313.5",
            module="github.com/prometheus/prometheus",
            package="github.com/prometheus/prometheus/cmd/promtool",
            tags=("remove_all_sd",),
        ),
    )
}
# The cores that a sandbox can run.
CORES = {recipe.name: recipe for recipe in (CLUSTER_API_CORE, IMPATIENT_CORE)} | OTHER_CORES
LOG_EVERY_SECONDS = 15.0
# A process checks at this interval whether the build of another process has ended.
LOCK_SECONDS = 0.2


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for programs, `CAPHV_CACHE` or else `caphv` in the user's cache folder."""
    if folder := environ.get("CAPHV_CACHE"):
        return Path(folder).absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "caphv"


def plain_report(write: Report | None = None, every: float = LOG_EVERY_SECONDS) -> Report:
    """Return a report for logs and pipes: a line for each new step, and every `every` seconds."""
    steps: dict[str, str] = {}
    due: dict[str, float] = {}
    estimate = Estimate()

    def report(name: str, step: str, done: int, total: int) -> None:
        estimate.add(name, done, total)
        if steps.get(name) != step or time.monotonic() >= due[name]:
            steps[name] = step
            due[name] = time.monotonic() + every
            remaining = estimate.remaining if total else ""
            step_text = f"{step} ({remaining})" if remaining else step
            (write or _log_progress)(name, step_text, done, total)

    return report


class Estimate:
    """An estimate of the time for several builds, from the packages that are compiled so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._done: dict[str, tuple[int, int]] = {}

    def add(self, name: str, done: int, total: int) -> None:
        """Record the progress of one program."""
        if total:
            self._done[name] = (done, total)

    @property
    def remaining(self) -> str:
        """Return the remaining time in words, empty at the end and while it is only a guess."""
        done = sum(done for done, _ in self._done.values())
        total = sum(total for _, total in self._done.values())
        if done < total / 20 or done == total:
            return ""
        minutes = (self._clock() - self._started) * (total - done) / done / 60
        return f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"


def binary(name: str, report: Report | None = None) -> Path:
    """Return the path of a program of the tables above. Builds it if it is missing.

    If several processes call this at once, one builds and the others wait for it. Raises
    BuildError.
    """
    recipe = (RECIPES | TOOLS | OTHER_CORES | KUBEADM)[name]
    if path := _find_on_machine(recipe):
        return path

    path = cached_path(recipe)
    report = report or plain_report()
    with _lock_if_missing(path, recipe.name, report) as is_missing:
        if is_missing:
            # Rename the complete program, so that a build that is killed leaves no broken one.
            with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
                built = Path(scratch) / recipe.name
                gobuild.build(recipe, built, cache_folder(), report)
                built.rename(path)
    return path


def cluster_api_manifests(
    report: Report | None = None, *, program: str = CLUSTER_API_CORE.name
) -> Path:
    """Return a folder with `config/` of a core, a provider or the operator.

    It has `crd/bases/*.yaml` and `webhook/manifests.yaml`.
    """
    others = {OPERATOR.name: OPERATOR, **KUBEADM, **OTHER_CORES}
    recipe = others.get(program, CLUSTER_API_CORE)
    path = cache_folder() / "bin" / f"{recipe.name}-{recipe.version}-config"
    report = report or plain_report()

    with _lock_if_missing(path, recipe.name, report) as is_missing:
        if is_missing:
            module = gobuild.module_folder(recipe, cache_folder(), report)
            package = module / recipe.package.removeprefix(recipe.module).strip("/")
            sources = next(
                folder / "config"
                for folder in (package, *package.parents)
                if (folder / "config").is_dir()
            )
            with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
                copy = Path(scratch) / "config"
                # Copy without modes, because the files of the module cache are read-only.
                for source in sources.rglob("*.yaml"):
                    target = copy / source.relative_to(sources)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target)
                copy.rename(path)
    return path


def prepare(
    report: Report | None = None,
    *,
    core: str = CLUSTER_API_CORE.name,
    further: Sequence[str] = (),
) -> None:
    """Find or build everything that a sandbox runs, and `further` programs of kubeadm.

    `core` is the Cluster API core, one of `CORES`. Raises `BuildError`.
    """
    report = report or plain_report()
    recipes = RECIPES | {name: KUBEADM[name] for name in further}
    if core != CLUSTER_API_CORE.name:
        del recipes[CLUSTER_API_CORE.name]
        recipes[core] = CORES[core]
    missing = [
        name
        for name, recipe in recipes.items()
        if not (_find_on_machine(recipe) or cached_path(recipe).exists())
    ]
    if missing:
        # Install Go before the builds, because otherwise each of them would install it.
        gobuild.Go.find(cache_folder(), report)
        _build_concurrently(missing, report)
    cluster_api_manifests(report, program=core)


def _build_concurrently(names: Sequence[str], report: Report) -> None:
    """Build several programs. When one build fails, stop the others.

    Concurrent builds are faster, because the loading of modules and the linker use one core at
    most.
    """
    stopped = threading.Event()

    def report_or_stop(name: str, step: str, done: int, total: int) -> None:
        if stopped.is_set():
            raise gobuild.BuildError(f"{name}: stopped")
        report(name, step, done, total)

    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        try:
            for build in as_completed(
                [pool.submit(binary, name, report_or_stop) for name in names]
            ):
                build.result()
        except BaseException:
            stopped.set()
            raise


def cached_path(recipe: Recipe) -> Path:
    """Return the path of a built program, which depends on its version and its patches."""
    suffix = ""
    if recipe.patches:
        digest = hashlib.sha256(repr(recipe.patches).encode()).hexdigest()
        suffix = f"-{digest[:8]}"
    return cache_folder() / "bin" / f"{recipe.name}-{recipe.version}{suffix}"


def envtest_folders(
    environ: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> list[Path]:
    """Return the folders of setup-envtest and kubebuilder with programs, the newest first."""
    home = Path(environ.get("HOME") or "/")
    if platform == "darwin":
        data = home / "Library" / "Application Support" / "io.kubebuilder.envtest"
    else:
        data = (
            Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "kubebuilder-envtest"
        )
    versions = (data / "k8s").glob("*-*-*")
    newest_first = sorted(
        versions, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)], reverse=True
    )
    return [*newest_first, Path("/usr/local/kubebuilder/bin")]


def _find_on_machine(recipe: Recipe) -> Path | None:
    folders = [os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH")]
    if recipe.oldest:
        folders += map(str, envtest_folders())

    for candidate in (shutil.which(recipe.name, path=folder) for folder in folders if folder):
        if not candidate:
            continue

        version = _read_version(candidate) if recipe.oldest else None
        if recipe.oldest and (version is None or version < recipe.oldest):
            log.warning(
                "%s is version %s, the sandbox needs %d.%d or newer: %s is built instead",
                candidate,
                "unknown" if version is None else f"{version[0]}.{version[1]}",
                *recipe.oldest,
                recipe.version,
            )
            continue
        return Path(candidate)
    return None


@functools.cache
def _read_version(command: str) -> tuple[int, int] | None:
    try:
        output = subprocess.run(
            [command, "--version"], capture_output=True, text=True, check=False, timeout=30
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.search(r"(\d+)\.(\d+)\.\d+", output)
    return (int(version[1]), int(version[2])) if version else None


@contextlib.contextmanager
def _lock_if_missing(path: Path, name: str, report: Report) -> Iterator[bool]:
    """Yield whether `path` is missing. If it is, hold the lock for its creation meanwhile.

    While another process has the lock, reports that the program `name` waits.
    """
    if path.exists():
        yield False
        return

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            # The report of a stopped build raises, which no signal does in a thread.
            report(name, "waiting for another build", 0, 0)
            time.sleep(LOCK_SECONDS)

        # Check again, because the process that held the lock may have created the path.
        yield not path.exists()


def _log_progress(name: str, step: str, done: int, total: int) -> None:
    progress = ""
    if total:
        progress = f" {done} of {total} packages"
    elif done:
        progress = f" {done}"
    log.info("%s: %s%s", name, step, progress)
