"""Collect the inputs of a machine's VM from caches, and check that they allow to create a VM."""

from __future__ import annotations

from collections.abc import Sequence

from caphv.api import names
from caphv.api.object import Obj, annotations_of, at
from caphv.api.release import hotplug_obstacle
from reconciler import triggers
from reconciler.harvester.storageprofiles import ClaimModes
from reconciler.harvester.topology import has_single_host
from reconciler.machine.disks import storage_class_of
from reconciler.machine.images import (
    ResolvedImage,
    describe_search,
    pending_images,
    resolve_image,
    split_reference,
    unusable_images,
)
from reconciler.machine.labelling import announces_network, machine_network, name_taken
from reconciler.machine.scope import MachineScope
from reconciler.machine.validation import spec_errors
from reconciler.machine.vm import VirtualMachineInputs, can_grow
from reconciler.machine.vmclaims import claim_templates


def require_inputs(scope: MachineScope) -> VirtualMachineInputs:
    """Return the inputs of the VM.

    Raises `Blocked` while the spec is invalid or an image is not ready.
    """
    # The subscription comes before the images are read, so that no upload is missed.
    with scope.subscribe(triggers.images(scope.session().fingerprint)) as uploaded:
        inputs = inputs_of(scope)
        errors = spec_errors(scope.obj, inputs.images)
        if errors:
            absent = [
                describe_search(str(image), scope.session().images.store, scope.target_namespace)
                for volume in scope.spec.get("volumes") or ()
                if (image := volume.get("imageName")) and image not in inputs.images
            ]
            problems = [*map(str, errors), *dict.fromkeys(absent), *template_advice(scope)]
            raise scope.failure("; ".join(problems), uploaded)

        # A claim would stay Pending if its image were unfinished or larger than the claim, and the
        # claim could not be corrected.
        volumes = scope.spec["volumes"]
        if problems := unusable_images(volumes, inputs.images):
            raise scope.failure("; ".join([*problems, *template_advice(scope)]), uploaded)
        if pending := pending_images(volumes, inputs.images):
            raise scope.in_progress("; ".join(pending), uploaded)
    return inputs


def inputs_of(scope: MachineScope, vm: Obj | None = None) -> VirtualMachineInputs:
    """Return all inputs of the machine's VM, from caches.

    :param vm: the VM if it exists; only a restart can make it able to grow
    """
    assert scope.cluster_key is not None  # noqa: S101 - the caller checked
    domains = scope.failure_domains
    domain = scope.failure_domain
    hosts = list(scope.session().hosts.store)

    return VirtualMachineInputs(
        machine=scope.obj,
        cluster=scope.cluster_key,
        target_namespace=scope.target_namespace,
        owner=scope.owner,
        images=resolve_images(scope),
        control_plane=scope.control_plane,
        failure_domain=domain,
        failure_domains=domains,
        domain_strict=not has_single_host(domain, domains, hosts),
        guest_name_taken=name_taken(scope),
        announces_network=announces_network(scope, machine_network(scope)),
        hotplug=can_grow(vm)
        if vm
        else not hotplug_obstacle(scope.session().deployment_object, hosts),
    )


def disk_images(scope: MachineScope, vm: Obj) -> dict[str, ResolvedImage]:
    """Return the image for each `imageName`, or the image of the VM's disk if it is absent.

    A user may delete an image once the disk exists, because the disk does not need it any more.
    """
    images, templates = resolve_images(scope), claim_templates(vm)
    for index, volume in enumerate(scope.spec.get("volumes") or ()):
        image_name = str(volume.get("imageName") or "")
        if image_name and image_name not in images:
            used_image = templates[index].image if index < len(templates) else None
            reference = split_reference(str(used_image or image_name), scope.target_namespace)
            images[image_name] = ResolvedImage(*reference, storage_class="")
    return images


async def offered_modes(
    scope: MachineScope, inputs: VirtualMachineInputs
) -> dict[str, Sequence[ClaimModes]]:
    """Return the modes of StorageClasses, for disks whose spec lacks a mode.

    Raises `ApiError`, `Unreachable`.
    """
    session = scope.session()
    profiles = scope.context.memory.storage_profiles
    classes = {
        storage_class_of(volume, inputs.images.get(volume.get("imageName", "")))
        for volume in scope.spec["volumes"]
        if not (volume.get("accessMode") and volume.get("volumeMode"))
    }
    return {
        name: await profiles.modes_of(session.client, session.fingerprint, name)
        for name in classes
        if name
    }


def template_advice(scope: MachineScope) -> list[str]:
    """Advise how to correct a machine that was cloned from a template; empty for other machines."""
    template = annotations_of(scope.obj).get(names.CLONED_FROM_ANNOTATION)
    if not template:
        return []

    # A template cannot be edited, and a machine does not follow a correction of its template.
    machine = scope.machine["metadata"]["name"] if scope.machine else scope.name
    if at(scope.cluster, "spec", "topology") and scope.cluster_key:
        return [
            f"correct spec.topology.variables of Cluster {scope.cluster_key.name}, then delete "
            f"Machine {machine}"
        ]
    return [
        f"HarvesterMachineTemplate {template} is immutable: create a corrected one under another "
        "name, refer to it in the control plane or MachineDeployment, and delete Machine "
        f"{machine}"
    ]


def resolve_images(scope: MachineScope) -> dict[str, ResolvedImage]:
    """Return images by `imageName`, for those names in the volumes that Harvester has."""
    images = list(scope.session().images.store)
    resolved = {}
    for name in {volume.get("imageName") for volume in scope.spec.get("volumes") or ()}:
        image = resolve_image(str(name), images, scope.target_namespace) if name else None
        if image:
            resolved[str(name)] = image
    return resolved
