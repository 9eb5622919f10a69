"""The join file: the sandbox's replacement for the configuration that kubeadm or RKE2 read in a guest.

Bootstrap data writes it to `/etc/caphv-sandbox/join.yaml`; `docs/sandbox.md` describes its fields.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import yaml

from sandbox.guest.cloudinit import File, GuestError, Nic, UserData
from sandbox.processes.pki import CA, KeyPair

JOIN_FILE = "/etc/caphv-sandbox/join.yaml"
CA_FILES = ("/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/pki/ca.key")
CONTROL_PLANE, WORKER = "control-plane", "worker"
_FIELDS = {"role": str, "server": str, "token": str, "ca": str, "version": str, "cni": bool, "certSANs": list}
_REQUIRED = ("role", "server", "token", "ca", "version")


@dataclass(frozen=True, slots=True)
class Join:
    """How a guest joins: `ca` (PEM) verifies `server`, `token` authenticates; `authority` is for control planes.

    Without `ca` it is that of the cluster with the token. `clients` (PEM) verifies client certificates besides the
    authority. `program` is `rke2` or `k3s` where the guest runs it.
    """

    role: str
    server: str
    token: str = field(repr=False)
    ca: str = field(repr=False)
    version: str
    cni: bool = True
    sans: tuple[str, ...] = ()
    authority: CA | None = field(default=None, repr=False)
    clients: bytes = b""
    program: str = ""

    @property
    def port(self) -> int:
        """Port of the server."""
        return urlsplit(self.server).port or 443


def join_of(user_data: UserData) -> Join | None:
    """How the guest joins; None without a join file. Raises GuestError."""
    file = user_data.files.get(JOIN_FILE)
    if file is None:
        return None
    values = _fields(file)
    if values["role"] not in (CONTROL_PLANE, WORKER):
        raise GuestError(f"{JOIN_FILE}: role must be {CONTROL_PLANE} or {WORKER}")
    url = urlsplit(values["server"])
    if url.scheme != "https" or not url.hostname:
        raise GuestError(f"{JOIN_FILE}: server must be an https:// URL")
    return Join(
        values["role"],
        values["server"].rstrip("/"),
        values["token"],
        values["ca"],
        values["version"],
        values.get("cni", True),
        tuple(map(str, (*values.get("certSANs", ()), url.hostname))),
        _authority(user_data) if values["role"] == CONTROL_PLANE else None,
    )


def check_nic(nic: Nic, cidr: str, gateway: str) -> None:
    """Raise GuestError if a static configuration would not work on a network."""
    network = ipaddress.IPv4Network(cidr)
    if ipaddress.IPv4Address(nic.address) not in network:
        raise GuestError(f"{nic.name}: address {nic.address} is outside the network {cidr}")
    if nic.mask != str(network.netmask):
        raise GuestError(f"{nic.name}: mask {nic.mask} must be that of the network {cidr} ({network.netmask})")
    if nic.gateway and nic.gateway != gateway:
        raise GuestError(f"{nic.name}: gateway {nic.gateway} must be that of the network ({gateway})")
    if nic.address == gateway:
        raise GuestError(f"{nic.name}: address {nic.address} is the gateway's")


def interface_names(count: int) -> Sequence[str]:
    """Names that the guest gives its interfaces, in the order of the VM's."""
    return [f"eth{n}" for n in range(count)]


def _fields(file: File) -> Mapping[str, Any]:
    try:
        values = yaml.safe_load(file.content)
    except yaml.YAMLError:
        raise GuestError(f"{JOIN_FILE}: invalid YAML") from None
    if not isinstance(values, dict):
        raise GuestError(f"{JOIN_FILE}: must be a mapping")
    for name, value in values.items():
        if name not in _FIELDS or not isinstance(value, _FIELDS[name]):
            raise GuestError(f"{JOIN_FILE}: field {name} is unknown or has the wrong type")
    missing = [name for name in _REQUIRED if not values.get(name)]
    if missing:
        raise GuestError(f"{JOIN_FILE}: {missing[0]} is missing")
    return values


def _authority(user_data: UserData) -> CA:
    files = [user_data.files.get(path) for path in CA_FILES]
    missing = [path for path, file in zip(CA_FILES, files, strict=True) if file is None]
    if missing:
        raise GuestError(f"userdata.write_files: a control plane guest must have {missing[0]}")
    certificate, key = (file.content.encode() for file in files if file is not None)
    return CA(KeyPair(certificate, key))
