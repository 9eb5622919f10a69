"""The machine's VM: adopted, or created with its cloud-init Secret.

A lost VM is never recreated: its disks, its etcd member and its Node are lost, and a new VM under the old providerID
would look like the old one. The machine reports the loss, and its owner replaces it.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from caphv.api import clusterapi, names, resources
from caphv.api.names import ConditionType, Reason
from caphv.api.object import SECRETS, Key, Obj, annotations_of, key_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unreachable,
)
from caphv.runtime.text import off_loop
from reconciler import metrics, triggers
from reconciler.harvester.ownership import Ownership, formerly_owned, ownership_of
from reconciler.harvester.storageprofiles import READ_WRITE_MANY, ClaimModes
from reconciler.harvester.topology import has_single_host
from reconciler.machine import cloudinit, talos
from reconciler.machine.adoption import adopt_or_refuse, vm_lost
from reconciler.machine.disks import storage_class_of
from reconciler.machine.guest import guest_config
from reconciler.machine.images import (
    ResolvedImage,
    pending_images,
    qualified,
    resolve_image,
    unusable_images,
    where_searched,
)
from reconciler.machine.ipaddress import ensure_address, restore_address
from reconciler.machine.labelling import announces_network, ensure_labels, machine_network, name_taken
from reconciler.machine.network import Network, StaticAddress, dhcp_interfaces
from reconciler.machine.quota import REFUSED, check_quota, quota_has_room, refusal
from reconciler.machine.scope import MachineScope
from reconciler.machine.vm import InvalidSpecError, VirtualMachineInputs, spec_errors, virtual_machine
from reconciler.machine.volumes import claim_templates
from reconciler.status import Blocked
from reconciler.triggers import Delay, Watched

# Seconds until a Secret on Harvester is read again, which nothing watches.
_UNWATCHED = 60.0
_GZIP = b"\x1f\x8b"


async def ensure_vm(scope: MachineScope) -> Obj:
    """The machine's VM, created if it never existed. Raises `Blocked` if it cannot be or belongs to another owner."""
    namespace = scope.namespace()
    vm = namespace.vms.get(scope.target_namespace, scope.name)
    if vm is not None:
        vm = await adopt_or_refuse(scope, vm)
        vm = await ensure_labels(scope, vm)
        await restore_address(scope)
        return vm
    if scope.spec.get("providerID") or scope.draft.is_true(ConditionType.MACHINE_CREATED):
        scope.current_namespace()
        raise vm_lost(scope)
    inputs = _checked_inputs(scope)
    check_quota(scope)
    network = await ensure_address(scope)
    bootstrap = await _bootstrap_data(scope)
    await _ensure_secret(scope, network, bootstrap)
    return await _create(scope, replace(inputs, offered=await _offered_modes(scope, inputs)))


def _checked_inputs(scope: MachineScope) -> VirtualMachineInputs:
    with scope.subscribe(triggers.images(scope.session().fingerprint)) as uploaded:
        inputs = inputs_of(scope)
        errors = spec_errors(scope.obj, inputs.images)
        if errors:
            absent = [
                where_searched(str(image), scope.session().images.store, scope.target_namespace)
                for volume in scope.spec.get("volumes") or ()
                if (image := volume.get("imageName")) and image not in inputs.images
            ]
            found = [*map(str, errors), *dict.fromkeys(absent), *_template_advice(scope)]
            raise scope.failed("; ".join(found), uploaded)

        # A claim of an unfinished image, or smaller than it, would stay Pending, and no field of it can be changed.
        volumes = scope.spec["volumes"]
        if problems := unusable_images(volumes, inputs.images):
            raise scope.failed("; ".join([*problems, *_template_advice(scope)]), uploaded)
        if waiting := pending_images(volumes, inputs.images):
            raise scope.in_progress("; ".join(waiting), uploaded)
    return inputs


def inputs_of(scope: MachineScope) -> VirtualMachineInputs:
    """All inputs of the machine's VM, from caches."""
    assert scope.cluster_key is not None  # noqa: S101 - the caller checked
    domains, domain = scope.failure_domains, scope.failure_domain
    hosts = list(scope.session().hosts.store)
    return VirtualMachineInputs(
        machine=scope.obj,
        cluster=scope.cluster_key,
        target_namespace=scope.target_namespace,
        owner=scope.owner,
        images=_resolved_images(scope),
        control_plane=scope.control_plane,
        failure_domain=domain,
        failure_domains=domains,
        domain_strict=not has_single_host(domain, domains, hosts),
        guest_name_taken=name_taken(scope),
        announces_network=announces_network(scope, machine_network(scope)),
    )


