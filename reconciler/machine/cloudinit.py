"""Build the cloud-init data of a VM from bootstrap data and the provider's own cloud-config.

The bootstrap data is never parsed and serialised again, because it may be a Jinja template. Its
text is kept byte for byte, and our text is inserted. `{{ … }}` is not YAML, quotes and block
scalars around it matter after rendering, and `{% %}` lines have no place in a parsed document. A
copy without Jinja shows where to insert, and proves afterwards that nothing else has changed.

No error of this module quotes bootstrap data, because it holds join tokens and keys.
"""

import base64
import re
from collections.abc import Sequence

from caphv.api.object import Obj
from caphv.api.ownership import Owner, record
from caphv.api.virtualmachine import cloud_init_secret_name
from reconciler.machine import dhclient, jinjamask
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

CLOUD_CONFIG_FILES = ("/etc/kubernetes/cloud-config", "/etc/kubernetes/cloud-provider-config")
"""Two files with the same content.

The chart of the cloud provider takes any path. The chart of the CSI driver takes a folder, in which
the file must have this name.
"""

_TOP_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


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
    :param network_data: text of `networkdata.networkdata`, empty to ask for addresses by DHCP
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
