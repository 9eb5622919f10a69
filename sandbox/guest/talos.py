"""The machine configuration of Talos Linux, which a guest reads in place of cloud-config. Pure.

Modelled after `pkg/machinery/config/types` of siderolabs/talos v1.12. A guest of Talos has neither
users nor packages: its agent is a system extension of the image.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import yaml

from caphv.api.object import Obj, at, list_at, text_at
from sandbox.guest.cloudinit import GuestError
from sandbox.guest.join import CONTROL_PLANE, WORKER, Join
from sandbox.processes.pki import CA, KeyPair

_ROLES = {"controlplane": CONTROL_PLANE, "worker": WORKER}
_VERSION = re.compile(r"^version:\s*v1alpha1\s*$", re.MULTILINE)
_REQUIRED = (
    ("machine", "token"),
    ("machine", "ca", "crt"),
    ("machine", "kubelet", "image"),
    ("cluster", "token"),
    ("cluster", "ca", "crt"),
    ("cluster", "controlPlane", "endpoint"),
)


@dataclass(frozen=True, slots=True)
class TalosMachine:
    """A machine with its host name (empty for that of the VM) and the cluster that it joins.

    Only control planes have the authority of the machine API.
    """

    join: Join
    hostname: str = ""
    authority: CA | None = field(default=None, repr=False)


def is_machine_config(text: str) -> bool:
    """Return whether user data is a machine configuration."""
    return not text.startswith(("#cloud-config", "##")) and bool(_VERSION.search(text))


def parse_machine_config(text: str) -> TalosMachine:
    """Parse a machine configuration, which may have several documents. Raises `GuestError`."""
    documents = _load(text)
    config = next((entry for entry in documents if at(entry, "version") == "v1alpha1"), {})
    machine_type = text_at(config, "machine", "type")
    if machine_type not in _ROLES:
        raise GuestError(f"machine.type: must be one of {', '.join(_ROLES)}")
    missing = [".".join(path) for path in _REQUIRED if not at(config, *path)]
    if missing:
        raise GuestError(f"{missing[0]}: is required")

    # Talos takes the name from a document of its own since 1.12.
    names = [text_at(entry, "hostname") for entry in documents if _is_hostname_config(entry)]
    hostname = next((name for name in names if name), "")
    role = _ROLES[machine_type]
    return TalosMachine(
        _parse_join(config, role),
        hostname or text_at(config, "machine", "network", "hostname"),
        _authority(config, "machine") if role == CONTROL_PLANE else None,
    )


def _load(text: str) -> Sequence[Obj]:
    try:
        return [entry for entry in yaml.safe_load_all(text) if isinstance(entry, dict)]
    except yaml.YAMLError:
        raise GuestError("machine configuration: invalid YAML") from None


def _is_hostname_config(document: Obj) -> bool:
    return document.get("kind") == "HostnameConfig"


def _parse_join(config: Obj, role: str) -> Join:
    server = text_at(config, "cluster", "controlPlane", "endpoint").rstrip("/")
    host = urlsplit(server).hostname or ""
    names = (*list_at(config, "cluster", "apiServer", "certSANs"), host)
    return Join(
        role=role,
        server=server,
        token=text_at(config, "cluster", "token"),
        ca=_decode(config, "cluster", "crt").decode(),
        version=text_at(config, "machine", "kubelet", "image").rpartition(":")[2],
        # Talos installs flannel unless another CNI is named.
        cni=text_at(config, "cluster", "network", "cni", "name") != "none",
        sans=tuple(map(str, names)),
        authority=_authority(config, "cluster") if role == CONTROL_PLANE else None,
    )


def _authority(config: Obj, owner: str) -> CA:
    return CA(KeyPair(_decode(config, owner, "crt"), _decode(config, owner, "key")))


def _decode(config: Obj, owner: str, name: str) -> bytes:
    value = text_at(config, owner, "ca", name)
    try:
        decoded = base64.b64decode(value, validate=True)
    except binascii.Error:
        decoded = b""
    if not decoded:
        raise GuestError(f"{owner}.ca.{name}: must be base64")
    return decoded