def _template_advice(scope: MachineScope) -> list[str]:
    """How to correct a machine that was cloned: neither its template nor the machine follows a correction."""
    template = annotations_of(scope.obj).get(names.CLONED_FROM_ANNOTATION)
    if not template:
        return []
    machine = scope.machine["metadata"]["name"] if scope.machine else scope.name
    topology = ((scope.cluster or {}).get("spec") or {}).get("topology")
    if topology and scope.cluster_key:
        return [f"correct spec.topology.variables of Cluster {scope.cluster_key.name}, then delete Machine {machine}"]
    return [
        f"HarvesterMachineTemplate {template} is immutable: create a corrected one under another name, refer to it in "
        f"the control plane or MachineDeployment, and delete Machine {machine}"
    ]


def _resolved_images(scope: MachineScope) -> dict[str, ResolvedImage]:
    wanted = {volume.get("imageName") for volume in scope.spec.get("volumes") or ()} - {None, ""}
    images = list(scope.session().images.store)
    found = {str(name): resolve_image(str(name), images, scope.target_namespace) for name in wanted}
    return {name: image for name, image in found.items() if image}


def _public_key(scope: MachineScope) -> str:
    reference = str(scope.spec.get("sshKeyPair") or "")
    if not reference:
        return ""
    session = scope.session()
    namespace, name = qualified(reference, scope.target_namespace)
    with scope.subscribe(triggers.key_pairs(session.fingerprint)) as created:
        pair = session.key_pairs.get(namespace, name)
        if pair is None:
            found = [
                f"spec.sshKeyPair is {reference!r}: Harvester has no such KeyPair; create it or correct the name",
                where_searched(reference, session.key_pairs.store, scope.target_namespace),
                *_template_advice(scope),
            ]
            raise scope.failed("; ".join(found), created)
    return str((pair.get("spec") or {}).get("publicKey") or "")


async def _bootstrap_data(scope: MachineScope) -> str:
    name = clusterapi.bootstrap_secret_name(scope.machine) if scope.machine else ""
    if not name:
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
            "waiting for the bootstrap provider to set spec.bootstrap.dataSecretName of the Machine",
            Watched.MACHINE,
        )
    try:
        secret = await scope.context.client.get(SECRETS, name, scope.key.namespace)
        data = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
        text, form = data["value"], data.get("format", "")
    except UnicodeDecodeError:
        message = f"bootstrap Secret {name}: key value must hold cloud-config text in UTF-8"
        if base64.b64decode(secret["data"].get("value") or "").startswith(_GZIP):
            message = f"{message}, and is compressed: set gzipUserData of the bootstrap object to false"
        raise scope.failed(message, Watched.SECRET) from None
    except NotFound:
        raise Blocked(
            ConditionType.INFRASTRUCTURE_READY,
            Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS,
            f"waiting for bootstrap Secret {name}",
            Watched.SECRET,
        ) from None
    except (KeyError, binascii.Error):
        raise scope.failed(
            f"bootstrap Secret {name}: key value must hold cloud-config text in UTF-8", Watched.SECRET
        ) from None
    if form not in ("", "cloud-config"):
        raise scope.failed(
            f"bootstrap Secret {name}: format is {form!r}, not cloud-config: "
            "set the bootstrap provider's format to cloud-config",
            Watched.SECRET,
        )
    return text


def _guest_files(scope: MachineScope) -> list[Obj]:
    """The kubeconfig for Harvester, if the cluster delivers it in a file. Raises `Blocked` until it exists."""
    if (scope.cluster_spec.get("cloudConfig") or {}).get("delivery") != "File" or scope.harvester_cluster is None:
        return []
    cluster = key_of(scope.harvester_cluster)
    with scope.subscribe(triggers.cloud_config(cluster)) as delivered:
        content = scope.context.memory.cluster(scope.harvester_cluster).guest_kubeconfig
        if content is None:
            message = "waiting for the cloud config; see CloudProviderConfigReady of the HarvesterCluster"
            raise scope.in_progress(message, delivered)
    return cloudinit.kubeconfig_file(content)


