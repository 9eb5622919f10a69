"""The packager in the cluster: one commit for what changes together, conditions, a problem, and restarts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from sandbox.processes.children import free_ports
from tests.support.fixtures import entered
from tests.support.metrics import bind, roles, scrape, token
from tests.support.packager.environment import (
    CLUSTERS,
    CONTROL_PLANES,
    HARVESTER_CLUSTERS,
    READY,
    Case,
    Packager,
    opened,
)
from tests.support.packager.git_servers import HttpBackend
from tests.support.packager.repositories import Origin, git
from tests.support.waiting import until

pytestmark = pytest.mark.integration

CALICO = {"cni": {"name": "calico", "mtu": 1450}}


@pytest.fixture
def case(management: ApiServer, tmp_path: Path, origin: Origin, runner: asyncio.Runner) -> Iterator[Case]:
    """A namespace and a repository of the test's own."""
    with entered(opened(management, tmp_path, origin), runner) as case:
        yield case


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
    await case.running("--debounce=2")
    await case.cluster("one", values=CALICO)
    await case.cluster("two", values={"cni": {"name": "calico", "mtu": 12}})
    await case.cluster("three", values=CALICO)
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


async def test_a_repository_that_is_away_loses_no_change(case: Case) -> None:
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
    await case.until_condition("one", "False", "AddonBundlesNotPushed", "was stopped; it will be retried")
    assert packager.alive
    server.close()


async def test_a_deleted_cluster_is_pruned_and_more_than_the_budget_is_not(case: Case) -> None:
    packager = await case.running("--max-prune=4", "--debounce=2")
    names = ("one", "two", "three", "four")
    for name in names:
        await case.cluster(name, values=CALICO)
    for name in names:
        await case.until_condition(name, "True")
    # Gone while it was paused, it may live on elsewhere.
    await case.client.patch(CLUSTERS, "four", case.namespace, {"spec": {"paused": True}})
    await case.until_condition("four", "False", "AddonBundlesSuspended", "paused")
    await case.delete("four")
    await case.delete("one")
    await case.until_event("AddonBundlesRemoved", "clusters/")
    assert (case.mine("one"), bool(case.mine("four"))) == (set(), True)
    await packager.until_value(None, "caphv_packager_cluster_ready", cluster=f"{case.namespace}/one")
    await case.delete("two")
    await case.delete("three")
    await case.until_event("AddonBundlesKept", "--max-prune 4")
    await packager.until_value(3, "caphv_packager_removals_held")
    assert all(case.mine(name) for name in ("two", "three"))
    await case.until_event("AddonBundlesKept", "was deleted while paused")
    await packager.stop()
    packager = await case.running("--max-prune=20", "--interval=1")
    await until(gone(case, "two", "three"), lambda: "not all were removed")
    await looked(packager)
    # No restart forgets it, until a user takes the mark away.
    mark = f"clusters/{case.namespace}/four/.caphv-moved"
    assert mark in case.origin.files()
    case.origin.remove(mark)
    await until(gone(case, "four"), lambda: "it stays without a mark")


def gone(case: Case, *names: str) -> Callable[[], Awaitable[bool]]:
    async def none_left() -> bool:
        return not any(case.mine(name) for name in names)

    return none_left


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
    tree = case.origin.tree()
    shutil.rmtree(case.origin.folder)
    calm = Origin.make(case.origin.folder)
    await packager.stop()
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


SPEC = """\
  kubernetesVersion: v1.34.2
  identitySecret: {name: harvester-identity}
  targetNamespace: team-a
  controlPlane: {replicas: 3, cpu: 4, memory: 8Gi}
  machines: {image: default/sles, diskSize: 80Gi, sshKeyPair: default/admin, networks: [default/production]}
  addresses: {ipPoolRefs: [machines], gateway: 172.16.0.1, subnetMask: 255.255.0.0, dnsServers: [172.16.0.1]}
  loadBalancer: {ipamType: pool, ipPoolRef: load-balancers}
"""
DEFINITION = """\
apiVersion: caphv.io/v1alpha1
kind: ClusterDefinition
metadata: {{name: {name}, namespace: {namespace}}}
spec:
{spec}
"""


def definition(case: Case, name: str, spec: str = SPEC) -> str:
    return DEFINITION.format(name=name, namespace=case.namespace, spec=spec)


async def push_event(port: int, body: bytes, signature: str) -> int:
    headers = {"X-Hub-Signature-256": f"sha256={signature}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}/push", data=body, headers=headers) as answer,
    ):
        return answer.status


def signed(body: bytes) -> str:
    return hmac.new(b"a secret of some length", body, hashlib.sha256).hexdigest()


def receiver(folder: Path, port: int) -> tuple[str, str]:
    secret = folder / "hook-secret"
    secret.write_text("a secret of some length\n")
    return f"--receiver-bind-address=127.0.0.1:{port}", f"--receiver-secret-file={secret}"


