"""The packager in the cluster: one commit for what changes together, conditions, a problem, and restarts."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from sandbox import manifests
from sandbox.processes.children import free_ports
from tests.support.metrics import bind, roles, scrape, token
from tests.support.packager.environment import (
    CLUSTERS,
    HARVESTER_CLUSTERS,
    READY,
    Case,
)
from tests.support.packager.git_servers import HttpBackend
from tests.support.packager.repositories import Origin, git
from tests.support.waiting import until

pytestmark = pytest.mark.integration

CALICO = {"cni": {"name": "calico", "mtu": 1450}}


def changed_lines(case: Case) -> list[str]:
    """What the newest commit took away and added."""
    diff = git(case.origin.folder, "diff", "--unified=0", "main~1", "main")
    return [line for line in diff.splitlines() if line[:1] in "+-" and not line.startswith(("+++", "---"))]


async def test_a_cluster_becomes_one_commit_and_a_changed_setting_one_small_commit(case: Case) -> None:
    packager = await case.running()
    await case.cluster("one", values=CALICO)
    found = await case.until_condition("one", "True")
    assert (case.count(), f"commit {case.origin.head()}") == (1, found["message"].partition(";")[0])
    assert {"caphv.yaml", "cni/fleet.yaml", "ccm/fleet.yaml", "csi/fleet.yaml"} <= case.mine("one")
    await case.until_event("AddonBundlesPushed", case.origin.head())
    await case.set_values("one", {"cni": {"name": "calico", "mtu": 1400}})
    await case.until_count(2)
    files = git(case.origin.folder, "diff", "--name-only", "main~1", "main").splitlines()
    top = f"clusters/{case.namespace}/one"
    assert files == [f"{top}/caphv.yaml", f"{top}/cni/helmchartconfig.yaml"]
    assert len(changed_lines(case)) == 4, "the MTU, and the hash over all"
    assert f"Changed on the management cluster: {case.namespace}/one." in case.origin.message()
    await case.until_condition("one", "True", part=case.origin.head())
    await packager.until_value(2, "caphv_packager_commits_total")
    await packager.until_value(lambda value: value >= 2, "caphv_packager_renders_total", result="ok")
    await packager.until_value(0, "caphv_packager_lag_seconds")
    await packager.until_value(1, "caphv_packager_cluster_ready", cluster=f"{case.namespace}/one")


async def test_metrics_are_for_accounts_that_may_get_them(case: Case) -> None:
    (port,) = free_ports(1)
    await manifests.apply(case.client, roles())
    await bind(case.client, "packager-metrics")
    await case.running(f"--metrics-bind-address=127.0.0.1:{port}", "--metrics-secure")
    assert (await scrape(port))[0] == 401
    status, text = await scrape(port, await token(case.client, "packager-metrics"))
    assert (status, "caphv_packager_lag_seconds" in text) == (200, True)


async def test_what_changes_together_is_one_commit_and_an_invalid_setting_stops_no_one_else(
    case: Case,
) -> None:
    # On a busy machine, three clusters take a second or two.
    await case.running("--debounce=5")
    wrong_values = {"cni": {"name": "calico", "mtu": 12}}
    await asyncio.gather(
        case.cluster("one", values=CALICO),
        case.cluster("two", values=wrong_values),
        case.cluster("three", values=CALICO),
    )
    for name in ("one", "three"):
        await case.until_condition(name, "True", part=case.origin.head() if case.count() else "")
    wrong = await case.until_condition("two", "False", "AddonBundlesInvalid", "addons.caphv.io/values")
    assert "mtu" in wrong["message"]
    assert (case.count(), case.mine("two")) == (1, set())
    await case.until_event("AddonBundlesInvalid", "mtu")
    await case.set_values("two", CALICO)
    await case.until_condition("two", "True")
    files = case.mine("two")
    await case.set_values("two", {"cni": {"name": "cilium"}})
    await case.until_condition("two", "False", "AddonBundlesInvalid", "installs calico")
    await case.set_values("one", {"cni": {"name": "calico", "mtu": 1300}})
    await case.until_count(3)
    assert case.mine("two") == files, "what the repository holds stays"


async def test_a_repository_that_is_unreachable_loses_no_change(case: Case) -> None:
    packager = await case.running()
    await case.cluster("quiet", values=CALICO)
    await case.cluster("one", values=CALICO)
    for name in ("one", "quiet"):
        await case.until_condition(name, "True")
    count, away = case.count(), case.origin.folder.with_name("away")
    case.origin.folder.rename(away)
    await case.set_values("one", {"cni": {"name": "calico", "mtu": 1400}})
    found = await case.until_condition("one", "False", "AddonBundlesNotPushed", "AccessDenied")
    assert "check the address of the repository" in found["message"]
    assert (await case.condition("quiet"))["status"] == "True", "nothing of it waits"
    await case.until_event("AddonBundlesNotPushed", "AccessDenied")
    await packager.until_value(lambda value: value > 0, "caphv_packager_lag_seconds")
    await packager.until_value(lambda value: value > 0, "caphv_packager_errors_total", kind="AccessDenied")
    away.rename(case.origin.folder)
    # Asked for, it does not wait for the end of its pause.
    await case.annotate("quiet", **{"caphv.io/reconcile-at": "now"})
    await case.until_condition("one", "True", part=f"commit {'' if case.count() == count else case.origin.head()}")
    assert case.count() == count + 1
    await packager.until_value(0, "caphv_packager_lag_seconds")


async def test_a_remote_that_hangs_holds_up_nothing_else(case: Case) -> None:
    async def hang(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    packager = await case.running("--git-timeout=2", url=f"http://127.0.0.1:{port}/fleet.git")
    await case.cluster("one", values=CALICO)
    await case.until_condition("one", "False", "AddonBundlesNotPushed", "was stopped; a running packager tries again")
    assert packager.alive
    server.close()


async def test_a_deleted_cluster_is_pruned_and_more_than_the_budget_is_not(case: Case) -> None:
    packager = await case.running("--max-prune=4", "--debounce=2")
    names = ("one", "two", "three", "four", "five", "six")
    for name in names:
        await case.cluster(name, values=CALICO)
    for name in names:
        await case.until_condition(name, "True")
    # Gone while it was paused, it may still be running elsewhere.
    await case.client.patch(CLUSTERS, "four", case.namespace, {"spec": {"paused": True}})
    await case.until_condition("four", "False", "AddonBundlesSuspended", "paused")
    await case.delete("four")
    await case.delete("one")
    await case.until_event("AddonBundlesRemoved", "clusters/")
    assert (case.mine("one"), bool(case.mine("four"))) == (set(), True)
    # Deletions that Cluster API completed need no budget.
    for finalizers in (["cluster.cluster.x-k8s.io"], None):
        for name in ("five", "six"):
            await case.client.patch(CLUSTERS, name, case.namespace, {"metadata": {"finalizers": finalizers}})
            if finalizers:
                await case.delete(name)
    await case.until_pruned("five", "six")
    await packager.until_value(None, "caphv_packager_cluster_ready", cluster=f"{case.namespace}/one")
    await case.delete("two")
    await case.delete("three")
    await case.until_event("AddonBundlesKept", "--max-prune 4")
    await packager.until_value(3, "caphv_packager_removals_held")
    assert all(case.mine(name) for name in ("two", "three"))
    await case.until_event("AddonBundlesKept", "was deleted while paused")
    await packager.stop()
    packager = await case.running("--max-prune=20", "--interval=1")
    await case.until_pruned("two", "three")
    await packager.until_idle()
    # A restart does not change that; removing the mark does.
    mark = f"clusters/{case.namespace}/four/.caphv-moved"
    assert mark in case.origin.files()
    case.origin.remove(mark)
    await case.until_pruned("four")


async def test_a_suspended_cluster_is_left_alone(case: Case) -> None:
    await case.running()
    await case.cluster("one", values=CALICO)
    await case.cluster("other", values=CALICO)
    for name in ("one", "other"):
        await case.until_condition(name, "True")
    count, files = case.count(), case.mine("one")
    await case.annotate("one", **{"addons.caphv.io/suspend": "true"})
    await case.until_condition("one", "False", "AddonBundlesSuspended", "remove it to resume")
    await case.set_values("one", {"cni": {"name": "calico", "mtu": 1400}})
    await case.set_values("other", {"cni": {"name": "calico", "mtu": 1400}})
    await case.until_count(count + 1)
    assert case.mine("one") == files
    assert not any("/one/" in line for line in git(case.origin.folder, "show", "--name-only", "main").splitlines())
    await case.annotate("one", **{"addons.caphv.io/suspend": None})
    await case.until_count(count + 2)
    await case.until_condition("one", "True", part=case.origin.head())


async def test_nothing_is_guessed_while_the_control_plane_is_not_there(case: Case) -> None:
    await case.running()
    await case.cluster("one")
    await case.until_condition("one", "True")
    await case.cluster("two", control_plane=False)
    await case.until_condition("two", "False", "AddonBundlesInProgress", "RKE2ControlPlane")
    assert case.mine("two") == set()
    await case.control_plane("two", cni="cilium")
    await case.until_condition("two", "True")
    assert "cilium" in case.origin.files()[f"clusters/{case.namespace}/two/caphv.yaml"]
    await case.cluster("three", control_plane=False, topology={"classRef": {"name": "rke2"}, "version": "v1.34.2"})
    await case.until_condition("three", "False", "AddonBundlesInProgress", "does not exist: create it")
    await case.cluster_class("rke2")
    await case.until_condition("three", "False", "AddonBundlesInProgress", "waiting for Cluster API")


async def test_what_others_write_is_set_right(case: Case) -> None:
    await case.running("--interval=1")
    await case.cluster("one", values=CALICO)
    await case.until_condition("one", "True")
    tree, path = case.origin.tree(), f"clusters/{case.namespace}/one/cni/fleet.yaml"
    case.origin.push({path: "spoiled"})

    async def restored() -> bool:
        return case.origin.tree() == tree

    await until(restored, lambda: "the file was not restored")
    # A user writes the list of conditions without ours.
    await case.client.patch(
        HARVESTER_CLUSTERS, "one", case.namespace, {"status": {"conditions": []}}, subresource="status"
    )
    await case.until_condition("one", "True")


async def test_of_two_replicas_one_works_and_the_other_takes_over(case: Case) -> None:
    await case.namespace_for_leases()
    first = await case.running("--leader-elect")
    await case.cluster("one", values=CALICO)
    await case.until_condition("one", "True")
    second = await case.running("--leader-elect")
    assert await second.value("caphv_leader") == 0
    await case.set_values("one", {"cni": {"name": "calico", "mtu": 1400}})
    await case.until_count(2)
    assert await second.value("caphv_packager_syncs_total", result="pushed") is None
    await first.kill()
    await case.set_values("one", {"cni": {"name": "calico", "mtu": 1300}})
    await case.until_count(3)
    await case.until_condition("one", "True", part=case.origin.head())


async def test_killed_at_any_moment_it_comes_to_the_same_tree(case: Case) -> None:
    packager = case.packager()
    for number, delay in enumerate((0.0, 0.3, 1.0)):
        await packager.start()
        await case.cluster(f"c{number}", values=CALICO)
        await case.set_values("c0", {"cni": {"name": "calico", "mtu": 1300 + number}})
        await asyncio.sleep(delay)
        await packager.kill()
    await packager.start()
    for number in range(3):
        await case.until_condition(f"c{number}", "True")
    # Conditions may be of a process before, and so of an earlier commit.
    setting = f"clusters/{case.namespace}/c0/cni/helmchartconfig.yaml"
    await until(lambda: "1302" in case.origin.files()[setting], "the last change is committed")
    await packager.stop()
    tree = case.origin.tree()
    shutil.rmtree(case.origin.folder)
    calm = Origin.make(case.origin.folder)
    await case.running()
    await case.until_count(1)
    assert calm.tree() == tree, "as if it had never been killed"
    assert READY in str(await case.client.get(HARVESTER_CLUSTERS, "c0", case.namespace))


async def test_credentials_are_read_again_and_never_reported(case: Case, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "username").write_text("packager")
    (secret / "password").write_text("wrong-canary-1\n")

    git(case.origin.folder, "config", "http.receivepack", "true")
    with HttpBackend(case.origin.folder.parent, password="right-canary-2").serve() as backend:
        packager = await case.running(f"--git-credentials={secret}", url=f"{backend.url}/fleet.git")
        await case.cluster("one", values=CALICO)
        found = await case.until_condition("one", "False", "AddonBundlesNotPushed", "AccessDenied")
        (secret / "password").write_text("right-canary-2\n")
        await case.annotate("one", **{"caphv.io/reconcile-at": "1"})
        await case.until_condition("one", "True")
        assert "canary" not in packager.log + str(found)


async def test_next_to_the_provider_both_say_what_they_know(case: Case) -> None:
    environment = {"CAPHV_GIT_REPO": case.origin.url, "CAPHV_DEBOUNCE": "0.3"}
    provider = case.provider("--with-packager", environment)
    await provider.start()
    await case.cluster("one", values=CALICO)
    await case.own("one")

    async def both() -> bool:
        found = await case.client.get(HARVESTER_CLUSTERS, "one", case.namespace)
        conditions = (found.get("status") or {}).get("conditions") or []
        return {READY, "HarvesterConnectionReady"} <= {row["type"] for row in conditions}

    await until(both, lambda: "one wrote over the other")
    await case.until_condition("one", "True")
    assert case.count() == 1

    async def counted() -> bool:
        return await provider.value("caphv_packager_commits_total") == 1

    await until(counted, lambda: "its metrics come with the next report, a second later")
    await provider.stop()
