"""Measure how fast ClusterDefinitions of a source become manifests and bundles in one commit."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from packager.controller import definition_source
from packager.controller.open_repository import RepositoryConfig
from packager.controller.publisher import Published, Publisher, PublisherOptions
from packager.git.remote import Remote
from packager.planning.state import ManagementState
from tools.bench.clock import cpu_seconds, time_call
from webhooks import crossobject

_NOTHING_LIVE = ManagementState((), why="A benchmark.")


def measure(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """Run the workload of the packager in the cluster; return its figures in seconds.

    No Cluster exists yet, so that all definitions are new.
    """
    # Compile the templates before the clock starts.
    _publish(folder / "warm", 3, 0)
    return _publish(folder / "measured", count, rounds)


def _publish(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    source = _create_repository(folder / "source.git")
    fleet = _create_repository(folder / "fleet.git")
    _push(source, {f"{number:04}.yaml": _definition(number, 1450) for number in range(count)})

    definitions = RepositoryConfig(Remote(f"file://{source}"), folder / "cache" / "source")
    publisher = Publisher(
        PublisherOptions(
            RepositoryConfig(Remote(f"file://{fleet}"), folder / "cache"),
            source=definition_source.SourceOptions(definitions, crossobject.check),
        )
    )
    try:
        return _measure_publisher(publisher, source, count, rounds)
    finally:
        publisher.close()


def _measure_publisher(
    publisher: Publisher, source: Path, count: int, rounds: int
) -> dict[str, Any]:
    cpu = cpu_seconds()
    seconds, first = time_call(lambda: publisher.publish(_NOTHING_LIVE))
    figures: dict[str, Any] = {
        "definitions": count,
        "files of definitions": _files_of_commit(first),
        "definitions to pushed, s": seconds,
        "  CPU of it": cpu_seconds() - cpu,
    }

    # The publisher reads the records of its own commit for the first time.
    publisher.publish(_NOTHING_LIVE)
    changed = []
    files = set()
    idle = []
    for number in range(rounds):
        _push(source, {f"{number % count:04}.yaml": _definition(number % count, 1400 + number)})
        seconds, result = time_call(lambda: publisher.publish(_NOTHING_LIVE))
        changed.append(seconds)
        files.add(_files_of_commit(result))

        # The first check after a commit is not measured, because it reads more than later ones.
        publisher.publish(_NOTHING_LIVE)
        seconds, result = time_call(lambda: publisher.publish(_NOTHING_LIVE))
        idle.append(seconds)
        if result.result.commit:
            sys.exit("nothing changed, and yet something was written")

    if not rounds:
        return figures
    return figures | {
        "one changed definition, median s": statistics.median(changed),
        "one changed definition, slowest s": max(changed),
        "  files of it": max(files),
        "no changed definition, median s": statistics.median(idle),
    }


def _files_of_commit(published: Published) -> int:
    """Return the number of files that a commit writes. Exits if there is no commit."""
    if not published.result.commit or not published.built or published.built.problems:
        sys.exit(f"definitions made no commit: {published.built and published.built.problems[:1]}")
    return len(published.result.plan.write)


def _definition(number: int, mtu: int) -> str:
    spec = {
        "kubernetesVersion": "v1.36.2",
        "identitySecret": {"name": "harvester-identity"},
        "targetNamespace": "vms",
        "controlPlane": {"replicas": 3, "cpu": 4, "memory": "8Gi"},
        "workers": [{"name": "workers", "replicas": 2, "cpu": 8, "memory": "16Gi"}],
        "machines": {
            "image": "default/image",
            "diskSize": "80Gi",
            "sshKeyPair": "default/admin",
            "networks": ["default/production"],
        },
        "addresses": {
            "ipPoolRefs": ["machines"],
            "gateway": "172.16.0.1",
            "subnetMask": "255.255.0.0",
            "dnsServers": ["172.16.0.1"],
        },
        "loadBalancer": {"ipamType": "pool", "ipPoolRef": "load-balancers"},
        "addons": {"cni": {"name": ("calico", "canal", "cilium")[number % 3], "mtu": mtu}},
    }

    metadata = {"name": f"cluster-{number:04}", "namespace": f"team-{number % 10}"}
    obj = {
        "apiVersion": "caphv.io/v1alpha1",
        "kind": "ClusterDefinition",
        "metadata": metadata,
        "spec": spec,
    }
    return yaml.safe_dump(obj, sort_keys=False)


def _create_repository(folder: Path) -> Path:
    subprocess.run(
        ["git", "init", "--quiet", "--bare", "--initial-branch=main", str(folder)], check=True
    )
    return folder


def _push(folder: Path, files: dict[str, str]) -> None:
    """Commit files to a bare repository."""
    has_branch = (folder / "refs" / "heads" / "main").exists()
    lines = ["commit refs/heads/main\ncommitter bench <bench@localhost> 1 +0000\ndata 0\n"]
    lines += ["from refs/heads/main^0\n"] if has_branch else []
    lines += [
        f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}\n"
        for path, text in files.items()
    ]

    # fast-import needs no work tree, which a bare repository does not have.
    command = ["git", "-C", str(folder), "fast-import", "--quiet", "--done"]
    subprocess.run(command, input="".join([*lines, "done\n"]).encode(), check=True)
