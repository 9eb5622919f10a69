"""Each example on the sandbox with the real core: it is admitted, comes up, and goes to the last trace.

Only what the README of the examples tells to change is changed: names, pools, networks and their addresses. In the
short form, all examples also have fewer machines, and one of those with a ClusterClass is enough: their classes have
lives of their own.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from caphv.api.object import NAMESPACES, Obj
from sandbox import clusterclass, manifests
from sandbox.capi.resources import CLUSTERS
from sandbox.cluster import KUBERNETES_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario
from tests.support.clusterctl import VERSION, Clusterctl, repository
from tests.support.clusterexamples import on_sandbox, with_few_machines
from tests.support.e2e import HEALTH_CHECKS, SHORT_AND_WHOLE, admitted, holds, seen
from tests.support.paths import CHECKOUT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

PATIENCE = 400.0
EXAMPLES = sorted(path.stem for path in (CHECKOUT / "examples").glob("*.yaml"))
ONE_BY_ONE = ("rke2-pools", "rke2-dhcp", "k3s", "kubeadm", "talos")
WITH_A_CLASS = ("rke2-clusterclass", "rke2-stig", "k3s-clusterclass", "kubeadm-clusterclass")
WHOLE_ONLY = {"rke2-clusterclass", "k3s-clusterclass", "kubeadm-clusterclass"}


def objects(box: Sandbox, example: str) -> list[Obj]:
    """The example as a user applies it: in its own namespace."""
    return on_sandbox(box, example, manifests.read([CHECKOUT / "examples" / f"{example}.yaml"]))


@pytest.mark.parametrize("example", EXAMPLES)
async def test_example_is_admitted(box: Sandbox, example: str) -> None:
    scenario = Scenario(box.folder, ClusterSpec())
    async with scenario.watching():
        await admitted(scenario.management, objects(box, example))


@SHORT_AND_WHOLE
@pytest.mark.parametrize("examples", [ONE_BY_ONE, WITH_A_CLASS], ids=["objects one by one", "ClusterClasses"])
async def test_clusters_of_examples_come_up_and_go(box: Sandbox, examples: tuple[str, ...], whole: bool) -> None:
    # At one time, because a cluster that comes up mostly waits.
    async with asyncio.TaskGroup() as group:
        for example in examples:
            if whole or example not in WHOLE_ONLY:
                group.create_task(life(box, example, objects(box, example), whole=whole))


@pytest.mark.long
@pytest.mark.parametrize("flavor", ["kubeadm", "topology-kubeadm"])
async def test_cluster_of_a_flavor_of_kubeadm_is_made_and_deleted(
    box: Sandbox, flavor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = f"flavor-{flavor}"
    repository(tmp_path)
    monkeypatch.setenv("HARVESTER_TARGET_NAMESPACE", namespace)
    clusterctl = Clusterctl(tmp_path, box.kubeconfig("management"))
    text = await asyncio.to_thread(
        clusterctl, "generate", "cluster", "flavored", f"--target-namespace={namespace}", f"--flavor={flavor}",
        f"--infrastructure=harvester:{VERSION}", f"--kubernetes-version={KUBERNETES_VERSION}",
        "--control-plane-machine-count=1", "--worker-machine-count=1",
    )  # fmt: skip
    await life(box, namespace, on_sandbox(box, namespace, [obj for obj in manifests.parse(text) if obj]), whole=False)


def test_no_example_is_left_out() -> None:
    assert sorted([*ONE_BY_ONE, *WITH_A_CLASS]) == EXAMPLES


async def life(box: Sandbox, example: str, wanted: list[Obj], *, whole: bool) -> None:
    if not whole:
        with_few_machines(wanted)
    control_planes, workers = (3, 2) if whole else (1, 1)
    (cluster,) = (obj for obj in wanted if obj["kind"] == CLUSTERS.kind)
    spec = ClusterSpec(cluster["metadata"]["name"], example, example, control_planes, workers)
    scenario = Scenario(box.folder, spec, timeout=PATIENCE)
    async with scenario.watching():
        if "topology" in cluster["spec"] and not any(obj["kind"] == "ClusterClass" for obj in wanted):
            name = cluster["spec"]["topology"]["classRef"]["name"]
            space = kinds.typed(NAMESPACES, {"metadata": {"name": example}})
            await manifests.apply(scenario.management, [space, *clusterclass.objects(example, name)])
        await scenario.apply(wanted)
        await scenario.bring_up()
        assert (len(scenario.view.control_planes()), len(scenario.view.workers())) == (control_planes, workers)
        await seen(scenario.management, example, CLUSTERS, lambda obj: holds(obj, "Available"))
        for check in [obj for obj in wanted if obj["kind"] == HEALTH_CHECKS.kind]:
            found = await seen(
                scenario.management, example, HEALTH_CHECKS, partial(watches, machines=control_planes + workers)
            )
            assert found["metadata"]["name"] == check["metadata"]["name"]
        await scenario.delete()


def watches(check: Obj, machines: int) -> bool:
    status = check.get("status") or {}
    return (status.get("expectedMachines"), status.get("currentHealthy")) == (machines, machines)
