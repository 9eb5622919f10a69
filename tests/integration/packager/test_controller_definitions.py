"""The packager in the cluster with a repository of definitions: manifests, push events, and a cluster that follows."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from sandbox.processes.children import free_ports
from tests.support.packager.environment import CLUSTERS, CONTROL_PLANES, Case
from tests.support.packager.repositories import Origin
from tests.support.waiting import until

pytestmark = pytest.mark.integration

CALICO = {"cni": {"name": "calico", "mtu": 1450}}
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
    # A valid and an invalid definition, and a forged push event.
    source.push({"two.yaml": definition(case, "two"), "bad.yaml": definition(case, "bad", "  nonsense: true")})
    assert await push_event(port, b"{}", signed(b"{x}")) == 401
    assert await push_event(port, b"x" * (6 * 1024 * 1024), "") == 401
    assert await push_event(port, b"x" * (6 * 1024 * 1024), signed(b"x")) == 413
    await asyncio.sleep(1)
    assert case.count() == 1, "no one who knows the secret has called"
    assert await push_event(port, b"{}", signed(b"{}")) == 202
    await case.until_count(2)
    files = case.origin.files()
    assert {path.split("/")[2] for path in files if path.startswith(top)} == {"one", "two"}
    assert "bad.yaml" in files["caphv-status.yaml"]
    await packager.until_value(1, "caphv_packager_definitions", state="faulty")
    await packager.until_value(2, "caphv_packager_push_events_total", code="401")
    # A source that is unreachable stops no bundles.
    away = source.folder.with_name("away")
    source.folder.rename(away)
    gone = time.time()
    await case.cluster("live", values=CALICO)
    await case.until_condition("live", "True")
    await packager.until_value(lambda value: value > 0, "caphv_packager_errors_total", kind="AccessDenied")
    # But it is no success, so that an alert can tell.
    await packager.until_value(lambda value: 0 < value <= gone, "caphv_packager_last_success_timestamp_seconds")


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
    await packager.until_idle()
    await case.annotate("one", **manifest(case)[0])
    await packager.until_idle()
    await packager.until_idle()
    assert case.count() == 2
    await case.until_condition("one", "True", part=case.origin.head())
    # The definition is removed: that waits for a confirmation; the bundles are removed with the Cluster.
    source.push({"README.md": "nothing"}, replace=True)
    await case.until_event("AddonBundlesKept", "caphv.io/confirm-removal=true")
    await case.annotate("one", **{"caphv.io/confirm-removal": "true"})

    async def released() -> bool:
        return "helm.sh/resource-policy" not in str(manifest(case)[0])

    await until(released, lambda: "the definition stays protected")
    await packager.until_idle()
    await packager.until_idle()
    assert manifest(case), "Fleet has not applied the manifest without protection"
    await case.annotate("one", **{"helm.sh/resource-policy": None})

    async def removed() -> bool:
        return not any(path.startswith("manifests/") for path in case.origin.files())

    await until(removed, lambda: "the definition stays")
    await packager.until_idle()
    assert "cni/fleet.yaml" in case.mine("one")
    await case.delete("one")
    await case.until_pruned("one")
