"""Images of the simulated Harvester are imported step by step, and CDI fills disks of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from caphv.api.bootimage import ImageImport
from caphv.api.object import NAMESPACES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES, Obj
from caphv.runtime.cache import Change, Informer
from caphv.runtime.errors import Invalid, NotFound
from reconciler.cluster.images import image_object
from sandbox.harvester import kinds
from sandbox.harvester.images import content_checksum
from sandbox.processes import network
from sandbox.processes.apiserver import ApiServer
from tests.support.simulation import Place, Simulation, simulation, virtual_machine
from tests.support.waiting import until

pytestmark = pytest.mark.integration

CDI = {"backend": "cdi", "targetStorageClassName": "harvester-longhorn"}


@pytest.fixture(scope="module")
def place(etcd_folder: Path) -> Iterator[Place]:
    """An API server of this module: the webhooks of the simulation stay on it."""
    server = ApiServer(etcd_folder, "images")
    asyncio.run(server.start())
    with network.claim() as (claimed, _):
        yield Place(server, str(claimed))
    asyncio.run(server.stop())


async def import_image(sim: Simulation, **spec: str) -> list[tuple[str, int]]:
    """Import image `one`; return status of condition `Imported` and progress, as they came."""
    seen: list[tuple[str, int]] = []

    def note(change: Change) -> None:
        status = change.obj.get("status") or {}
        imported = next((entry for entry in status.get("conditions") or () if entry["type"] == "Imported"), None)
        if imported and (state := (imported["status"], status["progress"])) not in seen:
            seen.append(state)

    images = Informer(sim.client, kinds.IMAGES, namespace=sim.namespace)
    images.add_handler(note)
    task = images.start()
    await images.wait_synced()
    url = "https://images.example.com/one.qcow2"
    image = {"displayName": "one", "sourceType": "download", "url": url, **spec}
    metadata = {"name": "one", "namespace": sim.namespace}
    await sim.client.create(kinds.IMAGES, kinds.typed(kinds.IMAGES, {"metadata": metadata, "spec": image}))
    await until(lambda: ("True", 100) in seen, lambda: f"the image is imported: {seen}")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return seen


@pytest.mark.parametrize("spec", [{"backend": "backingimage"}, CDI], ids=lambda spec: spec["backend"])
async def test_import_reports_its_progress(place: Place, spec: dict[str, str]) -> None:
    async with simulation(place, f"import-{spec['backend']}", import_seconds=0.8) as sim:
        assert await import_image(sim, **spec) == [("Unknown", 0), ("Unknown", 50), ("True", 100)]
        image = await sim.client.get(kinds.IMAGES, "one", sim.namespace)
        target = spec.get("targetStorageClassName") or f"lh-{image['metadata']['uid']}"
        assert image["status"]["storageClassName"] == target


@pytest.mark.parametrize(
    ("host", "checksum", "text", "imported"),
    [
        ("images.example.com", "0" * 128, "doesn't match the file actual checksum", "False"),
        ("images.invalid", "", "lookup images.invalid: no such host", None),
    ],
)
async def test_import_that_fails_is_repeated_and_given_up(
    place: Place, host: str, checksum: str, text: str, imported: str | None
) -> None:
    async with simulation(place, f"fails-{host.partition('.')[2].replace('.', '-')}") as sim:
        spec = {
            "displayName": "one",
            "sourceType": "download",
            "url": f"https://{host}/one.qcow2",
            "checksum": checksum,
        }
        obj = {"metadata": {"name": "one", "namespace": sim.namespace}, "spec": {**spec, "retry": 2}}
        await sim.client.create(kinds.IMAGES, kinds.typed(kinds.IMAGES, obj))

        def conditions(image: Obj) -> dict[str, Obj]:
            return {entry["type"]: entry for entry in (image.get("status") or {}).get("conditions") or ()}

        def is_given_up(image: Obj) -> bool:
            return conditions(image).get("RetryLimitExceeded", {}).get("status") == "True"

        image = await sim.until(kinds.IMAGES, "one", is_given_up)
        assert text in conditions(image)["RetryLimitExceeded"]["message"]
        assert conditions(image)["RetryLimitExceeded"]["message"].startswith("retry attempted 2/2 failed due to error")
        assert conditions(image).get("Imported", {}).get("status") == imported
        assert image["status"]["failed"] == 3


async def test_second_image_of_a_name_is_refused(place: Place) -> None:
    async with simulation(place, "twice") as sim:
        for number, refusal in ((1, ""), (2, "A resource with the same name exists")):
            metadata = {"name": f"image-{number}", "namespace": sim.namespace}
            spec = {"displayName": "one", "sourceType": "download", "url": "https://images.example.com/one.qcow2"}
            obj = kinds.typed(kinds.IMAGES, {"metadata": metadata, "spec": spec})
            if not refusal:
                await sim.client.create(kinds.IMAGES, obj)
                await sim.until(kinds.IMAGES, "image-1", lambda image: image.get("status"))
                continue
            with pytest.raises(Invalid, match=refusal) as caught:
                await sim.client.create(kinds.IMAGES, obj)
            assert (caught.value.status, caught.value.reason) == (409, "Conflict")


async def test_classes_of_two_namespaces_are_those_of_their_images(place: Place) -> None:
    """Up to 1.7, the class is named after the object alone, and belongs to the image that is imported last."""
    async with simulation(place, "classes", harvester="1.7") as sim:
        await sim.client.create(NAMESPACES, {"metadata": {"name": "classes-b"}})

        async def image_of(obj: Obj) -> Obj:
            return await sim.client.get(kinds.IMAGES, obj["metadata"]["name"], obj["metadata"]["namespace"])

        async def is_imported(obj: Obj) -> bool:
            return ((await image_of(obj)).get("status") or {}).get("progress") == 100

        async def contents_of(objects: list[Obj]) -> list[str]:
            """Import images, and return whose content their classes have: `own` or `other`."""
            for obj in objects:
                await sim.client.create(kinds.IMAGES, kinds.typed(kinds.IMAGES, obj))
                await until(partial(is_imported, obj), "the image is imported")
            contents = []
            for image in [await image_of(obj) for obj in objects]:
                found = await sim.client.get(STORAGE_CLASSES, image["status"]["storageClassName"])
                own = found["parameters"]["backingImage"] == f"vmi-{image['metadata']['uid']}"
                contents.append("own" if own else "other")
            return contents

        url = "https://images.example.com/one.qcow2"
        declared = [
            ImageImport(namespace, "one", url, content_checksum(url)) for namespace in (sim.namespace, "classes-b")
        ]
        spec = {"displayName": "two", "sourceType": "download", "url": url}
        alike = [{"metadata": {"name": "two", "namespace": one.namespace}, "spec": spec} for one in declared]
        assert await contents_of(alike) == ["other", "own"]
        await sim.client.delete(kinds.IMAGES, "two", "classes-b")

        async def class_was_deleted() -> bool:
            classes = (await sim.client.list(STORAGE_CLASSES))["items"]
            return all(obj["metadata"]["name"] != "longhorn-two" for obj in classes)

        await until(class_was_deleted, "the class is deleted with the image of the other namespace")

        assert await contents_of([image_object(image) for image in declared]) == ["own", "own"]


async def test_guest_starts_when_cdi_has_filled_its_disk(place: Place) -> None:
    async with simulation(place, "cdi", import_seconds=0.8) as sim:
        await import_image(sim, **CDI)
        vm = virtual_machine(sim.namespace, "one", access_mode="ReadWriteOnce")
        await sim.client.create(kinds.VIRTUAL_MACHINES, of_image(vm, f"{sim.namespace}/one"))
        disk = "one-disk-0-x7k2p"
        volume = await sim.until(kinds.DATA_VOLUMES, disk, lambda obj: obj.get("status"))
        assert volume["spec"]["source"] == {"pvc": {"namespace": sim.namespace, "name": "one"}}
        claim = await sim.until(PERSISTENT_VOLUME_CLAIMS, disk, lambda obj: obj["status"]["phase"] == "Bound")
        assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
        assert claim["metadata"]["ownerReferences"][0]["kind"] == "DataVolume"

        await sim.until(kinds.INSTANCES, "one", lambda vmi: vmi["status"]["phase"] == "Running")
        volume = await sim.client.get(kinds.DATA_VOLUMES, disk, sim.namespace)
        assert volume["status"] == {"phase": "Succeeded", "progress": "100.0%"}

        await sim.client.delete(PERSISTENT_VOLUME_CLAIMS, "one", sim.namespace)
        await sim.until_gone(kinds.DATA_VOLUMES, "one")
        with pytest.raises(NotFound):
            await sim.client.get(PERSISTENT_VOLUME_CLAIMS, "one", sim.namespace)


def of_image(vm: Obj, image: str) -> Obj:
    """The VM with its first disk made of an image."""
    (claim,) = json.loads(vm["metadata"]["annotations"][kinds.CLAIM_TEMPLATES])
    claim["metadata"]["annotations"] = {kinds.IMAGE_ID: image}
    vm["metadata"]["annotations"][kinds.CLAIM_TEMPLATES] = json.dumps([claim])
    return vm
