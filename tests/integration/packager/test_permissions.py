"""The shipped rules are enough for the packager, and none of them is too many."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from caphv.api.object import EVENTS, Obj, Resource
from caphv.runtime.errors import Forbidden
from packager.upgrade import request as upgrade_request
from sandbox import manifests
from sandbox.processes.apiserver import ApiServer
from tests.support.metrics import scrape, token
from tests.support.packager.environment import (
    CLASSES,
    CLUSTERS,
    CONTROL_PLANES,
    FLEET_CLUSTERS,
    GIT_REPOS,
    Case,
    install,
    opened,
)
from tests.support.packager.repositories import Origin
from tests.support.paths import CHECKOUT
from tests.support.permissions import GROUPS, asked, granted, in_namespace
from tests.support.resources import FLEET_BUNDLES
from tests.support.waiting import until
from tools.release.components import objects

pytestmark = pytest.mark.integration

ROLES = objects(CHECKOUT / "deploy" / "kustomize" / "packager")
ACCOUNT = "system:serviceaccount:caphv-system:caphv-packager"
OTHERS = [
    Resource(CONTROL_PLANES.group, CONTROL_PLANES.version, f"{kind.lower()}s", kind)
    for kind in ("KThreesControlPlane", "KubeadmControlPlane", "TalosControlPlane")
]
# A control plane that the shipped rules do not know.
UNKNOWN = Resource(CONTROL_PLANES.group, CONTROL_PLANES.version, "spacecontrolplanes", "SpaceControlPlane")


@pytest.fixture(scope="module")
def audited(etcd_folder: Path) -> Iterator[ApiServer]:
    """An API server that writes down what is asked, with all kinds that the packager knows and its shipped account."""
    server = ApiServer(etcd_folder, "packager-rights", audit=True)
    asyncio.run(server.start())
    asyncio.run(prepared(server))
    yield server
    asyncio.run(server.stop())


async def prepared(server: ApiServer) -> None:
    await install(server, CLUSTERS, CLASSES, CONTROL_PLANES, *OTHERS, UNKNOWN, FLEET_CLUSTERS, FLEET_BUNDLES, GIT_REPOS)
    namespace: Obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "caphv-system"}}
    async with server.client() as client:
        await manifests.apply(client, [namespace])


async def test_shipped_rules_are_enough_in_one_namespace_and_none_is_too_many(
    audited: ApiServer, tmp_path: Path, origin: Origin
) -> None:
    """Those for all namespaces are the same rules without the limit, which a unit test compares."""
    async with opened(audited, tmp_path, origin) as case:
        await manifests.apply(case.client, in_namespace(ROLES, case.namespace))
        await live(case)
    assert asked(audited, ACCOUNT, "forbid") == {(UNKNOWN.group, UNKNOWN.plural, "list")}
    assert granted(ROLES) - asked(audited, ACCOUNT, "allow") == set()
    async with audited.client(ACCOUNT, GROUPS) as client:
        with pytest.raises(Forbidden):
            await client.list(CLUSTERS, "default")


async def live(case: Case) -> None:
    """A cluster of each distribution, a problem that is reported twice, and the end."""
    packager = case.packager("--leader-elect", "--metrics-secure", "--interval=1")
    packager.run_as(case.server, ACCOUNT, *GROUPS)
    packager.environment["POD_NAMESPACE"] = "caphv-system"
    await packager.start()
    assert (await scrape(packager.metrics_port, await token(case.client, "stranger")))[0] == 403
    await case.cluster("one", values={"cni": {"name": "calico"}})
    for resource in (*OTHERS, UNKNOWN):
        await other(case, resource)
    rule = "{apiGroups: [controlplane.cluster.x-k8s.io], resources: [spacecontrolplanes], verbs: [list, watch]}"
    await case.until_condition("spacecontrolplane", "False", "AddonBundlesInProgress", f"with rule {rule}")
    await case.until_condition("one", "False", "AddonBundlesNotApplied")
    # The same Event again is the same object again.
    for mtu, reason in ((9, "AddonBundlesInvalid"), (1450, "AddonBundlesNotApplied"), (9, "AddonBundlesInvalid")):
        await case.set_values("one", {"cni": {"name": "calico", "mtu": mtu}})
        await case.until_condition("one", "False", reason)
    await case.delete("one")
    # The Lease is in the packager's own namespace.
    case.origin.push({upgrade_request.file_of(case.namespace): "nonsense"})
    await until(partial(has_event, case), "no Event of the upgrade")
    await packager.stop()


async def has_event(case: Case) -> bool:
    listed = await case.client.list(EVENTS, "caphv-system")
    return any(row["reason"] == "UpgradeNotPossible" for row in listed["items"])


async def other(case: Case, resource: Resource) -> None:
    """A Cluster whose control plane is of this kind."""
    name = resource.kind.lower()
    await case.cluster(name)
    metadata = {"name": name, "namespace": case.namespace}
    await case.client.create(
        resource, {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    )
    reference = {"apiGroup": resource.group, "kind": resource.kind, "name": name}
    await case.client.patch(CLUSTERS, name, case.namespace, {"spec": {"controlPlaneRef": reference}})
