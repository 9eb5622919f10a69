"""Read the bootstrap data of a machine from its Secret, and pass it to the guest in another Secret.

The Secret on Harvester holds the cloud-init data from which the guest boots. No message of this
module quotes bootstrap data, because it holds join tokens and keys.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from functools import partial

from caphv.api import clusterapi, names
from caphv.api.names import ConditionType, Reason
from caphv.api.object import SECRETS, Obj, annotations_of, at, key_of, text_at
from caphv.api.ownership import Ownership, has_former_owner, ownership_of
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, NotFound
from caphv.runtime.text import off_loop
from reconciler import triggers
from reconciler.blocked import Blocked
from reconciler.machine import cloudinit, talos
from reconciler.machine.cloudinityaml import CloudInitError
from reconciler.machine.guest import guest_config
from reconciler.machine.guestinterfaces import GuestAddress, guest_interfaces, mac_addresses
from reconciler.machine.images import describe_search, split_reference
from reconciler.machine.network import Network, StaticAddress, dhcp_interfaces
from reconciler.machine.networkdata import networkdata
from reconciler.machine.scope import MachineScope
from reconciler.machine.vminputs import template_advice
from reconciler.triggers import Delay, Watched

# Seconds until a Secret on Harvester, which nothing watches, is read again.
_UNWATCHED = 60.0
_GZIP = b"\x1f\x8b"


async def bootstrap_data(scope: MachineScope) -> str:
    """Return the bootstrap data of the Machine.

    Raises `Blocked` while the Secret does not exist, or does not hold cloud-config in UTF-8. The
    message quotes nothing of the data, which holds join tokens and keys.
    """
    name = clusterapi.bootstrap_secret_name(scope.machine) if scope.machine else ""
    if not name:
        message = (
            "waiting for the bootstrap provider to set spec.bootstrap.dataSecretName of the Machine"
        )
        raise _no_bootstrap_data(message, Watched.MACHINE)
    try:
        secret = await scope.context.client.get(SECRETS, name, scope.key.namespace)
    except NotFound:
        message = f"waiting for bootstrap Secret {name}"
        raise _no_bootstrap_data(message, Watched.SECRET) from None

    encoded = secret.get("data") or {}
    invalid = f"bootstrap Secret {name}: key value must hold cloud-config text in UTF-8"
    try:
        data = {key: base64.b64decode(value).decode() for key, value in encoded.items()}
        text = data["value"]
        data_format = data.get("format", "")
    except UnicodeDecodeError:
        # Some bootstrap providers compress the data on request. Only cloud-init understands that.
        if base64.b64decode(encoded.get("value") or "").startswith(_GZIP):
            invalid += ", and is compressed: set gzipUserData of the bootstrap object to false"
        raise scope.failure(invalid, Watched.SECRET) from None
    except (KeyError, binascii.Error):
        raise scope.failure(invalid, Watched.SECRET) from None

    if data_format not in ("", "cloud-config"):
        raise scope.failure(
            f"bootstrap Secret {name}: format is {data_format!r}, not cloud-config: "
            "set the bootstrap provider's format to cloud-config",
            Watched.SECRET,
        )
    return text


def _no_bootstrap_data(message: str, source: Watched) -> Blocked:
    """Return the `Blocked` of a machine that waits for its bootstrap provider."""
    reason = Reason.INFRASTRUCTURE_PROVISIONING_IN_PROGRESS
    return Blocked(ConditionType.INFRASTRUCTURE_READY, reason, message, source)


def _guest_files(scope: MachineScope) -> list[Obj]:
    """Return the file with the kubeconfig for Harvester, or nothing if the cluster delivers none.

    Raises `Blocked` until the kubeconfig exists.
    """
    delivery = at(scope.cluster_spec, "cloudConfig", "delivery")
    if delivery != "File" or scope.harvester_cluster is None:
        return []

    cluster = key_of(scope.harvester_cluster)
    with scope.subscribe(triggers.cloud_config(cluster)) as delivered:
        content = scope.context.memory.cluster(scope.harvester_cluster).guest.kubeconfig
        if content is None:
            message = (
                "waiting for the cloud config; see CloudProviderConfigReady of the HarvesterCluster"
            )
            raise scope.in_progress(message, delivered)
    return cloudinit.kubeconfig_file(content)


async def ensure_secret(
    scope: MachineScope,
    network: Network,
    bootstrap: str,
    claimed: Iterable[tuple[int, GuestAddress]] = (),
) -> None:
    """Ensure that the cloud-init Secret of the VM exists, with the present content.

    Raises `Blocked` for data that cannot become cloud-init data, and for a Secret of another owner.

    :param network: decides which network data the guest gets
    :param bootstrap: the text of `bootstrap_data`
    :param claimed: addresses of IPAM providers, with the numbers of their interfaces
    """
    nics = len(scope.spec["networks"])
    settings = guest_interfaces(scope.spec, claimed)
    addressed = [number for number, interface in settings.items() if interface.addresses]
    try:
        user_data = await _user_data(scope, bootstrap, dhcp_interfaces(network, nics, addressed))
        network_data = ""
        static = network if isinstance(network, StaticAddress) else None
        if static or settings:
            network_data = networkdata(static, nics, settings, mac_addresses(scope.obj))
        secret = cloudinit.cloud_init_secret(
            vm_name=scope.name,
            namespace=scope.target_namespace,
            owner=scope.owner,
            user_data=user_data,
            network_data=network_data,
        )
    except CloudInitError as error:
        raise scope.failure(f"cannot create cloud-init data: {error}", Watched.SECRET) from None

    client = scope.session().client
    try:
        await client.create(SECRETS, secret)
    except AlreadyExists:
        # An earlier attempt that did not create the VM may have left the Secret with outdated
        # content.
        existing = await client.get(SECRETS, secret["metadata"]["name"], scope.target_namespace)
        is_foreign = ownership_of(existing, scope.owner) is Ownership.FOREIGN
        if is_foreign and not has_former_owner(existing, scope.obj, scope.owner):
            owner = annotations_of(existing).get(names.OWNER_ANNOTATION, "another owner")
            message = (
                f"Secret {key_of(existing)} on Harvester belongs to {owner}; delete it, or rename "
                "this machine"
            )
            raise scope.failure(message, Delay(_UNWATCHED)) from None
        await _update_secret(client, existing, secret)


async def _update_secret(client: ApiClient, existing: Obj, secret: Obj) -> None:
    """Replace the content of a Secret that an earlier attempt has left.

    Uses a patch, because accounts on Harvester may not update Secrets.
    """
    # A merge patch removes only keys whose value is null.
    data = {**dict.fromkeys(existing.get("data") or ()), **secret["data"]}
    annotations = secret["metadata"]["annotations"]
    if existing.get("data") == data and annotations.items() <= annotations_of(existing).items():
        return

    key = key_of(existing)
    metadata = {
        "resourceVersion": existing["metadata"]["resourceVersion"],
        "annotations": annotations,
    }
    await client.patch(SECRETS, key.name, key.namespace, {"metadata": metadata, "data": data})


async def _user_data(scope: MachineScope, bootstrap: str, dhcp: Sequence[str]) -> str:
    """Return the user data of the guest. Raises `CloudInitError` for data that cannot be used.

    :param dhcp: the guest's interfaces that ask for an address by DHCP
    """
    files = _guest_files(scope)
    guest = guest_config(scope.spec)
    # Talos has neither a package manager nor cloud-init, so nothing is merged into its data.
    if talos.is_machine_config(bootstrap):
        return talos.userdata(bootstrap, files=files, guest=guest)

    build = partial(
        cloudinit.userdata,
        bootstrap,
        ssh_public_key=_public_key(scope),
        dhcp_interfaces=dhcp,
        files=files,
        guest=guest,
    )
    # Tenants write the data, and parsing large data would delay all other reconciles.
    return await off_loop(len(bootstrap) + len(guest.user_data), build)


def _public_key(scope: MachineScope) -> str:
    """Return the public key of the machine's KeyPair. Raises `Blocked` if Harvester lacks it."""
    reference = str(scope.spec.get("sshKeyPair") or "")
    if not reference:
        return ""

    session = scope.session()
    namespace, name = split_reference(reference, scope.target_namespace)
    with scope.subscribe(triggers.key_pairs(session.fingerprint)) as created:
        pair = session.key_pairs.get(namespace, name)
        if pair is None:
            problems = [
                f"spec.sshKeyPair is {reference!r}: Harvester has no such KeyPair; create it "
                "or correct the name",
                describe_search(reference, session.key_pairs.store, scope.target_namespace),
                *template_advice(scope),
            ]
            raise scope.failure("; ".join(problems), created)
    return text_at(pair, "spec", "publicKey")
