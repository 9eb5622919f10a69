"""Collect the inputs of a machine's VM from caches, and check that they allow to create a VM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from caphv.api import names
from caphv.api.bootimage import ImageImport, imports, with_image_names
from caphv.api.clusterapi import externally_managed, paused
from caphv.api.conditions import get_condition
from caphv.api.names import ConditionType
from caphv.api.object import Obj, annotations_of, at, list_at, text_at
from caphv.api.release import hotplug_obstacle
from reconciler import triggers
from reconciler.harvester.storageprofiles import ClaimModes
from reconciler.harvester.topology import has_single_host
from reconciler.machine.disks import storage_class_of
from reconciler.machine.images import (
    ResolvedImage,
    awaited_images,
    describe_search,
    failed_imports,
    pending_images,
    resolve_image,
    split_reference,
    unusable_images,
)
from reconciler.machine.labelling import check_announcement, machine_network, name_taken
from reconciler.machine.scope import MachineScope, ProvisioningScope
from reconciler.machine.validation import SpecError, spec_errors
from reconciler.machine.vm import VirtualMachineInputs, can_grow
from reconciler.machine.vmclaims import claim_templates


def require_inputs(scope: ProvisioningScope) -> VirtualMachineInputs:
    """Return the inputs of the VM.

    Raises `Blocked` while the spec is invalid or an image is not ready.
    """
    # The subscription comes before the images are read, so that no upload is missed.
    with scope.subscribe(triggers.images(scope.session().fingerprint)) as uploaded:
        inputs = inputs_of(scope)
        volumes = list_at(inputs.machine, "spec", "volumes")
        declared = _declared_imports(scope, volumes)
        lookup_problems = with_image_names(scope.obj, _version(scope))[1]
        errors = spec_errors(inputs.machine, inputs.images.keys() | declared.keys())
        if lookup_problems or errors:
            problems = [*lookup_problems, *map(str, _without_lookups(errors, lookup_problems))]
            absent = [
                describe_search(str(image), scope.session().images.store, scope.target_namespace)
                for volume in volumes
                if (image := volume.get("imageName"))
                and image not in inputs.images
                and image not in declared
            ]
            problems += [*dict.fromkeys(absent), *template_advice(scope)]
            raise scope.failure("; ".join(problems), uploaded)

        # A claim would stay Pending if its image were unfinished or larger than the claim, and the
        # claim could not be corrected.
        failures = failed_imports(volumes, inputs.images, declared)
        problems = unusable_images(volumes, inputs.images, declared)
        if failures or problems:
            # Another template would not end the failure of an import.
            advice = template_advice(scope) if problems else []
            raise scope.failure("; ".join([*failures, *problems, *advice]), uploaded)
        if awaited := awaited_images(volumes, inputs.images, declared):
            raise scope.in_progress(describe_import(scope, awaited), uploaded)
        if pending := pending_images(volumes, inputs.images):
            raise scope.in_progress("; ".join(pending), uploaded)
    return inputs


def _declared_imports(scope: MachineScope, volumes: Sequence[Obj]) -> dict[str, ImageImport]:
    """Return the imports that the HarvesterCluster declares, by `imageName` of these volumes."""
    declared = imports(scope.cluster_spec)
    references = {str(volume["imageName"]) for volume in volumes if volume.get("imageName")}
    by_reference = {
        reference: declared.get(split_reference(reference, scope.target_namespace))
        for reference in references
    }
    return {reference: found for reference, found in by_reference.items() if found}


def _without_lookups(
    errors: Iterable[SpecError], lookup_problems: Sequence[str]
) -> Iterator[SpecError]:
    """Leave out that a volume has no name of an image if its lookup gives none."""
    reported = {problem.partition(".imageLookup")[0] for problem in lookup_problems}
    for error in errors:
        if error.field.removesuffix(".imageName") not in reported:
            yield error


def describe_import(scope: MachineScope, awaited: Sequence[str]) -> str:
    """Say what the import of images waits for, as the cluster's condition does."""
    cluster = scope.harvester_cluster
    conditions = list_at(cluster, "status", "conditions")
    condition = get_condition(conditions, ConditionType.IMAGES_READY) or {}
    cause = str(condition.get("message") or "")
    if cluster and externally_managed(cluster):
        cause = "the HarvesterCluster is managed externally: import it by hand"
    elif cluster and paused(scope.cluster, cluster):
        cause = "the HarvesterCluster is paused: resume it, or import it by hand"
    elif condition.get("status") != "False" or not cause:
        cause = "the HarvesterCluster has Harvester import it"
    return f"{', '.join(awaited)}: {cause}"


