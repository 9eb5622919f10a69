"""The real programs of a sandbox: found on the machine, or built once into a cache outside the checkout.

Order: the folder `KUBEBUILDER_ASSETS`, `PATH`, the folders of setup-envtest, the cache, a build from the program's Go
module into the cache.
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
from sandbox.processes.clusterapi import CLUSTER_API_CORE, IMPATIENT_CORE, KUBEADM, OTHER_CORES, kubeadm_of
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
    # Without them it calls itself v0.0.0, which the Cluster API core refuses.
    variables=(f"{_VERSION}.gitVersion=v1.36.3", f"{_VERSION}.gitMajor=1", f"{_VERSION}.gitMinor=36"),
)
ETCD = Recipe(
    name="etcd",
    version="3.6.16",
    module="go.etcd.io/etcd/server/v3",
    package="go.etcd.io/etcd/server/v3",
    oldest=(3, 5),
)
# What a sandbox runs.
RECIPES = {recipe.name: recipe for recipe in (ETCD, KUBE_APISERVER, CLUSTER_API_CORE)}
# What tests need in addition: the tools that users install and watch the provider with, and programs that retry soon.
TOOLS = {
    recipe.name: recipe
    for recipe in (
        IMPATIENT_CORE,
        *kubeadm_of(IMPATIENT_CORE),
        Recipe(
            name="helm",
            version="3.22.0",
            module="helm.sh/helm/v3",
            package="helm.sh/helm/v3/cmd/helm",
            # Without them it takes every cluster for Kubernetes 1.20 when it renders.
            variables=(
                "helm.sh/helm/v3/internal/version.version=v3.22.0",
                "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
                "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
                "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1",
                "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=36",
            ),
        ),
        # What Fleet 0.16 and Helm controllers link. Its version is that of Fleet's go.mod.
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
        # Prometheus 3.13, under the version that its Go module has. Rules need none of the clouds that it can discover.
        Recipe(
            name="promtool",
            version="0.313.5",
            module="github.com/prometheus/prometheus",
            package="github.com/prometheus/prometheus/cmd/promtool",
            tags=("remove_all_sd",),
        ),
    )
}

LOG_EVERY_SECONDS = 15.0


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for built programs: `CAPHV_CACHE`, else `caphv` in the user's cache folder."""
    if own := environ.get("CAPHV_CACHE"):
        return Path(own).absolute()
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "caphv"


def plain_report(write: Report | None = None, every: float = LOG_EVERY_SECONDS) -> Report:
    """Thin out progress for logs and pipes: each new step at once, then a line every `every` seconds."""
    steps: dict[str, str] = {}
    due: dict[str, float] = {}
    estimate = Estimate()

    def report(name: str, step: str, done: int, total: int) -> None:
        estimate.add(name, done, total)
        if steps.get(name) != step or time.monotonic() >= due[name]:
            steps[name], due[name] = step, time.monotonic() + every
            left = estimate.left if total else ""
            (write or _log_progress)(name, f"{step} ({left})" if left else step, done, total)

    return report


