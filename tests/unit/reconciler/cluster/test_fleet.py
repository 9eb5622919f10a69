"""Whose managed cluster it is, and what the Fleet Cluster is reported."""

import asyncio
from typing import Any, cast

import pytest

from caphv.api import names, resources
from caphv.api.conditions import get_condition
from caphv.api.object import Key, Resource
from caphv.runtime.errors import ApiError, Forbidden, Invalid, NotFound, ServerFault
from reconciler.cluster.fleet import ensure_fleet_labels, fleet_labels, managed_cluster_name
from reconciler.cluster.scope import ClusterScope
from reconciler.memory.periods import GRACE_SECONDS
from reconciler.statusdraft import StatusDraft
from tests.support.reconciler.memorycase import Cached, MemoryCase

pytestmark = pytest.mark.unit

CLUSTER = Key("clusters", "demo")
OWNER, NAMESPACE = "cluster-api.cattle.io/capi-cluster-owner", "cluster-api.cattle.io/capi-cluster-owner-ns"


def managed(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


@pytest.mark.parametrize(
    ("imported", "objects", "name"),
    [
        (None, [], ""),
        (None, [managed("c-1", **{OWNER: "demo", NAMESPACE: "clusters"})], "c-1"),
        (None, [managed("c-1", **{OWNER: "demo", NAMESPACE: "elsewhere"})], ""),
        (None, [managed("c-1", **{OWNER: "demo"}), managed("c-2")], ""),
        ({"status": {"clusterName": "c-3"}}, [managed("c-3")], "c-3"),
        ({"status": {}}, [managed("c-3")], ""),
        ({}, [], ""),
    ],
)
def test_managed_cluster_is_found_in_both_ways(imported: Any, objects: list[Any], name: str) -> None:
    assert managed_cluster_name(CLUSTER, imported, objects) == name


def test_labels_that_choose_bundles_are_copied_and_no_others() -> None:
    labels = {"cni": "calico", "csi": "harvester", "team": "a", "cluster.x-k8s.io/cluster-name": "wrong"}
    found = fleet_labels({"metadata": {"name": "demo", "namespace": "clusters", "labels": labels}})
    owner = {OWNER: "demo", NAMESPACE: "clusters"}
    assert found == {"cluster.x-k8s.io/cluster-name": "demo", "cni": "calico", "csi": "harvester", **owner}


# Labels on the Fleet Cluster


class Rancher:
    """What Rancher and Fleet have on a management cluster; None for CRDs that do not exist."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.case = MemoryCase(monkeypatch)
        self.case.cluster["metadata"]["labels"] = {names.AUTO_IMPORT_LABEL: "true", "cni": "calico"}
        self.is_installed: bool | None = True
        self.synced, self.started = True, 0
        server = self.case.management
        kinds = (resources.MANAGED_CLUSTERS, resources.FLEET_CLUSTERS, resources.RANCHER_CLUSTERS)
        self.informers: dict[Resource, Cached | None] = {kind: Cached(server, kind) for kind in kinds}
        self.case.context.rancher = cast(Any, self)
        self.draft = StatusDraft(self.case.obj)
        self.requeue_after: float | None = None

    def start(self) -> None:
        self.started += 1

    def informer(self, resource: Resource) -> Cached | None:
        return self.informers[resource]

    def put_managed(self, name: str = "c-1", workspace: str = "", *, external: bool = False, **labels: str) -> None:
        head = {"apiVersion": resources.MANAGED_CLUSTERS.api_version, "kind": resources.MANAGED_CLUSTERS.kind}
        annotations = {names.EXTERNALLY_MANAGED_ANNOTATION: "true"} if external else {}
        metadata = {"name": name, "labels": labels, "annotations": annotations}
        self.case.management.put({**head, "metadata": metadata, "spec": {"fleetWorkspaceName": workspace}})

    def put_fleet(self, name: str = "c-1", workspace: str = "fleet-default", owners: tuple[str, ...] = ()) -> None:
        head = {"apiVersion": resources.FLEET_CLUSTERS.api_version, "kind": resources.FLEET_CLUSTERS.kind}
        references = [{"kind": "Cluster", "uid": uid} for uid in owners]
        metadata = {"name": name, "namespace": workspace, "ownerReferences": references}
        self.case.management.put({**head, "metadata": metadata})

    async def ensure(self) -> tuple[str, str]:
        """Return status and reason of the condition."""
        scope = ClusterScope(self.case.context, self.case.obj, self.case.cluster, self.draft)
        await ensure_fleet_labels(scope)
        self.requeue_after = scope.requeue_after
        self.draft = self.case.written(self.draft)
        conditions = self.draft.fields.get("conditions") or ()
        found = [each for each in conditions if each["type"] == "FleetIntegrationReady"]
        return (found[0]["status"], found[0]["reason"]) if found else ("", "")


OWN = {OWNER: "demo", NAMESPACE: "team"}
PROGRESS = ("False", "FleetIntegrationInProgress")


@pytest.fixture
def rancher(monkeypatch: pytest.MonkeyPatch) -> Rancher:
    return Rancher(monkeypatch)


async def test_cluster_without_the_label_of_rancher_has_no_condition(rancher: Rancher) -> None:
    rancher.put_managed(**OWN)
    assert await rancher.ensure() == PROGRESS
    rancher.case.cluster["metadata"]["labels"] = {names.AUTO_IMPORT_LABEL: "false"}
    assert await rancher.ensure() == ("", "")
    assert rancher.started == 1


async def test_fleet_cluster_gets_workspace_and_labels_once(rancher: Rancher) -> None:
    assert await rancher.ensure() == PROGRESS
    rancher.put_managed(**OWN)
    assert await rancher.ensure() == PROGRESS
    managed = rancher.case.management.find("Cluster", "c-1")
    assert managed is not None
    assert managed["spec"]["fleetWorkspaceName"] == "fleet-default"
    rancher.put_fleet()
    for _ in range(2):
        assert (await rancher.ensure())[0] == "True"
    fleet = rancher.case.management.find("Cluster", "c-1", "fleet-default")
    assert fleet is not None
    assert fleet["metadata"]["labels"]["cni"] == "calico"
    assert rancher.case.events == [("Normal", "FleetClusterLabelled")]
    assert len(rancher.case.management.requests) == 2


async def test_workspace_that_a_user_chose_stays(rancher: Rancher) -> None:
    rancher.put_managed("c-1", "mine", **OWN)
    rancher.put_fleet("c-1", "mine")
    assert (await rancher.ensure())[0] == "True"
    assert [request.split()[0] for request in rancher.case.management.requests] == ["patch"]


@pytest.mark.parametrize(
    ("owners", "namespace", "status"),
    [
        ((), "team", "False"),
        (("another",), "team", "False"),
        (("cluster",), "elsewhere", "False"),
        (("cluster",), "team", "True"),
    ],
)
async def test_cluster_of_caapf_is_labelled_by_it(
    owners: tuple[str, ...], namespace: str, status: str, rancher: Rancher
) -> None:
    rancher.put_managed(external=True, **OWN)
    rancher.put_fleet("demo", namespace, owners)
    assert (await rancher.ensure())[0] == status
    assert rancher.case.management.requests == []


async def test_management_cluster_without_fleet_needs_no_labels(rancher: Rancher) -> None:
    rancher.informers[resources.FLEET_CLUSTERS] = None
    assert await rancher.ensure() == ("False", "FleetIntegrationNotApplicable")
    rancher.informers[resources.FLEET_CLUSTERS] = rancher.informers[resources.MANAGED_CLUSTERS]
    rancher.informers[resources.MANAGED_CLUSTERS] = None
    assert await rancher.ensure() == ("False", "FleetIntegrationNotApplicable")


@pytest.mark.parametrize(("installed", "synced"), [(None, True), (True, False), (None, False)])
async def test_what_was_known_stays_while_rancher_is_read(
    installed: bool | None, synced: bool, rancher: Rancher
) -> None:
    rancher.is_installed, rancher.synced = installed, synced
    assert await rancher.ensure() == PROGRESS
    rancher.is_installed, rancher.synced = True, True
    rancher.put_managed(**OWN)
    rancher.put_fleet()
    assert (await rancher.ensure())[0] == "True"
    rancher.is_installed, rancher.synced = installed, synced
    assert (await rancher.ensure())[0] == "True"
    assert rancher.requeue_after is not None


@pytest.mark.parametrize("kind", [Forbidden, Invalid, NotFound, ServerFault])
async def test_refused_label_is_reported_once_and_tried_again(kind: type[ApiError], rancher: Rancher) -> None:
    rancher.put_managed(**OWN)
    rancher.put_fleet()
    rancher.case.management.errors["patch Cluster"] = kind(403, "", "no")
    for _ in range(2):
        assert await rancher.ensure() == ("False", "FleetIntegrationFailed")
        assert rancher.requeue_after == 60.0
    assert rancher.case.events == [("Warning", "FleetIntegrationFailed")]
    rancher.case.management.errors.clear()
    assert (await rancher.ensure())[0] == "True"


@pytest.mark.virtual_time
async def test_ready_cluster_says_in_the_end_that_rancher_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rancher = Rancher(monkeypatch)
    case = rancher.case

    def message() -> str:
        found = get_condition(case.obj["status"]["conditions"], "FleetIntegrationReady") or {}
        return str(found.get("message"))

    await case.reconcile()
    case.assign("10.0.0.10")
    await case.reconcile()
    before = message()
    assert before
    for _ in range(2):
        rancher.synced = False
        await case.reconcile()
        await asyncio.sleep(GRACE_SECONDS - 1)
        requeue_after = await case.reconcile()
        assert (message(), requeue_after) == (before, pytest.approx(1, abs=0.1))
        # What was read in between begins a new grace period.
        rancher.synced = True
        await case.reconcile()
    rancher.synced = False
    await case.reconcile()
    await asyncio.sleep(GRACE_SECONDS + 1)
    await case.reconcile()
    assert message() == "reading the clusters of Rancher"