def _version(scope: MachineScope) -> str:
    """Return the Kubernetes version of the Machine, empty for none."""
    return text_at(scope.machine, "spec", "version")


def inputs_of(scope: ProvisioningScope, vm: Obj | None = None) -> VirtualMachineInputs:
    """Return all inputs of the machine's VM, from caches.

    :param vm: the VM if it exists; its disks keep their images, and only a restart can make it able
        to grow
    """
    domains = scope.failure_domains
    domain = scope.failure_domain
    hosts = list(scope.session().hosts.store)

    machine = _with_images(scope, vm)
    return VirtualMachineInputs(
        machine=machine,
        cluster=scope.cluster_key,
        target_namespace=scope.target_namespace,
        owner=scope.owner,
        images=_disk_images(scope, machine, vm) if vm else _resolve_images(scope, machine),
        control_plane=scope.control_plane,
        etcd=scope.rancher_etcd,
        failure_domain=domain,
        failure_domains=domains,
        domain_strict=not has_single_host(domain, domains, hosts),
        guest_name_taken=name_taken(scope),
        announces_network=check_announcement(scope, machine_network(scope)),
        hotplug=can_grow(vm)
        if vm
        else not hotplug_obstacle(scope.session().deployment_object, hosts),
    )


def _with_images(scope: MachineScope, vm: Obj | None) -> Obj:
    """Return the HarvesterMachine with names of images in place of lookups.

    A disk that exists keeps its image, whatever version the Machine gets later.

    :param vm: the VM if it exists
    """
    machine = scope.obj
    volumes = list_at(machine, "spec", "volumes")
    if vm and any(volume.get("imageLookup") for volume in volumes):
        templates = claim_templates(vm)[: len(volumes)]
        kept = [
            {**volume, "imageName": str(template.image)}
            if volume.get("imageLookup") and template and template.image
            else volume
            for volume, template in zip_longest(volumes, templates)
        ]
        machine = {**machine, "spec": {**machine["spec"], "volumes": kept}}
    return with_image_names(machine, _version(scope))[0]


def disk_images(scope: MachineScope, vm: Obj) -> dict[str, ResolvedImage]:
    """Return the image for each `imageName`, or the image of the VM's disk if it is absent.

    A user may delete an image once the disk exists, because the disk no longer needs it.
    """
    return _disk_images(scope, _with_images(scope, vm), vm)


def _disk_images(scope: MachineScope, machine: Obj, vm: Obj) -> dict[str, ResolvedImage]:
    images = _resolve_images(scope, machine)
    templates = claim_templates(vm)
    for index, volume in enumerate(list_at(machine, "spec", "volumes")):
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
        for volume in inputs.machine["spec"]["volumes"]
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


def _resolve_images(scope: MachineScope, machine: Obj) -> dict[str, ResolvedImage]:
    """Return images by `imageName`, for those names in the volumes that Harvester has.

    :param machine: the HarvesterMachine with names in place of lookups
    """
    images = list(scope.session().images.store)
    resolved = {}
    for name in {volume.get("imageName") for volume in list_at(machine, "spec", "volumes")}:
        image = resolve_image(str(name), images, scope.target_namespace) if name else None
        if image:
            resolved[str(name)] = image
    return resolved
