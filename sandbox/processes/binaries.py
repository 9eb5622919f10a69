"""The real programs of a sandbox: found on the machine, or built once into a cache outside the checkout.

Order: the folder `KUBEBUILDER_ASSETS`, `PATH`, the cache, a build from the program's Go module into the cache.
"""

import contextlib
import dataclasses
import fcntl
import functools
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from sandbox.processes import gobuild
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
CLUSTER_API_CORE = Recipe(
    name="cluster-api-core",
    version="1.13.6",
    module="sigs.k8s.io/cluster-api",
    package="sigs.k8s.io/cluster-api",
    # Its webhook server has no flag for the address and would listen on all networks.
    patches=(("\t\t\t\tPort:     webhookPort,\n", '\t\t\t\tHost: "127.0.0.1", Port: webhookPort,\n'),),
)
_AFTER_CLUSTER_CACHE = '\t\tsetupLog.Error(err, "Unable to create ClusterCache")\n\t\tos.Exit(1)\n\t}\n'
_RETRY_SOON = """\
	clusterCache.(interface {
		SetConnectionCreationRetryInterval(time.Duration)
	}).SetConnectionCreationRetryInterval(time.Second)
"""
# For tests: the core retries to reach a workload cluster after 30 s, which every new cluster has to wait for.
IMPATIENT_CORE = dataclasses.replace(
    CLUSTER_API_CORE,
    name="cluster-api-core-impatient",
    patches=(*CLUSTER_API_CORE.patches, (_AFTER_CLUSTER_CACHE, _AFTER_CLUSTER_CACHE + _RETRY_SOON)),
)
# What a sandbox runs.
RECIPES = {recipe.name: recipe for recipe in (ETCD, KUBE_APISERVER, CLUSTER_API_CORE)}
# What tests need beside that: the tools that users install and watch the provider with, and a core that retries soon.
TOOLS = {
    recipe.name: recipe
    for recipe in (
        IMPATIENT_CORE,
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
    last: tuple[str, str] = ("", "")
    due = 0.0

    def report(name: str, step: str, done: int, total: int) -> None:
        nonlocal last, due
        if (name, step) != last or time.monotonic() >= due:
            last, due = (name, step), time.monotonic() + every
            (write or _log_progress)(name, step, done, total)

    return report


def binary(name: str, report: Report | None = None) -> Path:
    """Return the path of a program of `RECIPES` or `TOOLS`, building it when it is nowhere. Raises `BuildError`.

    Several processes may call this at once: one builds, the others wait for it.
    """
    recipe = (RECIPES | TOOLS)[name]
    if found := _on_machine(recipe):
        return found
    path = cache_folder() / "bin" / f"{recipe.name}-{recipe.version}"
    with _missing(path) as missing:
        if missing:
            with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
                built = Path(scratch) / recipe.name
                gobuild.build(recipe, built, cache_folder(), report or plain_report())
                built.rename(path)
    return path


def cluster_api_manifests(report: Report | None = None) -> Path:
    """Return a folder with `config/` of the Cluster API module: `crd/bases/*.yaml` and `webhook/manifests.yaml`."""
    path = cache_folder() / "bin" / f"{CLUSTER_API_CORE.name}-{CLUSTER_API_CORE.version}-config"
    with _missing(path) as missing:
        if missing:
            sources = gobuild.module_folder(CLUSTER_API_CORE, cache_folder(), report or plain_report()) / "config"
            with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
                copy = Path(scratch) / "config"
                # The module cache is read-only, the copy must not be.
                for source in sources.rglob("*.yaml"):
                    target = copy / source.relative_to(sources)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target)
                copy.rename(path)
    return path


def prepare(report: Report | None = None) -> None:
    """Find or build everything that a sandbox runs. Raises `gobuild.BuildError`."""
    for name in RECIPES:
        binary(name, report)
    cluster_api_manifests(report)


def _on_machine(recipe: Recipe) -> Path | None:
    candidates = [shutil.which(recipe.name)]
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        candidates.insert(0, shutil.which(recipe.name, path=assets))
    for candidate in candidates:
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
    """Tell whether `path` is missing; when it is, hold the lock under which it may be made."""
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