async def _ensure_secret(scope: MachineScope, network: Network, bootstrap: str) -> None:
    nics = len(scope.spec["networks"])
    try:
        secret = cloudinit.cloud_init_secret(
            vm_name=scope.name,
            namespace=scope.target_namespace,
            owner=scope.owner,
            user_data=await _user_data(scope, bootstrap, dhcp_interfaces(network, nics)),
            network_data=cloudinit.networkdata(network, nics) if isinstance(network, StaticAddress) else "",
        )
    except cloudinit.CloudInitError as error:
        raise scope.failed(f"cannot create cloud-init data: {error}", Watched.SECRET) from None
    client = scope.session().client
    try:
        await client.create(SECRETS, secret)
    except AlreadyExists:
        # From an attempt that did not create the VM; its content may be outdated.
        existing = await client.get(SECRETS, secret["metadata"]["name"], scope.target_namespace)
        foreign = ownership_of(existing, scope.owner) is Ownership.FOREIGN
        if foreign and not formerly_owned(existing, scope.obj, scope.owner):
            owner = annotations_of(existing).get(names.OWNER_ANNOTATION, "another owner")
            message = f"Secret {key_of(existing)} on Harvester belongs to {owner}; delete it, or rename this machine"
            raise scope.failed(message, Delay(_UNWATCHED)) from None
        await _update_secret(client, existing, secret)


async def _update_secret(client: ApiClient, existing: Obj, wanted: Obj) -> None:
    """Patch the Secret of an earlier attempt: accounts with the roles of 0.11 may not update Secrets."""
    data = {**dict.fromkeys(existing.get("data") or ()), **wanted["data"]}
    annotations = wanted["metadata"]["annotations"]
    if existing.get("data") == data and annotations.items() <= annotations_of(existing).items():
        return
    key = key_of(existing)
    metadata = {"resourceVersion": existing["metadata"]["resourceVersion"], "annotations": annotations}
    await client.patch(SECRETS, key.name, key.namespace, {"metadata": metadata, "data": data})


async def _user_data(scope: MachineScope, bootstrap: str, dhcp: Sequence[str]) -> str:
    files, guest = _guest_files(scope), guest_config(scope.spec)
    if talos.is_machine_config(bootstrap):
        return talos.userdata(bootstrap, files=files, guest=guest)
    key = _public_key(scope)
    join = partial(cloudinit.userdata, bootstrap, ssh_public_key=key, dhcp_interfaces=dhcp, files=files, guest=guest)
    return await off_loop(len(bootstrap) + len(guest.user_data), join)


async def _offered_modes(scope: MachineScope, inputs: VirtualMachineInputs) -> dict[str, Sequence[ClaimModes]]:
    """What the StorageClasses of disks provide that do not have both modes in the spec."""
    session, profiles = scope.session(), scope.context.memory.storage_profiles
    classes = {
        storage_class_of(volume, inputs.images.get(volume.get("imageName", "")))
        for volume in scope.spec["volumes"]
        if not (volume.get("accessMode") and volume.get("volumeMode"))
    }
    return {name: await profiles.offered(session.client, session.fingerprint, name) for name in classes if name}


def _bound_disks(vm: Obj) -> str:
    """Say why a new VM cannot migrate, empty if its disks do not prevent that."""
    bound = [claim.name for claim in claim_templates(vm) if READ_WRITE_MANY not in claim.access_modes]
    if not bound:
        return ""
    return f"; it cannot migrate while it runs, because disks are not {READ_WRITE_MANY}: {', '.join(bound)}"


async def _create(scope: MachineScope, inputs: VirtualMachineInputs) -> Obj:
    metrics.MACHINE_CREATE.inc()
    namespace, client = scope.namespace(), scope.session().client
    key = Key(scope.target_namespace, scope.name)
    try:
        vm = await client.create(resources.VIRTUAL_MACHINES, virtual_machine(inputs))
    except AlreadyExists:
        vm = await client.get(resources.VIRTUAL_MACHINES, scope.name, scope.target_namespace)
        namespace.vms.observe(vm)
        return await adopt_or_refuse(scope, vm)
    except InvalidSpecError as error:
        metrics.MACHINE_CREATE_ERRORS.inc()
        raise scope.failed(str(error)) from None
    except (Forbidden, Invalid) as error:
        # Harvester's admission names what it requires, which may appear later (a network, quota).
        metrics.MACHINE_CREATE_ERRORS.inc()
        raise scope.failed(refusal(scope, error), Delay(REFUSED)) from None
    except (ApiError, Unreachable) as error:
        metrics.MACHINE_CREATE_ERRORS.inc()
        if not isinstance(error, Conflict):
            scope.warning_event("VMCreationFailed", f"cannot create VirtualMachine {key}: {error}")
        raise
    scope.memory.vm_created_at = time.monotonic()
    namespace.vms.observe(vm)
    quota_has_room(scope)
    scope.event("VMCreated", f"created VirtualMachine {key} on Harvester{_bound_disks(vm)}")
    return vm