class Estimate:
    """How long the builds of several programs take together, by the packages that are compiled so far."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._started = clock, clock()
        self._done: dict[str, tuple[int, int]] = {}

    def add(self, name: str, done: int, total: int) -> None:
        """Note the progress of one program."""
        if total:
            self._done[name] = (done, total)

    @property
    def left(self) -> str:
        """The remaining time in words; empty when too little is known, and at the end."""
        done, total = sum(done for done, _ in self._done.values()), sum(total for _, total in self._done.values())
        if done < total / 20 or done == total:
            return ""
        minutes = (self._clock() - self._started) * (total - done) / done / 60
        return f"about {minutes:.0f} min left" if minutes >= 1 else "less than a minute left"


def binary(name: str, report: Report | None = None) -> Path:
    """Return the path of a program of the tables above, building it if it is missing. Raises `BuildError`.

    Several processes may call this at once: one builds, the others wait for it.
    """
    recipe = (RECIPES | TOOLS | OTHER_CORES | KUBEADM)[name]
    if found := _on_machine(recipe):
        return found
    path = in_cache(recipe)
    with _missing(path) as missing:
        if missing:
            with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
                built = Path(scratch) / recipe.name
                gobuild.build(recipe, built, cache_folder(), report or plain_report())
                built.rename(path)
    return path


def cluster_api_manifests(report: Report | None = None, *, program: str = CLUSTER_API_CORE.name) -> Path:
    """Return a folder with `config/` of a core or provider: `crd/bases/*.yaml` and `webhook/manifests.yaml`."""
    recipe = (KUBEADM | OTHER_CORES).get(program, CLUSTER_API_CORE)
    path = cache_folder() / "bin" / f"{recipe.name}-{recipe.version}-config"
    with _missing(path) as missing:
        if missing:
            module = gobuild.module_folder(recipe, cache_folder(), report or plain_report())
            sources = module / recipe.package.removeprefix(recipe.module).strip("/") / "config"
            with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
                copy = Path(scratch) / "config"
                # The module cache is read-only, the copy must not be.
                for source in sources.rglob("*.yaml"):
                    target = copy / source.relative_to(sources)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target)
                copy.rename(path)
    return path


def prepare(report: Report | None = None, *, further: Sequence[str] = ()) -> None:
    """Find or build everything that a sandbox runs, and `further` programs. Raises `gobuild.BuildError`.

    All at once: while one program loads modules or is linked, which keeps one core busy at most, another compiles.
    """
    report = report or plain_report()
    wanted = RECIPES | {name: KUBEADM[name] for name in further}
    missing = [name for name, recipe in wanted.items() if not (_on_machine(recipe) or in_cache(recipe).exists())]
    if missing:
        gobuild.Go.find(cache_folder(), report)
        _all_at_once(missing, report)
    cluster_api_manifests(report)


def _all_at_once(names: Sequence[str], report: Report) -> None:
    """Build several programs; when one fails, the others are stopped."""
    stopped = threading.Event()

    def watched(name: str, step: str, done: int, total: int) -> None:
        if stopped.is_set():
            raise gobuild.BuildError(f"{name}: stopped")
        report(name, step, done, total)

    with ThreadPoolExecutor(max_workers=len(names)) as pool:
        try:
            for build in as_completed([pool.submit(binary, name, watched) for name in names]):
                build.result()
        except BaseException:
            stopped.set()
            raise


def in_cache(recipe: Recipe) -> Path:
    """Return where a program is kept once it is built; another version or patch is another program."""
    patches = f"-{hashlib.sha256(repr(recipe.patches).encode()).hexdigest()[:8]}" if recipe.patches else ""
    return cache_folder() / "bin" / f"{recipe.name}-{recipe.version}{patches}"


def envtest_folders(environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> list[Path]:
    """Return the folders in which setup-envtest and kubebuilder keep programs, the newest version first."""
    home = Path(environ.get("HOME") or "/")
    if platform == "darwin":
        data = home / "Library" / "Application Support" / "io.kubebuilder.envtest"
    else:
        data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "kubebuilder-envtest"
    versions = (data / "k8s").glob("*-*-*")
    newest_first = sorted(versions, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)], reverse=True)
    return [*newest_first, Path("/usr/local/kubebuilder/bin")]


def _on_machine(recipe: Recipe) -> Path | None:
    folders = [os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH")]
    if recipe.oldest:
        folders += map(str, envtest_folders())
    for candidate in (shutil.which(recipe.name, path=folder) for folder in folders if folder):
        if not candidate:
            continue
        version = _version(candidate) if recipe.oldest else None
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
def _version(command: str) -> tuple[int, int] | None:
    try:
        output = subprocess.run([command, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"(\d+)\.(\d+)\.\d+", output)
    return (int(found[1]), int(found[2])) if found else None


@contextlib.contextmanager
def _missing(path: Path) -> Iterator[bool]:
    """Return whether `path` is missing; when it is, hold the lock under which it may be made."""
    if path.exists():
        yield False
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not path.exists()


def _log_progress(name: str, step: str, done: int, total: int) -> None:
    counted = f" {done} of {total} packages" if total else f" {done}" if done else ""
    log.info("%s: %s%s", name, step, counted)
