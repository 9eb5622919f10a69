"""Images that a cluster declares are imported once, and what stands in the way is in a condition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api import conditions
from caphv.api.bootimage import PENDING_IMPORTS, imports
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj, Resource
from caphv.runtime.errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    Invalid,
    NamespaceTerminating,
    NotFound,
    RequestError,
    ServerFault,
    TooManyRequests,
    Unreachable,
)
from caphv.runtime.queue import WorkQueue
from reconciler import triggers
from reconciler.cluster.images import ensure_images
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester import slim
from reconciler.harvester.importrefusals import ImportRefusals
from reconciler.memory.store import Memory
from reconciler.statusdraft import StatusDraft
from reconciler.triggers import Topics

pytestmark = pytest.mark.unit

SUM = "a" * 128
ENTRY = {"name": "default/sles", "url": "https://images.example.com/sles.qcow2", "checksum": SUM}


class Harvester:
    """The images of a Harvester, and the cache of a session."""

    def __init__(self, refusal: RequestError | None = None) -> None:
        self.refusal, self.created = refusal, list[Obj]()
        self.store: list[Obj] = []
        self.client = SimpleNamespace(create=self.create)
        self.now, self.requests = 0.0, 0
        self.refusals = ImportRefusals(lambda: self.now)

    async def create(self, _resource: Resource, obj: Obj) -> Obj:
        self.requests += 1
        if self.refusal:
            raise self.refusal
        self.created.append(obj)
        return obj

    def observe(self, obj: Obj) -> None:
        self.store.append(slim.image(obj))

    def report(self, **status: Any) -> None:
        """Let the controller of images write a status into the last image."""
        obj = self.created[-1]
        metadata = {**obj["metadata"], "uid": "x"}
        self.store[-1] = slim.image({**obj, "metadata": metadata, "status": status})


class Cluster:
    def __init__(self, harvester: Harvester, *entries: Obj, target: str = "team-a") -> None:
        self.harvester, self.events = harvester, list[tuple[str, str]]()
        self.topics, self.queue = Topics(), WorkQueue[Key]("clusters")
        self.spec: Obj = {"targetNamespace": target, "images": list(entries)}
        self.status: Obj = {}
        self.annotations: dict[str, str] = {}
        self.memory = Memory()
        self.requeue_after: float | None = None

    async def reconcile(self) -> Obj | None:
        """Return condition ImagesReady."""
        session: Any = SimpleNamespace(
            images=self.harvester,
            client=self.harvester.client,
            fingerprint="h",
            import_refusals=self.harvester.refusals,
        )
        metadata = {"namespace": "ns", "name": "c", "uid": "u", "annotations": self.annotations}
        obj = {"metadata": metadata, "spec": self.spec, "status": self.status}
        context: Any = SimpleNamespace(
            topics=self.topics,
            memory=self.memory,
            queues=SimpleNamespace(clusters=self.queue),
            event=lambda _resource, _obj, _kind, reason, message: self.events.append((reason, message)),
        )
        scope = ClusterScope(context, obj, obj, StatusDraft(obj), session)
        await ensure_images(scope)
        self.status, self.requeue_after = scope.draft.fields, scope.requeue_after
        return conditions.get_condition(self.status.get("conditions") or [], ConditionType.IMAGES_READY)

    async def message(self) -> tuple[str, str, str]:
        condition = await self.reconcile()
        assert condition
        # `caphv upgrade` tells images that are waited for by their texts.
        if condition["reason"] == "ImagesImporting":
            entries = condition["message"].split("; ")
            assert all(entry.partition(": ")[2].startswith(PENDING_IMPORTS) for entry in entries)
        return condition["status"], condition["reason"], condition.get("message", "")


async def test_missing_image_is_created_once_and_its_progress_reported() -> None:
    harvester = Harvester()
    clusters = [Cluster(harvester, ENTRY, target=f"team-{number}") for number in range(20)]
    for cluster in clusters:
        status, reason, message = await cluster.message()
        assert (status, reason) == ("False", "ImagesImporting")
        assert message.startswith("default/sles: Harvester is importing the image")

    (obj,) = harvester.created
    name = obj["metadata"]["name"]
    assert name.startswith("sles-")
    assert obj["metadata"] == {"name": name, "namespace": "default", "labels": {"caphv.io/imported": "true"}}
    assert obj["spec"] == {
        "displayName": "sles",
        "sourceType": "download",
        "url": ENTRY["url"],
        "checksum": SUM,
        "backend": "backingimage",
    }
    assert [reason for cluster in clusters for reason, _ in cluster.events] == ["ImageImportStarted"]

    harvester.report(progress=57, conditions=[{"type": "Imported", "status": "Unknown"}])
    assert "at least 50 % done" in (await clusters[3].message())[2]
    harvester.report(storageClassName="lh-x", conditions=[{"type": "Imported", "status": "True"}])
    assert await clusters[3].message() == ("True", "ImagesReady", "")


async def test_cluster_without_images_has_no_condition_and_asks_for_nothing() -> None:
    cluster = Cluster(Harvester(), ENTRY)
    assert await cluster.reconcile()
    cluster.topics.notify(triggers.image("h", "default", "sles"))
    assert len(cluster.queue) == 1

    before = Cluster(Harvester(Unreachable("x")))
    for spec in ({"images": []}, {}):
        before.spec = {"targetNamespace": "team-a", **spec}
        before.status = cluster.status
        assert await before.reconcile() is None
    before.topics.notify(triggers.image("h", "default", "sles"))
    assert (before.harvester.requests, len(before.queue), before.requeue_after) == (0, 0, None)


async def test_changed_image_requeues_the_clusters_that_declare_it() -> None:
    cluster = Cluster(Harvester(), ENTRY, {**ENTRY, "name": "tools"})
    await cluster.reconcile()
    for namespace, name in (("default", "tools"), ("team-b", "sles"), ("default", "other")):
        cluster.topics.notify(triggers.image("h", namespace, name))
        assert len(cluster.queue) == 0, (namespace, name)
    cluster.topics.notify(triggers.image("h", "team-a", "tools"))
    assert len(cluster.queue) == 1


async def test_namespaces_share_no_name_of_an_object() -> None:
    # Up to 1.7, Harvester names the StorageClass of an image after its object alone.
    harvester = Harvester()
    clusters = [Cluster(harvester, {**ENTRY, "name": "sles"}, target=target) for target in ("team-a", "team-b")]
    for cluster in clusters:
        await cluster.reconcile()
    assert [obj["metadata"]["namespace"] for obj in harvester.created] == ["team-a", "team-b"]
    assert len({obj["metadata"]["name"] for obj in harvester.created}) == 2
    assert {obj["spec"]["displayName"] for obj in harvester.created} == {"sles"}


async def test_name_of_an_object_in_another_namespace_is_not_taken_again() -> None:
    harvester = Harvester()
    cluster = Cluster(harvester, ENTRY)
    name = next(iter(imports(cluster.spec).values())).object_name
    harvester.observe({"metadata": {"name": name, "namespace": "team-x"}, "spec": {"displayName": "else"}})
    _, reason, message = await cluster.message()
    assert reason == "ImageImportFailed"
    assert f"VirtualMachineImage team-x/{name} of another namespace" in message
    assert harvester.created == []


async def test_name_of_an_object_in_its_own_namespace_is_for_harvester_to_refuse() -> None:
    harvester = Harvester()
    cluster = Cluster(harvester, ENTRY)
    image = next(iter(imports(cluster.spec).values()))
    metadata = {"name": image.object_name, "namespace": image.namespace}
    harvester.observe({"metadata": metadata, "spec": {"displayName": "else"}})
    await cluster.reconcile()
    assert [obj["metadata"]["name"] for obj in harvester.created] == [image.object_name]


CONFLICT = Invalid(409, "Conflict", 'admission webhook "x" denied the request: A resource with the same name exists')


@pytest.mark.parametrize("refusal", [AlreadyExists(409, "AlreadyExists", "exists"), CONFLICT])
async def test_import_by_another_cluster_is_awaited(refusal: ApiError) -> None:
    cluster = Cluster(Harvester(refusal), ENTRY)
    status, reason, message = await cluster.message()
    assert (status, reason) == ("False", "ImagesImporting")
    assert message == "default/sles: waiting for Harvester to report the image"
    assert cluster.requeue_after
    assert cluster.events == []


@pytest.mark.parametrize("refusal", [CONFLICT, ServerFault(500, "InternalError", "failed calling webhook: exists")])
async def test_refusal_that_does_not_end_becomes_a_failure_in_harvesters_words(refusal: ApiError) -> None:
    cluster = Cluster(Harvester(refusal), ENTRY)
    delays = []
    while (await cluster.message())[1] == "ImagesImporting":
        assert cluster.requeue_after
        delays.append(cluster.requeue_after)
        cluster.harvester.now += cluster.requeue_after
    assert delays == [5, 10, 20, 40]
    assert "refuses the import" in cluster.events[0][1]
    assert "exists" in cluster.events[0][1]
    if refusal is CONFLICT:
        assert "label harvesterhci.io/imageDisplayName" in cluster.events[0][1]

    cluster.harvester.refusal = None
    cluster.harvester.now += 300
    assert (await cluster.message())[1] == "ImagesImporting"
    assert len(cluster.harvester.created) == 1


FORBIDDEN = Forbidden(403, "Forbidden", 'User "x" cannot create resource "virtualmachineimages"')


@pytest.mark.parametrize(
    ("refusal", "requests"),
    [
        (FORBIDDEN, 2),
        (NotFound(404, "NotFound", "no namespace"), 2),
        (NamespaceTerminating(403, "Forbidden", "is being terminated"), 2),
        (Forbidden(403, "Forbidden", "exceeded quota"), 33),
        (Invalid(422, "Invalid", "x"), 33),
        (CONFLICT, 33),
        (ServerFault(500, "InternalError", "x"), 33),
        (Unreachable("x"), 1),
        (TooManyRequests(429, "TooManyRequests", "x"), 1),
    ],
)
async def test_refused_request_is_remembered_for_all_clusters_of_the_account(
    refusal: RequestError, requests: int
) -> None:
    harvester = Harvester(refusal)
    entries = [{**ENTRY, "name": f"default/{number}"} for number in range(32)]
    other = {**ENTRY, "name": "other/sles"}
    clusters = [Cluster(harvester, *entries, other, target=f"team-{number}") for number in range(3)]
    assert await clusters[0].reconcile()
    assert harvester.requests == requests
    if requests == 1:
        return
    for cluster in clusters:
        condition = await cluster.reconcile()
        assert condition
        assert condition["status"] == "False"
        assert cluster.requeue_after
    assert harvester.requests == requests, "nothing is repeated before its delay has passed"
    # What one refused may be allowed to another spec.
    corrected = Cluster(harvester, {**ENTRY, "name": "third/sles"})
    await corrected.reconcile()
    assert harvester.requests == requests + 1


async def test_right_that_is_granted_is_noticed_after_a_delay() -> None:
    cluster = Cluster(Harvester(FORBIDDEN), ENTRY)
    delays = []
    for _ in range(6):
        await cluster.reconcile()
        assert cluster.requeue_after
        delays.append(cluster.requeue_after)
        cluster.harvester.now += cluster.requeue_after
    assert delays == [60, 120, 240, 480, 600, 600]
    cluster.harvester.refusal = None
    assert (await cluster.message())[1] == "ImagesImporting"


async def test_user_who_has_granted_the_right_need_not_wait_for_the_delay() -> None:
    cluster = Cluster(Harvester(FORBIDDEN), ENTRY)
    for value, requests in (("1", 1), ("1", 1), ("2", 2), ("2", 2)):
        cluster.annotations["caphv.io/reconcile-at"] = value
        await cluster.reconcile()
        assert cluster.harvester.requests == requests


async def test_event_of_a_failure_is_not_repeated_with_the_progress_of_others() -> None:
    harvester = Harvester()
    cluster = Cluster(harvester, {"name": "bad"}, ENTRY)
    await cluster.reconcile()
    for progress in range(0, 100, 10):
        harvester.report(progress=progress, conditions=[{"type": "Imported", "status": "Unknown"}])
        assert f"at least {progress} % done" in (await cluster.message())[2]
    assert [reason for reason, _ in cluster.events].count("ImageImportFailed") == 1


@pytest.mark.parametrize("refusal", ["exceeded quota: images", "denied by policy"])
async def test_other_refusals_with_403_do_not_ask_for_the_right(refusal: str) -> None:
    _, _, message = await Cluster(Harvester(Forbidden(403, "Forbidden", refusal)), ENTRY).message()
    assert message == f"default/sles: Harvester refuses the import: {refusal}"


@pytest.mark.parametrize(
    ("refusal", "remedy"),
    [
        (
            Forbidden(403, "Forbidden", "cannot create"),
            "--target-namespace team-a --import-images default, with --name",
        ),
        (NotFound(404, "NotFound", 'namespaces "default" not found'), "create namespace default on Harvester"),
        (Invalid(422, "Invalid", "displayName is not valid"), "refuses the import: displayName is not valid"),
    ],
)
async def test_refusal_is_a_failure_with_its_remedy(refusal: ApiError, remedy: str) -> None:
    cluster = Cluster(Harvester(refusal), ENTRY)
    status, reason, message = await cluster.message()
    assert (status, reason) == ("False", "ImageImportFailed")
    assert remedy in message
    assert cluster.requeue_after
    await cluster.reconcile()
    assert cluster.events == [("ImageImportFailed", message)], "a failure that lasts is reported once"


@pytest.mark.parametrize("error", [ServerFault(500, "InternalError", "failed calling webhook"), Unreachable("x")])
async def test_failed_request_keeps_no_other_phase_from_its_work(error: RequestError) -> None:
    cluster = Cluster(Harvester(error), ENTRY)
    status, reason, message = await cluster.message()
    assert (status, reason) == ("False", "ImagesImporting")
    assert message.endswith("and is repeated")
    assert cluster.requeue_after
    assert cluster.events == []


async def test_image_that_was_refused_is_named_while_harvester_does_not_answer() -> None:
    harvester = Harvester(Invalid(422, "Invalid", "displayName is not valid"))
    cluster = Cluster(harvester, ENTRY)
    await cluster.reconcile()
    harvester.refusal = Unreachable("x")
    cluster.spec["images"].insert(0, {**ENTRY, "name": "default/first"})
    _, reason, message = await cluster.message()
    assert reason == "ImageImportFailed"
    assert "default/sles: Harvester refuses the import: displayName is not valid" in message


async def test_bad_checksum_is_a_failure_with_the_message_of_harvester() -> None:
    cluster = Cluster(Harvester(), ENTRY)
    await cluster.reconcile()
    text = "failed to process sync file: the expected checksum"
    cluster.harvester.report(conditions=[{"type": "Imported", "status": "False", "message": text}])
    status, reason, message = await cluster.message()
    assert (status, reason) == ("False", "ImageImportFailed")
    assert text in message
    name = cluster.harvester.created[0]["metadata"]["name"]
    assert f"delete VirtualMachineImage default/{name} on Harvester" in message
    assert len(cluster.harvester.created) == 1, "an image of Harvester is never replaced"


async def test_invalid_entry_hides_no_other_and_is_never_sent() -> None:
    iso = {**ENTRY, "name": "iso", "url": "https://images.example.com/x.iso"}
    cluster = Cluster(Harvester(), iso, ENTRY, {"name": "x"})
    _, reason, message = await cluster.message()
    assert reason == "ImageImportFailed"
    assert "spec.images[0].url: is an ISO" in message
    assert "spec.images[2].url" in message
    assert [obj["spec"]["displayName"] for obj in cluster.harvester.created] == ["sles"]
