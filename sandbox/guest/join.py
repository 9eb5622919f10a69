"""The sandbox's stand-in for what kubeadm or RKE2 find in a guest: one file that says how the guest joins a cluster.

Bootstrap data puts it into `write_files` as `/etc/caphv-sandbox/join.yaml`; `docs/sandbox.md` describes its fields.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import yaml

from sandbox.guest.cloudinit import Broken, File, Nic, UserData
from sandbox.processes.pki import CA, KeyPair

JOIN_FILE = "/etc/caphv-sandbox/join.yaml"
CA_FILES = ("/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/pki/ca.key")
CONTROL_PLANE, WORKER = "control-plane", "worker"
_FIELDS = {"role": str, "server": str, "token": str, "ca": str, "version": str, "cni": bool, "certSANs": list}
_REQUIRED = ("role", "server", "token", "ca", "version")


@dataclass(frozen=True, slots=True)
class Join:
    """How a guest joins: `ca` (PEM) verifies `server`, `token` authenticates; `authority` is for control planes."""

    role: str
    server: str
    token: str = field(repr=False)
    ca: str = field(repr=False)
    version: str
    cni: bool = True
    sans: tuple[str, ...] = ()
    authority: CA | None = field(default=None, repr=False)

    @property
    def port(self) -> int:
        """Port of the server."""
        return urlsplit(self.server).port or 443


def join_of(user_data: UserData) -> Join | None:
    """How the guest joins, None when its user data does not say. Raises `Broken`."""
    file = user_data.files.get(JOIN_FILE)
    if file is None:
        return None
    values = _fields(file)
    if values["role"] not in (CONTROL_PLANE, WORKER):
        raise Broken(f"{JOIN_FILE}: role is not {CONTROL_PLANE} or {WORKER}")
    url = urlsplit(values["server"])
    if url.scheme != "https" or not url.hostname:
        raise Broken(f"{JOIN_FILE}: server is not an https:// URL")
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
    """Raise `Broken` when a static configuration would not work on a network."""
    network = ipaddress.IPv4Network(cidr)
    if ipaddress.IPv4Address(nic.address) not in network:
        raise Broken(f"{nic.name}: address {nic.address} does not belong to the network {cidr}")
    if nic.mask != str(network.netmask):
        raise Broken(f"{nic.name}: mask {nic.mask} is not that of the network {cidr} ({network.netmask})")
    if nic.gateway and nic.gateway != gateway:
        raise Broken(f"{nic.name}: gateway {nic.gateway} is not that of the network ({gateway})")
    if nic.address == gateway:
        raise Broken(f"{nic.name}: address {nic.address} is that of the gateway")


def interface_names(count: int) -> Sequence[str]:
    """Names that the guest gives its interfaces, in the order of the VM's."""
    return [f"eth{n}" for n in range(count)]


def _fields(file: File) -> Mapping[str, Any]:
    try:
        values = yaml.safe_load(file.content)
    except yaml.YAMLError:
        raise Broken(f"{JOIN_FILE}: is not YAML") from None
    if not isinstance(values, dict):
        raise Broken(f"{JOIN_FILE}: is not a mapping")
    for name, value in values.items():
        if name not in _FIELDS or not isinstance(value, _FIELDS[name]):
            raise Broken(f"{JOIN_FILE}: field {name} is unknown or of a wrong type")
    missing = [name for name in _REQUIRED if not values.get(name)]
    if missing:
        raise Broken(f"{JOIN_FILE}: {missing[0]} is missing")
    return values


def _authority(user_data: UserData) -> CA:
    files = [user_data.files.get(path) for path in CA_FILES]
    missing = [path for path, file in zip(CA_FILES, files, strict=True) if file is None]
    if missing:
        raise Broken(f"userdata.write_files: a control plane guest needs {missing[0]}")
    certificate, key = (file.content.encode() for file in files if file is not None)
    return CA(KeyPair(certificate, key))
