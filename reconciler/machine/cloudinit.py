"""Build the cloud-init data of a VM from bootstrap data and the provider's own cloud-config.

The bootstrap data is never parsed and serialised again, because it may be a Jinja template. Its
text is kept byte for byte, and our text is inserted. `{{ … }}` is not YAML, quotes and block
scalars around it matter after rendering, and `{% %}` lines have no place in a parsed document. A
copy without Jinja shows where to insert, and proves afterwards that nothing else has changed.

No error of this module quotes bootstrap data, because it holds join tokens and keys.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import yaml

from caphv.api.object import Obj
from caphv.api.ownership import Owner, record
from caphv.api.virtualmachine import cloud_init_secret_name
from reconciler.machine import dhclient, jinjamask
from reconciler.machine.addressclaims import ClaimedInterface
from reconciler.machine.cloudinitmerge import insert, verify
from reconciler.machine.cloudinityaml import (
    BOOTSTRAP,
    MAX_SECRET_BYTES,
    USER_DATA,
    CloudInitError,
    compose,
    construct,
    split_header,
)
from reconciler.machine.guest import (
    JOINED,
    STANDARD,
    CloudConfig,
    GuestConfig,
    base,
    join_configs,
    plain,
)
from reconciler.machine.network import StaticAddress

CLOUD_CONFIG_FILES = ("/etc/kubernetes/cloud-config", "/etc/kubernetes/cloud-provider-config")
"""Two files with the same content.

