"""Images that a cluster declares: imported once for all clusters, and what a machine does until then."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from caphv.api.bootimage import imports
from caphv.api.object import EVENTS, Obj
from caphv.runtime.errors import Invalid
from sandbox.harvester import kinds
from tests.support.images import by_version, declared
from tests.support.reconciler.case import (
    AT_ONCE,
    HARVESTER_CLUSTERS,
    HARVESTER_MACHINES,
    Case,
)
from tests.support.reconciler.conditions import condition_of, is_false, is_ready, is_true
from tests.support.waiting import until

pytestmark = pytest.mark.integration

VERSION, LATER = "v1.36.2+rke2r1", "v1.36.3+rke2r1"


async def images_of(case: Case, prefix: str) -> list[Obj]:
    """The images on Harvester whose display names begin with a prefix."""
    images = (await case.harvester.list(kinds.IMAGES, "default"))["items"]
    return [image for image in images if image["spec"]["displayName"].startswith(prefix)]


async def drop(case: Case, name: str) -> None:
    for image in await images_of(case, name):
        await case.harvester.delete(kinds.IMAGES, image["metadata"]["name"], "default")


async def image_of(case: Case, vm: Obj) -> Any:
    """The display name of the image of a VM's first disk."""
    claims = json.loads(vm["metadata"]["annotations"]["harvesterhci.io/volumeClaimTemplates"])
    namespace, _, name = claims[0]["metadata"]["annotations"]["harvesterhci.io/imageId"].partition("/")
    return (await case.harvester.get(kinds.IMAGES, name, namespace))["spec"]["displayName"]


async def test_two_clusters_have_one_import_and_machines_boot_from_that_of_their_version(
    case: Case, other: Case
) -> None:
    prefix = f"{case.name}-sles"
    names = [f"{prefix}-{version}" for version in ("1.36.2-rke2r1", "1.36.3-rke2r1")]
    images = [declared(f"default/{name}") for name in names]
    await asyncio.gather(*(cluster.ready_cluster(images=images) for cluster in (case, other)))
    for cluster in (case, other):
        await cluster.until(HARVESTER_CLUSTERS, cluster.name, is_true("ImagesReady"))
    found = await images_of(case, prefix)
    assert sorted(image["spec"]["displayName"] for image in found) == names
    assert {image["metadata"]["labels"]["caphv.io/imported"] for image in found} == {"true"}
    assert {image["spec"]["checksum"] for image in found} == {entry["checksum"] for entry in images}
    uids = {image["metadata"]["uid"] for image in found}

    # The same spec, and another version: what a rollout of a new version creates.
    for name, version in (("before", VERSION), ("after", LATER)):
        await case.ready_machine(name, version=version, volumes=[by_version(prefix)])
    assert await image_of(case, await case.vm("before")) == names[0]
    assert await image_of(case, await case.vm("after")) == names[1]
    assert condition_of(await case.get(HARVESTER_MACHINES, "before"), "VMUpToDate")["status"] == "True"

    # Neither the end of a machine nor that of a cluster takes an image, which others use.
    await case.delete_machine("after")
    assert await other.remove() == []
    assert {image["metadata"]["uid"] for image in await images_of(case, prefix)} == uids
    # One that a user has deleted is imported again.
    await drop(case, names[1])

    async def is_back() -> bool:
        return len(await images_of(case, prefix)) == 2

    await until(is_back, "the image is imported again")
    await case.delete_machine("before")
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"images": None}})
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: not condition_of(obj, "ImagesReady"))
    for name in names:
        await drop(case, name)


async def test_bad_checksum_stops_the_machine_before_its_vm_until_it_is_corrected(case: Case) -> None:
    name = f"{case.name}-bad-1.36.3-rke2r1"
    await case.ready_cluster(images=[declared(f"default/{name}", right=False)])
    says = is_false("ImagesReady", "ImageImportFailed", "doesn't match the file actual checksum")
    cluster = await case.until(HARVESTER_CLUSTERS, case.name, says)
    assert is_ready(cluster), "a cluster without an image is a cluster"
    message = condition_of(cluster, "ImagesReady")["message"]
    assert "retry attempted 3/3" in message
    (image,) = await images_of(case, name)
    assert f"delete VirtualMachineImage default/{image['metadata']['name']} on Harvester" in message
    assert "actual checksum …" in message, "no one learns the checksum of what was downloaded"
    await case.until_event(case.name, "Warning", "ImageImportFailed")
    events = (await case.management.list(EVENTS, case.name))["items"]
    assert [event["type"] for event in events if event["reason"] == "ImageImportFailed"] == ["Warning"]

    await case.create_machine("one", version=LATER, volumes=[by_version(f"{case.name}-bad")])
    text = f"spec.volumes[0].imageLookup gives 'default/{name}': Harvester cannot import the image"
    await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "VMProvisioningFailed", text))
    assert await case.names(kinds.VIRTUAL_MACHINES) == []

    # The image of the wrong checksum stays until a user deletes it: nothing is replaced.
    right = declared(f"default/{name}")
    changed = await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"images": [right]}})
    generation = changed["metadata"]["generation"]
    await case.until(
        HARVESTER_CLUSTERS,
        case.name,
        lambda obj: condition_of(obj, "ImagesReady")["observedGeneration"] == generation,
    )
    assert await images_of(case, name) == [image]
    await drop(case, name)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("ImagesReady"))
    assert await image_of(case, await case.vm("one", timeout=AT_ONCE)) == name
    await case.delete_machine("one")
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"images": None}})
    await drop(case, name)