async def test_a_push_of_definitions_becomes_manifests_and_bundles_at_once(case: Case, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    source = Origin.make(tmp_path / "origin" / "source.git")

    source.push({"one.yaml": definition(case, "one")})
    packager = await case.running(
        f"--source-repo={source.url}", "--client-secret=fleet-git", "--interval=3600", *receiver(tmp_path, port)
    )
    await case.until_count(1)
    assert f"Source: {source.url}@{source.head()}" in case.origin.message()
    top = f"manifests/{case.namespace}"
    assert any(path.startswith(f"{top}/one/") for path in case.origin.files())
    assert {"caphv.yaml", "cni/fleet.yaml", "ccm/fleet.yaml", "csi/fleet.yaml"} <= case.mine("one")
    (repo,) = (text for path, text in case.origin.files().items() if path.endswith("/gitrepo.yaml"))
    assert "clientSecretName: fleet-git" in repo
    # A good one and a bad one; and a user who only pretends that there was a push.
    source.push({"two.yaml": definition(case, "two"), "bad.yaml": definition(case, "bad", "  nonsense: true")})
    assert await push_event(port, b"{}", signed(b"{x}")) == 401
    assert await push_event(port, b"x" * (6 * 1024 * 1024), "") == 413
    await asyncio.sleep(1)
    assert case.count() == 1, "no one who knows the secret has called"
    assert await push_event(port, b"{}", signed(b"{}")) == 202
    await case.until_count(2)
    files = case.origin.files()
    assert {path.split("/")[2] for path in files if path.startswith(top)} == {"one", "two"}
    assert "bad.yaml" in files["caphv-status.yaml"]
    await packager.until_value(1, "caphv_packager_definitions", state="faulty")
    await packager.until_value(1, "caphv_packager_push_events_total", code="401")
    # A source that is away stops no bundles.
    away = source.folder.with_name("away")
    source.folder.rename(away)
    await case.cluster("live", values=CALICO)
    await case.until_condition("live", "True")
    await packager.until_value(lambda value: value > 0, "caphv_packager_errors_total", kind="AccessDenied")


async def test_a_push_event_that_reaches_a_standby_reaches_the_leader(case: Case, tmp_path: Path) -> None:
    ports = free_ports(2)
    source = Origin.make(tmp_path / "origin" / "source.git")

    await case.namespace_for_leases()
    source.push({"one.yaml": definition(case, "one")})
    common = (f"--source-repo={source.url}", "--interval=3600", "--leader-elect")
    leader, standby = [await case.running(*common, *receiver(tmp_path, port)) for port in ports]
    await case.until_count(1)
    source.push({"two.yaml": definition(case, "two")})
    assert await push_event(ports[1], b"{}", signed(b"{}")) == 202
    await case.until_count(2)
    assert [await each.value("caphv_leader") for each in (leader, standby)] == [1, 0]


async def test_a_defined_cluster_comes_up_and_follows_without_another_commit(case: Case, tmp_path: Path) -> None:
    source = Origin.make(tmp_path / "origin" / "source.git")

    def manifest(case: Case) -> tuple[dict[str, str], dict[str, Any]]:
        text = case.origin.files()[f"manifests/{case.namespace}/one/cluster/cluster.yaml"]
        cluster = next(iter(yaml.safe_load_all(text)))
        return cluster["metadata"]["annotations"], cluster["spec"]["topology"]

    with_mtu = f"{SPEC}  addons: {{cni: {{name: calico, mtu: %d}}}}\n"
    source.push({"one.yaml": definition(case, "one", with_mtu % 1450)})
    packager = await case.running(f"--source-repo={source.url}", "--interval=1")
    await case.until_count(1)
    # Fleet applies the manifest, and Cluster API makes control plane and infrastructure a little later.
    annotations, topology = manifest(case)
    await case.cluster_class(topology["classRef"]["name"])
    await case.cluster("one", control_plane=False, topology=topology)
    await case.annotate("one", **annotations)
    await case.until_condition("one", "False", "AddonBundlesInProgress")
    await case.control_plane("one")
    reference = {"apiGroup": CONTROL_PLANES.group, "kind": CONTROL_PLANES.kind, "name": "one"}
    await case.client.patch(CLUSTERS, "one", case.namespace, {"spec": {"controlPlaneRef": reference}})
    await case.until_condition("one", "True", part=case.origin.head())
    assert case.count() == 1
    # A changed setting, and looks before and after the Cluster has it.
    source.push({"one.yaml": definition(case, "one", with_mtu % 1400)})
    await case.until_count(2)
    await looked(packager)
    await case.annotate("one", **manifest(case)[0])
    await looked(packager)
    await looked(packager)
    assert case.count() == 2
    await case.until_condition("one", "True", part=case.origin.head())
    # The definition is removed: that waits for a confirmation; the bundles are removed with the Cluster.
    source.push({"README.md": "nothing"}, replace=True)
    await case.until_event("AddonBundlesKept", "caphv.io/confirm-removal=true")
    await case.annotate("one", **{"caphv.io/confirm-removal": "true"})

    async def released() -> bool:
        return "helm.sh/resource-policy" not in str(manifest(case)[0])

    await until(released, lambda: "the definition stays protected")
    await looked(packager)
    await looked(packager)
    assert manifest(case), "Fleet has not applied the manifest without protection"
    await case.annotate("one", **{"helm.sh/resource-policy": None})

    async def removed() -> bool:
        return not any(path.startswith("manifests/") for path in case.origin.files())

    await until(removed, lambda: "the definition stays")
    await looked(packager)
    assert "cni/fleet.yaml" in case.mine("one")
    await case.delete("one")
    await until(gone(case, "one"), lambda: "its bundles stay")


async def looked(packager: Packager) -> None:
    """Wait until the packager has checked everything again, and found nothing to do."""
    before = await packager.value("caphv_packager_syncs_total", result="unchanged") or 0

    async def again() -> bool:
        # The look that is under way may have begun before.
        return (await packager.value("caphv_packager_syncs_total", result="unchanged") or 0) >= before + 2

    await until(again, lambda: "it does not look")
