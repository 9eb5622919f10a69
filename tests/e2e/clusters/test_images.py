"""A version bump alone rolls to the image of that version; several clusters have one import; a bad one stops a rollout.

The whole form has 20 clusters.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

from caphv.api.object import Obj, at, uid_of
from caphv.api.resources import HARVESTER_MACHINE_TEMPLATES
from sandbox.cluster import EARLIER_VERSION, LATER_VERSION, ClusterSpec
from sandbox.environment import Sandbox
from sandbox.harvester import kinds
from sandbox.scenario.lifecycle import Scenario, in_network
from tests.support.e2e import SHORT_AND_WHOLE
from tests.support.images import by_version, declared
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

VERSIONS = (EARLIER_VERSION, LATER_VERSION)
# Images of clusters that are upgraded, and of one whose later image has a bad checksum.
GOOD, BAD = "rolled", "stopped"


class ImportedImage(NamedTuple):
    """Name and uid of a VirtualMachineImage."""

    name: str
    uid: str


def name_of(system: str, version: str) -> str:
    """The image for a version, as the lookup of `by_version` gives it."""
    return f"default/{system}-{version.removeprefix('v').replace('+', '-')}"


def spec_of(name: str, system: str) -> ClusterSpec:
    """A cluster whose machines boot from the images of a system."""
    images = [
        declared(name_of(system, version), right=(system, version) != (BAD, LATER_VERSION)) for version in VERSIONS
    ]
    return ClusterSpec(
        name=name,
        namespace=name,
        target_namespace=f"{name}-vms",
        control_planes=1,
        workers=1,
        machines=("machines-large",),
        unhealthy_seconds=3600,
        variables={"volumes": [by_version(system)], "images": images},
    )


async def images_of(scenario: Scenario) -> set[str]:
    """The display names of the images of all VMs' first disks."""
    images = (await scenario.harvester.list(kinds.IMAGES, "default"))["items"]
    shown = {f"default/{image['metadata']['name']}": f"default/{image['spec']['displayName']}" for image in images}
    return {shown[image_of(vm)] for vm in scenario.view.vms.store}


def image_of(vm: Obj) -> str:
    """The image of a VM's first disk."""
    claims = json.loads(vm["metadata"]["annotations"]["harvesterhci.io/volumeClaimTemplates"])
    return str(claims[0]["metadata"]["annotations"]["harvesterhci.io/imageId"])


@SHORT_AND_WHOLE
async def test_new_version_boots_from_its_image_and_clusters_share_the_import(box: Sandbox, whole: bool) -> None:
    names = [f"images-{number}" for number in range(20 if whole else 2)]
    specs = [*(spec_of(name, GOOD) for name in names), spec_of("images-bad", BAD)]
    network = box.status()["network"]
    scenarios = [Scenario(box.folder, in_network(spec, network), timeout=300) for spec in specs]
    first, stopped = scenarios[0], scenarios[-1]

    async with AsyncExitStack() as stack:
        for scenario in scenarios:
            await stack.enter_async_context(scenario.watching())
            await scenario.create()
        await asyncio.gather(*(scenario.bring_up() for scenario in scenarios))
        assert await images_of(first) == {name_of(GOOD, EARLIER_VERSION)}
        imports = await imported(first)
        assert set(imports) == {name_of(system, version) for system in (GOOD, BAD) for version in VERSIONS}

        templates = await template_names(first)
        await asyncio.gather(first.upgrade(LATER_VERSION), rollout_stops(stopped))
        assert await images_of(first) == {name_of(GOOD, LATER_VERSION)}
        assert await template_names(first) == templates, "the version alone has changed"

        await asyncio.gather(*(scenario.delete() for scenario in scenarios))
        assert await imported(first) == imports, "one import for all clusters, which outlives them"
        for image in imports.values():
            await first.harvester.delete(kinds.IMAGES, image.name, "default")


async def imported(scenario: Scenario) -> dict[str, ImportedImage]:
    """The images that were imported for these clusters, by display name."""
    images = (await scenario.harvester.list(kinds.IMAGES, "default"))["items"]
    return {
        f"default/{image['spec']['displayName']}": ImportedImage(image["metadata"]["name"], uid_of(image))
        for image in images
        if image["spec"]["displayName"].startswith((GOOD, BAD))
    }


async def template_names(scenario: Scenario) -> set[str]:
    """The machine templates of a cluster."""
    templates = (await scenario.management.list(HARVESTER_MACHINE_TEMPLATES, scenario.spec.namespace))["items"]
    return {template["metadata"]["name"] for template in templates}


async def rollout_stops(scenario: Scenario) -> None:
    """A new version whose image has a bad checksum: a new machine waits, and no old one is deleted."""
    machines = {uid_of(machine) for machine in scenario.view.machines.store}
    vms = {uid_of(vm) for vm in scenario.view.vms.store}
    (cluster,) = scenario.view.clusters.store
    patch = [{"op": "replace", "path": "/spec/topology/version", "value": LATER_VERSION}]
    metadata = cluster["metadata"]
    await scenario.management.patch(
        scenario.view.clusters.resource, metadata["name"], metadata["namespace"], patch, patch_type="json"
    )

    def is_refused() -> bool:
        messages = [
            condition["message"]
            for machine in scenario.view.harvester_machines.store
            for condition in at(machine, "status", "conditions") or ()
            if condition["type"] == "VMProvisioningReady" and condition["status"] == "False"
        ]
        return any("doesn't match the file actual checksum" in message for message in messages)

    await until(is_refused, "the new machine says why it has no VM", 120)
    # The core had its chance to continue.
    await asyncio.sleep(2)
    assert machines < {uid_of(machine) for machine in scenario.view.machines.store}
    assert not any(machine["metadata"].get("deletionTimestamp") for machine in scenario.view.machines.store)
    assert {uid_of(vm) for vm in scenario.view.vms.store} == vms