The chart of the cloud provider takes any path. The chart of the CSI driver takes a folder, in which
the file must have this name.
"""

NO_CLAIMS: Mapping[int, ClaimedInterface] = MappingProxyType({})
"""Of a machine without addresses of IPAM providers."""

_TOP_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def userdata(
    bootstrap: str,
    *,
    ssh_public_key: str = "",
    dhcp_interfaces: Sequence[str] = (),
    files: Sequence[Obj] = (),
    guest: GuestConfig = STANDARD,
) -> str:
    """Return the user data of a VM, in cloud-init's `#cloud-config` format.

    Raises `CloudInitError` for other formats than cloud-config, invalid YAML and data beyond a
    Secret's size.

    :param bootstrap: the value of the bootstrap Secret; a first line `## template: jinja` is kept
    :param ssh_public_key: a key that may log in
    :param dhcp_interfaces: the guest's interfaces (`eth0`, …) that need an address by DHCP
    :param files: entries for `write_files`
    :param guest: additions of the machine; the bootstrap data takes precedence over them
    """
    is_template, body = split_header(bootstrap, BOOTSTRAP)
    provider_config = _provider_config(guest, ssh_public_key.strip(), dhcp_interfaces, files)
    ours = join_configs(provider_config, _user_config(guest.user_data))

    if is_template and (opening := jinjamask.first_unclosed_mark(body)):
        line, mark = opening
        raise CloudInitError(
            f"bootstrap data is a Jinja template, and {mark} in line {line}, counted after its "
            f"header, has no end: write {{{{ '{mark}' }}}} in files and commands where the text "
            "is meant"
        )

    # The masked text has the same lines and columns as the original, so the positions of its nodes
    # are valid in both.
    mask = jinjamask.mask if is_template else str
    root = compose(mask(body), BOOTSTRAP)
    merged = insert(body, mask(body), root, ours)
    verify(root, mask(merged), ours)

    header = "## template: jinja\n#cloud-config\n" if is_template else "#cloud-config\n"
    result = header + merged
    _check_size(len(result.encode()))
    return result


def networkdata(
    address: StaticAddress | None,
    nic_count: int,
    claimed: Mapping[int, ClaimedInterface] = NO_CLAIMS,
    macs: Sequence[str] = (),
) -> str:
    """Return network data (version 1) of a guest with static addresses.

    All other NICs use DHCP. The first NIC that knows its network's gateway has the default route
    of that family: two of them would compete. Name servers and search domains are those of all
    static addresses.

    :param address: static address of the first NIC, None if it has none of its own
    :param claimed: addresses of IPAM providers by the number of the NIC
    :param macs: MAC addresses of all NICs, by which the guest finds them; empty to use their names
    """
    config: list[Obj] = []
    # With DHCP, the first network leads out by IPv4.
    routed = set() if 0 in claimed else {4}
    for index in range(nic_count):
        subnets: list[Obj] = [{"type": "dhcp"}]
        if index in claimed:
            subnets = _claimed_subnets(claimed[index], routed)
        elif index == 0 and address is not None:
            subnets = [
                {
                    "type": "static",
                    "address": address.address,
                    "netmask": address.mask,
                    "gateway": address.gateway,
                }
            ]
        mac = {"mac_address": macs[index]} if macs else {}
        config.append({"type": "physical", "name": f"eth{index}", **mac, "subnets": subnets})

    sources = [*([address] if address else ()), *claimed.values()]
    servers = [server for source in sources for server in source.dns_servers]
    search = [domain for source in sources for domain in source.dns_search]
    if claimed:
        # Interfaces often have the same. The list of a static address alone stays as it was given.
        servers, search = list(dict.fromkeys(servers)), list(dict.fromkeys(search))
    if servers or search:
        nameserver: Obj = {"type": "nameserver", "address": servers}
        if search:
            nameserver["search"] = search
        config.append(nameserver)
    return str(yaml.dump({"version": 1, "config": config}, Dumper=_Dumper, sort_keys=False))


def _claimed_subnets(interface: ClaimedInterface, routed: set[int]) -> list[Obj]:
    """Return the subnets of a NIC with addresses of IPAM providers.

    :param routed: families that have a default route, to which those of this NIC are added
    """
    subnets = []
    for address in interface.addresses:
        subnet: Obj = {
            "type": "static" if address.version == 4 else "static6",
            "address": f"{address.address}/{address.prefix}",
        }
        if address.gateway and address.version not in routed:
            subnet["gateway"] = address.gateway
            routed.add(address.version)
        subnets.append(subnet)
    return subnets


def kubeconfig_file(content: str) -> list[Obj]:
    """Return entries of `write_files` with the kubeconfig for Harvester's cloud provider.

    The cloud provider's documentation has the file at these paths.
    """
    return [
        {"path": path, "permissions": "0600", "owner": "root:root", "content": content}
        for path in CLOUD_CONFIG_FILES
    ]


def cloud_init_secret(
    *, vm_name: str, namespace: str, owner: Owner, user_data: str, network_data: str = ""
) -> Obj:
    """Return the Secret from which the VM reads its cloud-init data.

    Raises `CloudInitError` when the data is too large.

    :param vm_name: name of the VM, from which the name of the Secret follows
    :param namespace: namespace of VM and Secret
    :param owner: owner record of the machine
    :param user_data: text of `userdata` or of a Talos configuration
    :param network_data: text of `networkdata`, empty to ask for addresses by DHCP
    """
    values = {"userdata": user_data}
    if network_data:
        values["networkdata"] = network_data
    encoded = {key: value.encode() for key, value in values.items()}
    _check_size(sum(map(len, encoded.values())))

    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": cloud_init_secret_name(vm_name),
            "namespace": namespace,
            "annotations": record(owner),
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in encoded.items()},
    }


def _check_size(size: int) -> None:
    if size > MAX_SECRET_BYTES:
        raise CloudInitError(
            f"cloud-init data of {size} bytes is larger than a Secret can be ({MAX_SECRET_BYTES} "
            "bytes): move large files out of the bootstrap configuration into the image"
        )


def _provider_config(
    guest: GuestConfig, ssh_public_key: str, dhcp_interfaces: Sequence[str], files: Sequence[Obj]
) -> CloudConfig:
    """Return the cloud-config that the provider adds. `userdata` explains the parameters."""
    if not ssh_public_key.isprintable():
        raise CloudInitError(
            "the SSH public key of the KeyPair is not one line of text: correct its spec.publicKey"
        )
    result = base(guest)
    if ssh_public_key:
        result["ssh_authorized_keys"] = [ssh_public_key]
    if dhcp_interfaces:
        result["bootcmd"] = dhclient.boot_commands(dhcp_interfaces)
    if files:
        result["write_files"] = [*files]
    return result


def _user_config(text: str) -> CloudConfig:
    """Return the cloud-config of the machine's spec.

    It must not be a template, because its meaning must not depend on the bootstrap data.
    """
    if not text:
        return {}
    is_template, body = split_header(text, USER_DATA)
    if is_template:
        raise CloudInitError(f"{USER_DATA.name} is a Jinja template: {USER_DATA.remedy}")

    try:
        config: CloudConfig = plain(construct(compose(body, USER_DATA), USER_DATA))
    except CloudInitError:
        raise
    except ValueError as error:
        raise CloudInitError(f"{USER_DATA.name} has {error}: {USER_DATA.remedy}") from None

    for key, value in config.items():
        if not isinstance(key, str) or not _TOP_KEY.fullmatch(key):
            raise CloudInitError(
                f"{USER_DATA.name} has a key that is not valid in cloud-config: {USER_DATA.remedy}"
            )
        if key in JOINED and not isinstance(value, list | None):
            raise CloudInitError(f"{key} of {USER_DATA.name} is not a list: write it as one")
    return {key: value for key, value in config.items() if key not in JOINED or value is not None}
