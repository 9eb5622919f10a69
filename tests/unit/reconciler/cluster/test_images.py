"""Images that a cluster declares are imported once, and what stands in the way is in a condition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from caphv.api import conditions
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj, Resource
from caphv.runtime.errors import (
    AlreadyExists,
    ApiError,
    Forbidden,
    Invalid,
    NotFound,
    RequestError,
    ServerFault,
    Unreachable,
)
from caphv.runtime.queue import WorkQueue
from reconciler import triggers
from reconciler.cluster.images import ensure_images
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester import slim
from reconciler.status import StatusDraft
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

    async def create(self, _resource: Resource, obj: Obj) -> Obj:
        if self.refusal:
            raise self.refusal
        self.created.append(obj)
        return obj

    def observe(self, obj: Obj) -> None:
        self.store.append(slim.image(obj))

    def report(self, **status: Any) -> None:
        """Let the controller of images write a status into the last image."""
        self.store[-1] = slim.image({**self.created[-1], "status": status})


class Cluster:
    def __init__(self, harvester: Harvester, *entries: Obj, target: str = "team-a") -> None:
        self.harvester, self.events = harvester, list[tuple[str, str]]()
        self.topics, self.queue = Topics(), WorkQueue[Key]("clusters")
        self.spec: Obj = {"targetNamespace": target, "images": list(entries)}
        self.status: Obj = {}
        self.requeue_after: float | None = None

    async def reconcile(self) -> Obj | None:
        """Return condition ImagesReady."""
        session: Any = SimpleNamespace(images=self.harvester, client=self.harvester.client, fingerprint="h")
        obj = {"metadata": {"namespace": "ns", "name": "c", "uid": "u"}, "spec": self.spec, "status": self.status}
        context: Any = SimpleNamespace(
            topics=self.topics,
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
        return condition["status"], condition["reason"], condition.get("message", "")


async def test_missing_image_is_created_once_and_its_progress_reported() -> None:
    harvester = Harvester()
    clusters = [Cluster(harvester, ENTRY, target=f"team-{number}") for number in range(20)]
    for cluster in clusters:
        status, reason, message = await cluster.message()
        assert (status, reason) == ("False", "ImagesImporting")
        assert message.startswith("default/sles: Harvester is importing the image")

    (obj,) = harvester.created
    assert obj["metadata"] == {"name": "sles", "namespace": "default", "labels": {"caphv.io/imported": "true"}}
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
    del cluster.spec["images"]
    assert await cluster.reconcile() is None
    assert len(cluster.harvester.created) == 1


async def test_changed_image_requeues_the_cluster() -> None:
    cluster = Cluster(Harvester(), ENTRY)
    await cluster.reconcile()
    cluster.topics.notify(triggers.images("h"))
    assert len(cluster.queue) == 1


@pytest.mark.parametrize(
    "refusal",
    [
        AlreadyExists(409, "AlreadyExists", "exists"),
        Invalid(409, "Conflict", 'admission webhook "x" denied the request: A resource with the same name exists'),
    ],
)
async def test_import_by_another_cluster_is_awaited(refusal: ApiError) -> None:
    cluster = Cluster(Harvester(refusal), ENTRY)
    status, reason, message = await cluster.message()
    assert (status, reason) == ("False", "ImagesImporting")
    assert message == "default/sles: waiting for Harvester to report the image"
    assert cluster.requeue_after
    assert cluster.events == []


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


async def test_bad_checksum_is_a_failure_with_the_message_of_harvester() -> None:
    cluster = Cluster(Harvester(), ENTRY)
    await cluster.reconcile()
    text = "failed to process sync file: the expected checksum"
    cluster.harvester.report(conditions=[{"type": "Imported", "status": "False", "message": text}])
    status, reason, message = await cluster.message()
    assert (status, reason) == ("False", "ImageImportFailed")
    assert text in message
    assert "delete VirtualMachineImage default/sles on Harvester" in message
    assert len(cluster.harvester.created) == 1, "an image of Harvester is never replaced"


async def test_invalid_entry_hides_no_other_and_is_never_sent() -> None:
    iso = {**ENTRY, "name": "iso", "url": "https://images.example.com/x.iso"}
    cluster = Cluster(Harvester(), iso, ENTRY, {"name": "x"})
    _, reason, message = await cluster.message()
    assert reason == "ImageImportFailed"
    assert "spec.images[0].url: is an ISO" in message
    assert "spec.images[2].url" in message
    assert [obj["metadata"]["name"] for obj in cluster.harvester.created] == ["sles"]