async def test_url_that_does_not_answer_is_reported_with_the_message_of_harvester(case: Case) -> None:
    name = f"{case.name}-lost"
    await case.ready_cluster(images=[declared(f"default/{name}", host="images.invalid")])
    text = "lookup images.invalid: no such host"
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("ImagesReady", "ImageImportFailed", text))
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"images": None}})
    await drop(case, name)


async def test_content_of_others_is_not_taken_for_the_declared_image(case: Case) -> None:
    name = f"{case.name}-squatted"
    spec = {"displayName": name, "sourceType": "download", "url": "https://images.example.com/other.qcow2"}
    obj = {"metadata": {"name": f"{name}-x7k2p", "namespace": "default"}, "spec": spec}
    await case.harvester.create(kinds.IMAGES, kinds.typed(kinds.IMAGES, obj))
    await case.ready_cluster(images=[declared(f"default/{name}")])
    says = is_false("ImagesReady", "ImageImportFailed", "with no checksum that it verified")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    volume = {"volumeType": "image", "imageName": f"default/{name}", "volumeSize": "40Gi"}
    await case.create_machine("one", volumes=[volume])
    says = is_false("VMProvisioningReady", "VMProvisioningFailed", "with no checksum that it verified")
    await case.until(HARVESTER_MACHINES, "one", says)
    assert await case.names(kinds.VIRTUAL_MACHINES) == []

    # Without the declaration the name is enough, as it always was.
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"images": None}})
    await case.vm("one", timeout=AT_ONCE)
    await case.delete_machine("one")
    await drop(case, name)


async def test_image_of_another_namespace_keeps_its_name_until_it_is_deleted(case: Case) -> None:
    entry = declared(f"default/{case.name}-namesake")
    (image,) = imports({"images": [entry]}).values()
    spec = {"displayName": "other", "sourceType": "download", "url": "https://images.example.com/other.qcow2"}
    obj = {"metadata": {"name": image.object_name, "namespace": case.target}, "spec": spec}
    await case.ready_cluster()
    await case.harvester.create(kinds.IMAGES, kinds.typed(kinds.IMAGES, obj))
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"images": [entry]}})
    says = is_false("ImagesReady", "ImageImportFailed", "of another namespace has the name")
    await case.until(HARVESTER_CLUSTERS, case.name, says)
    await case.harvester.delete(kinds.IMAGES, image.object_name, case.target)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("ImagesReady"))
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"images": None}})
    await drop(case, image.name)


async def test_status_that_a_user_wrote_leads_to_no_other_content(case: Case) -> None:
    """A user who may create an image also writes its status, because that is no subresource."""
    name = f"{case.name}-forged"
    entry = declared(f"default/{name}")
    spec = {"displayName": name, "sourceType": "download", "url": entry["url"], "checksum": entry["checksum"]}
    status = {"storageClassName": "lh-of-my-image", "conditions": [{"type": "Imported", "status": "True"}]}
    obj = {"metadata": {"name": f"{name}-x7k2p", "namespace": "default"}, "spec": spec, "status": status}
    await case.harvester.create(kinds.IMAGES, kinds.typed(kinds.IMAGES, obj))
    await case.ready_cluster(images=[entry])
    text = "StorageClass 'lh-of-my-image' is not one that Harvester gives it"
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("ImagesReady", "ImageImportFailed", text))
    volume = {"volumeType": "image", "imageName": f"default/{name}", "volumeSize": "40Gi"}
    await case.create_machine("one", volumes=[volume])
    await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "VMProvisioningFailed", text))
    assert await case.names(kinds.VIRTUAL_MACHINES) == []
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"images": None}})
    await case.delete_machine("one")
    await drop(case, name)


async def test_lookup_without_a_version_is_a_failure_with_its_remedy(case: Case) -> None:
    await case.ready_cluster()
    await case.create_machine("one", volumes=[by_version("sles")])
    text = "spec.volumes[0].imageLookup: format contains {{.K8sVersion}}: set spec.version of the Machine"
    found = await case.until(HARVESTER_MACHINES, "one", is_false("VMProvisioningReady", "VMProvisioningFailed", text))
    assert "imageName" not in condition_of(found, "VMProvisioningReady")["message"]
    await case.delete_machine("one")


async def test_iso_is_refused_by_the_api_server_alone(case: Case) -> None:
    iso = declared("default/sles")
    iso["url"] = iso["url"].replace("qcow2", "iso")
    with pytest.raises(Invalid, match="is an ISO, which starts an installer"):
        await case.create_cluster(images=[iso])
