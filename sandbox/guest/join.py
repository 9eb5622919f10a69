"""The join file: the sandbox's own configuration of a guest that joins a cluster.

It replaces the configuration of kubeadm or RKE2. Bootstrap data writes it to
`/etc/caphv-sandbox/join.yaml`. `docs/sandbox.md` describes its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import yaml

from sandbox.guest.cloudinit import File, GuestError, UserData
from sandbox.processes.pki import CA, KeyPair

JOIN_FILE = "/etc/caphv-sandbox/join.yaml"
CA_FILES = ("/etc/kubernetes/pki/ca.crt", "/etc/kubernetes/pki/ca.key")
CONTROL_PLANE = "control-plane"
WORKER = "worker"
_FIELDS = {
    "role": str,
    "server": str,
    "token": str,
    "ca": str,
    "version": str,
    "cni": bool,
    "certSANs": list,
}
_REQUIRED = ("role", "server", "token", "ca", "version")


@dataclass(frozen=True, slots=True)
class Join:
    """The parameters with which a guest joins a cluster.

    `ca` (PEM) verifies `server`, and `token` authenticates the guest. If `ca` is empty, the guest
    takes the CA of the cluster with the same token. Only control planes have an `authority`.
    `clients` (PEM) verifies client certificates in addition to the authority. `program` is `rke2`
    or `k3s` if the guest runs one of them, and `etcd` the CA of its etcd.
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
    etcd: CA | None = field(default=None, repr=False)
    serves: bool = True
    """Whether a control plane guest serves the API."""
    stores: bool = True
    """Whether a control plane guest has a member of etcd."""

    @property
    def port(self) -> int:
        """Return the port of the server."""
        return urlsplit(self.server).port or 443


def join_of(user_data: UserData) -> Join | None:
    """Return the parameters in the join file, None without a join file. Raises `GuestError`."""
    file = user_data.files.get(JOIN_FILE)
    if file is None:
        return None

    values = _parse_fields(file)
    if values["role"] not in (CONTROL_PLANE, WORKER):
        raise GuestError(f"{JOIN_FILE}: role must be {CONTROL_PLANE} or {WORKER}")
    url = urlsplit(values["server"])
    if url.scheme != "https" or not url.hostname:
        raise GuestError(f"{JOIN_FILE}: server must be an https:// URL")

    # The API server's certificate must have the name by which nodes reach it.
    sans = (*values.get("certSANs", ()), url.hostname)
    return Join(
        role=values["role"],
        server=values["server"].rstrip("/"),
        token=values["token"],
        ca=values["ca"],
        version=values["version"],
        cni=values.get("cni", True),
        sans=tuple(map(str, sans)),
        authority=_authority(user_data) if values["role"] == CONTROL_PLANE else None,
    )


def _parse_fields(file: File) -> Mapping[str, Any]:
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
