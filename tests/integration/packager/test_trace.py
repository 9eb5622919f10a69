"""`caphv bundles trace` on a real API server, which is management and workload cluster; the test plays Fleet."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from caphv.api.object import NAMESPACES, SECRETS, Key, Obj, Resource
from caphv.api.resources import FLEET_CLUSTERS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound, TooManyRequests
from packager.rendering.bundles import bundle_name
from sandbox.processes.apiserver import ApiServer
from tests.support.packager.commands import in_thread
from tests.support.packager.definitions import definition
from tests.support.packager.environment import CLASSES, CLUSTERS, GIT_REPOS, install
from tests.support.packager.repositories import git
from tests.support.resources import FLEET_BUNDLES, HELM_CHART_CONFIGS
from tests.support.waiting import until

pytestmark = pytest.mark.integration
DEPLOYMENTS = Resource("fleet.cattle.io", "v1alpha1", "bundledeployments", "BundleDeployment")
NAME = bundle_name(Key("team-a", "demo"), "cni")


async def listed(client: ApiClient, kind: Resource) -> bool:
    try:
        await client.list(kind)
    except (NotFound, TooManyRequests):
        return False
    return True


async def create(client: ApiClient, resource: Resource, obj: Obj, status: Obj | None = None) -> None:
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    metadata = obj["metadata"]
    await client.create(resource, {**head, **obj})
    if status:
        place = metadata["name"], metadata["namespace"]
        await client.patch(resource, *place, {"status": status}, subresource="status")


def committed(folder: Path) -> str:
    """Make a folder a checkout with one commit; return that."""
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=All of it")
    return git(folder, "rev-parse", "HEAD")


async def play_cluster_api(server: ApiServer, client: ApiClient) -> None:
    kinds = (CLUSTERS, CLASSES, FLEET_CLUSTERS, FLEET_BUNDLES, GIT_REPOS, DEPLOYMENTS, HELM_CHART_CONFIGS)
    await install(server, *kinds)
    for kind in kinds:
        # An API server prepares the storage of a new kind.
        await until(lambda kind=kind: listed(client, kind), lambda kind=kind: f"{kind} cannot be listed")
    for name in ("team-a", "agent"):
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    ref = {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "HarvesterCluster", "name": "demo"}
    annotations = {"addons.caphv.io/values": "cni: {name: calico, mtu: 1400}"}
    metadata = {"name": "demo", "namespace": "team-a", "annotations": annotations}
    await create(client, CLUSTERS, {"metadata": metadata, "spec": {"infrastructureRef": ref}})
    kubeconfig = base64.b64encode(yaml.safe_dump(server.kubeconfig()).encode()).decode()
    secret = {"metadata": {"name": "demo-kubeconfig", "namespace": "team-a"}, "data": {"value": kubeconfig}}
    await client.create(SECRETS, secret)


async def play_fleet(client: ApiClient, folder: Path) -> None:
    place = {"namespace": "team-a"}
    await create(client, FLEET_CLUSTERS, {"metadata": {"name": "demo", **place}, "spec": {}}, {"namespace": "agent"})
    paths = {"paths": ["add-ons/clusters/team-a/*/*"]}
    await create(
        client,
        GIT_REPOS,
        {"metadata": {"name": "caphv-0", **place}, "spec": paths},
        {"commit": "3f1c9a5e77b0" + "0" * 28},
    )
    summary = {"observedGeneration": 1, "summary": {"desiredReady": 1, "ready": 1}}
    await create(client, FLEET_BUNDLES, {"metadata": {"name": NAME, **place}, "spec": {}}, summary)
    deployment = {"metadata": {"name": NAME, "namespace": "agent"}, "spec": {"deploymentID": "1"}}
    await create(client, DEPLOYMENTS, deployment, {"appliedDeploymentID": "1", "ready": True})
    config = yaml.safe_load((folder / "add-ons/clusters/team-a/demo/cni/helmchartconfig.yaml").read_bytes())
    await client.apply(HELM_CHART_CONFIGS, config, manager="fleetagent")


async def test_a_setting_is_followed_to_its_object_and_to_who_reverted_it(
    empty_api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, folder = empty_api_server, tmp_path / "fleet"
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    definitions = tmp_path / "definitions"
    definitions.mkdir()
    addons = {"cni": {"name": "calico", "mtu": 1400}}
    (definitions / "demo.yaml").write_text(yaml.safe_dump(definition("demo", addons=addons), sort_keys=False))
    own = committed(definitions)
    more = ("--folder", str(folder), "--path", "add-ons", "--definitions", str(definitions), "-o", "json")

    async def traced(code: int) -> Any:
        found = await in_thread("trace", "team-a/demo", "cni.mtu", *more)
        assert found.exit_code == code, found.output
        return json.loads(found.stdout)

    async with server.client() as client:
        await play_cluster_api(server, client)
        pushed = await in_thread("push", "--folder", str(folder), "--path", "add-ons")
        assert pushed.exit_code == 0, pushed.output
        pushed_by = committed(folder)
        (bundle,) = (await traced(1))["items"]
        assert bundle["stopped"] == "GitRepo", bundle["stages"][2]
        assert f"last changed by commit {pushed_by[:12]} of " in bundle["stages"][1]["detail"]
        await play_fleet(client, folder)
        report = await traced(0)
        line = next(
            number
            for number, text in enumerate((definitions / "demo.yaml").read_text().splitlines(), 1)
            if "mtu: 1400" in text
        )
        assert report["setting"]["place"] == f"demo.yaml:{line}"
        assert f"line by commit {own[:12]} of " in report["setting"]["detail"]
        assert [stage["ok"] for stage in report["items"][0]["stages"]] == [True] * 6

        # A server of an earlier release applies its old manifest again.
        config = await client.get(HELM_CHART_CONFIGS, "rke2-calico", "kube-system")
        metadata = {"name": "rke2-calico", "namespace": "kube-system"}
        old = {**config, "metadata": metadata, "spec": {"valuesContent": "mtu: 1450\n"}}
        await client.apply(HELM_CHART_CONFIGS, old, manager="deploy@server")
        (bundle,) = (await traced(1))["items"]
        assert bundle["stopped"] == "object"
        assert "spec.valuesContent was changed by deploy@server at " in bundle["stages"][-1]["detail"]
