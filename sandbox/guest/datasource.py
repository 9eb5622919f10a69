"""The cloud-init data source of a guest, a volume of its VM with user and network data."""

from __future__ import annotations

import base64

from caphv.api.object import SECRETS, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from sandbox.guest.cloudinit import (
    AGENT_PACKAGE,
    GuestError,
    Nic,
    UserData,
    parse_network_data,
    parse_user_data,
)
from sandbox.guest.guest import Guest
from sandbox.guest.retry import retry_until_available
from sandbox.guest.talos import is_machine_config


async def read_data(client: ApiClient, guest: Guest) -> tuple[UserData | None, list[Nic] | None]:
    """Return the user data and the network data of a guest, each None if its VM has none.

    Raises `GuestError`.
    """
    volumes = guest.spec.get("volumes") or ()
    source: Obj = next(
        (volume["cloudInitNoCloud"] for volume in volumes if "cloudInitNoCloud" in volume), {}
    )
    references = {
        "userData": source.get("secretRef"),
        "networkData": source.get("networkDataSecretRef"),
    }

    # Usually both references name the same Secret.
    names = {reference["name"] for reference in references.values() if reference}
    secrets = {name: await _secret_values(client, guest, name) for name in names}

    texts = {}
    for kind, reference in references.items():
        from_secret = secrets[reference["name"]].get(kind.lower()) if reference else None
        texts[kind] = source.get(kind) or from_secret
    user = texts["userData"]
    network = texts["networkData"]
    user_data = None
    if user and is_machine_config(user):
        # Talos installs no packages. Its image has the agent as a system extension.
        user_data = UserData((AGENT_PACKAGE,), {}, machine_config=user)
    elif user:
        user_data = parse_user_data(user, guest.hostname)
    return user_data, parse_network_data(network) if network else None


async def _secret_values(client: ApiClient, guest: Guest, name: str) -> dict[str, str]:
    """Return the values of a Secret by lower-case key.

    KubeVirt accepts both `userdata` and `userData`.
    """
    try:
        secret = await retry_until_available(lambda: client.get(SECRETS, name, guest.key.namespace))
        data = secret.get("data") or {}
        return {key.lower(): base64.b64decode(value).decode() for key, value in data.items()}
    except NotFound:
        raise GuestError(f"Secret {name} not found") from None
    except UnicodeDecodeError:
        raise GuestError(f"Secret {name}: must be text") from None
