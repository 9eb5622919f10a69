"""Measure following of definitions: a source of ClusterDefinitions becomes manifests and bundles in one commit."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from bench.clock import cpu_seconds, timed
from packager.controller import definition_source
from packager.controller.open_repository import RepositoryConfig
from packager.controller.publisher import Published, Publisher, PublisherOptions
from packager.git.remote import Remote
from packager.planner import ManagementState
from webhooks import crossobject

_NOTHING_LIVE = ManagementState((), why="A benchmark.")


def measure(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """Run the workload of the packager in the cluster, no Cluster being there yet; answers its figures in seconds."""
    _publish(folder / "warm", 3, 0)
    return _publish(folder / "measured", count, rounds)


def _publish(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    source, fleet = _made(folder / "source.git"), _made(folder / "fleet.git")
    _push(source, {f"{number:04}.yaml": _definition(number, 1450) for number in range(count)})
    place = RepositoryConfig(Remote(f"file://{source}"), folder / "cache" / "source")
    publisher = Publisher(
        PublisherOptions(
            RepositoryConfig(Remote(f"file://{fleet}"), folder / "cache"),
            source=definition_source.SourceOptions(place, crossobject.check),
        )
    )
    try:
        return _figures(publisher, source, count, rounds)
    finally:
        publisher.close()


def _figures(publisher: Publisher, source: Path, count: int, rounds: int) -> dict[str, Any]:
    cpu = cpu_seconds()
    seconds, first = timed(lambda: publisher.publish(_NOTHING_LIVE))
    figures: dict[str, Any] = {
        "definitions": count,
        "files of definitions": len(_committed(first).result.plan.write),
        "definitions to pushed, s": seconds,
        "  CPU of it": cpu_seconds() - cpu,
    }
    publisher.publish(_NOTHING_LIVE)  # sees its own records for the first time
    changed, files, idle = [], set(), []
    for number in range(rounds):
        _push(source, {f"{number % count:04}.yaml": _definition(number % count, 1400 + number)})
        seconds, result = timed(lambda: publisher.publish(_NOTHING_LIVE))
        changed.append(seconds)
        files.add(len(_committed(result).result.plan.write))
        publisher.publish(_NOTHING_LIVE)  # the first time after a commit, as it comes
        seconds, result = timed(lambda: publisher.publish(_NOTHING_LIVE))
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


def _committed(published: Published) -> Published:
    if not published.result.commit or not published.built or published.built.problems:
        sys.exit(f"definitions made no commit: {published.built and published.built.problems[:1]}")
    return published


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
    obj = {"apiVersion": "caphv.io/v1alpha1", "kind": "ClusterDefinition", "metadata": metadata, "spec": spec}
    return yaml.safe_dump(obj, sort_keys=False)


def _made(folder: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", str(folder)], check=True)
    return folder


def _push(folder: Path, files: dict[str, str]) -> None:
    """Commit as a user would."""
    known = (folder / "refs" / "heads" / "main").exists()
    lines = ["commit refs/heads/main\ncommitter bench <bench@localhost> 1 +0000\ndata 0\n"]
    lines += ["from refs/heads/main^0\n"] if known else []
    lines += [f"M 100644 inline {path}\ndata {len(text.encode())}\n{text}\n" for path, text in files.items()]
    command = ["git", "-C", str(folder), "fast-import", "--quiet", "--done"]
    subprocess.run(command, input="".join([*lines, "done\n"]).encode(), check=True)
