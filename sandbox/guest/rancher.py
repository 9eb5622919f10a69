"""How a guest joins by the bootstrap data of the real providers of RKE2 and K3s: their configuration file and commands.

The data of the first server has the CAs of the cluster, and no address to join at. Others have an address and no CA:
the guest takes that of the cluster with its token, where a real program asks the server for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import yaml

from sandbox.guest.cloudinit import GuestError, UserData
from sandbox.guest.join import CONTROL_PLANE, WORKER, Join
from sandbox.processes.pki import CA, KeyPair

K3S_PORT, RKE2_PORT = 6443, 9345
_FLANNEL = "flannel-backend"


@dataclass(frozen=True, slots=True)
class Program:
    """What differs between RKE2 and K3s; `version` and `server` find version and role in the commands.

    `image` is the release that images have, for guests that download nothing.
    """

    name: str
    port: int
    image: str
    version: re.Pattern[str]
    server: re.Pattern[str]

    @property
    def file(self) -> str:
        """The configuration file."""
        return f"/etc/rancher/{self.name}/config.yaml"

    @property
    def etcd(self) -> str:
        """Prefix of the annotations of a Node by which its etcd member is removed."""
        return f"etcd.{self.name}.cattle.io"

    @property
    def serving(self) -> str:
        """Name of the Secret with the supervisor's certificate, by which providers know that a server has started."""
        return f"{self.name}-serving"

    def authority(self, name: str) -> tuple[str, str]:
        """Files with certificate and key of a CA."""
        folder = f"/var/lib/rancher/{self.name}/server/tls"
        return f"{folder}/{name}-ca.crt", f"{folder}/{name}-ca.key"


RKE2 = Program(
    "rke2", RKE2_PORT, "v1.36.3+rke2r1", re.compile(r"INSTALL_RKE2_VERSION=(\S+)"), re.compile(r"start rke2-server\b")
)
K3S = Program(
    "k3s",
    K3S_PORT,
    "v1.36.3+k3s1",
    re.compile(r"INSTALL_K3S_VERSION=(\S+)"),
    re.compile(r"\bserver\s*(?:&&|$)|EXEC='server'"),
)
PROGRAMS = (RKE2, K3S)


def join_of_rancher(user_data: UserData) -> Join | None:
    """Return how the guest joins; None if its data is not for RKE2 or K3s. Raises GuestError."""
    for program in PROGRAMS:
        if program.file in user_data.files:
            return _join(program, user_data)
    return None


def _join(program: Program, user_data: UserData) -> Join:
    config = _config(program, user_data)
    token = str(config.get("token") or "")
    if not token:
        raise GuestError(f"{program.file}: token is required")

    matches = map(program.version.search, user_data.commands)
    # Air-gapped, the image brings the artifacts of a release.
    version = next((match[1] for match in matches if match), program.image)
    sans = tuple(map(str, config.get("tls-san") or ()))
    address = str(config.get("server") or (f"https://{sans[-1]}:{program.port}" if sans else ""))
    if not address:
        raise GuestError(f"{program.file}: server is required")

    if not any(program.server.search(command) for command in user_data.commands):
        return Join(WORKER, address, token, "", version, program=program.name)

    join = Join(CONTROL_PLANE, address, token, "", version, _has_cni(config), sans, program=program.name)
    if "server" in config:
        return join
    authority = _authority(program, user_data, "server")
    clients = _authority(program, user_data, "client").certificate
    return replace(join, ca=authority.certificate.decode(), authority=authority, clients=clients)


def _config(program: Program, user_data: UserData) -> dict[str, Any]:
    """The configuration file with those of its folder, of which the last one wins."""
    config: dict[str, Any] = {}
    folder = sorted(path for path in user_data.files if path.startswith(f"{program.file}.d/"))
    for path in (program.file, *folder):
        try:
            found = yaml.safe_load(user_data.files[path].content)
        except yaml.YAMLError:
            raise GuestError(f"{path}: invalid YAML") from None
        if not isinstance(found, dict):
            raise GuestError(f"{path}: must be a mapping")
        config |= found
    return config


def _has_cni(config: dict[str, Any]) -> bool:
    """Whether a CNI is installed with the distribution; flannel may be disabled in K3s."""
    return config.get("cni") not in ("none", ["none"]) and config.get(_FLANNEL) != "none"


def _authority(program: Program, user_data: UserData, name: str) -> CA:
    files = [user_data.files.get(path) for path in program.authority(name)]
    if not all(files):
        raise GuestError(f"{program.authority(name)[0]} and its key are required on the first server")
    certificate, key = (file.content.encode() for file in files if file)
    return CA(KeyPair(certificate, key))
