"""The configuration file and the commands of RKE2 and K3s with which a guest joins.

The real bootstrap providers write both.

The data of the first server has the CAs of the cluster, and no address to join. The data of other
guests has an address and no CA. A real program reads the CA from the server. A simulated guest
takes the CA of the cluster with the same token.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import yaml

from sandbox.guest.cloudinit import GuestError, UserData
from sandbox.guest.join import CONTROL_PLANE, WORKER, Join
from sandbox.processes.pki import CA, KeyPair

K3S_PORT = 6443
RKE2_PORT = 9345
_FLANNEL = "flannel-backend"


@dataclass(frozen=True, slots=True)
class Program:
    """RKE2 or K3s, with the differences between them.

    `version` and `server` find the version and the role in the commands. `image` is the release in
    images, for guests that download nothing.
    """

    name: str
    port: int
    image: str
    version: re.Pattern[str]
    server: re.Pattern[str]

    @property
    def file(self) -> str:
        """Return the path of the configuration file."""
        return f"/etc/rancher/{self.name}/config.yaml"

    @property
    def etcd(self) -> str:
        """Return the prefix of the annotations of a Node that remove its etcd member."""
        return f"etcd.{self.name}.cattle.io"

    @property
    def serving(self) -> str:
        """Return the name of the Secret with the supervisor's certificate.

        By this Secret, providers know that a server has started.
        """
        return f"{self.name}-serving"

    def authority(self, name: str) -> tuple[str, str]:
        """Return the paths of a CA's certificate and key."""
        folder = f"/var/lib/rancher/{self.name}/server/tls"
        return f"{folder}/{name}-ca.crt", f"{folder}/{name}-ca.key"


RKE2 = Program(
    name="rke2",
    port=RKE2_PORT,
    image="v1.36.3+rke2r1",
    version=re.compile(r"INSTALL_RKE2_VERSION=(\S+)"),
    server=re.compile(r"start rke2-server\b"),
)
K3S = Program(
    name="k3s",
    port=K3S_PORT,
    image="v1.36.3+k3s1",
    version=re.compile(r"INSTALL_K3S_VERSION=(\S+)"),
    server=re.compile(r"\bserver\s*(?:&&|$)|EXEC='server'"),
)
PROGRAMS = (RKE2, K3S)


def join_of_rancher(user_data: UserData) -> Join | None:
    """Return the join parameters; None if the data is not for RKE2 or K3s. Raises `GuestError`."""
    for program in PROGRAMS:
        if program.file in user_data.files:
            return _parse_join(program, user_data)
    return None


def _parse_join(program: Program, user_data: UserData) -> Join:
    config = _merge_config(program, user_data)
    token = str(config.get("token") or "")
    if not token:
        raise GuestError(f"{program.file}: token is required")

    # The image of an air-gapped guest brings the artifacts of a release.
    matches = map(program.version.search, user_data.commands)
    version = next((match[1] for match in matches if match), program.image)

    # Only the first server has no address to join. The last of its names is the endpoint's name.
    sans = tuple(map(str, config.get("tls-san") or ()))
    address = str(config.get("server") or "")
    if not address and sans:
        address = f"https://{sans[-1]}:{program.port}"
    if not address:
        raise GuestError(f"{program.file}: server is required")

    if not any(program.server.search(command) for command in user_data.commands):
        return Join(
            role=WORKER, server=address, token=token, ca="", version=version, program=program.name
        )

    join = Join(
        role=CONTROL_PLANE,
        server=address,
        token=token,
        ca="",
        version=version,
        cni=_has_cni(config),
        sans=sans,
        program=program.name,
        serves=not config.get("disable-apiserver"),
        stores=not config.get("disable-etcd"),
    )
    if "server" in config:
        return join

    # The first server brings the CAs, and so knows the CA of the API before it runs.
    authority = _authority(program, user_data, "server")
    clients = _authority(program, user_data, "client").certificate
    ca = authority.certificate.decode()
    return replace(
        join,
        ca=ca,
        authority=authority,
        clients=clients,
        etcd=_authority_in(program, user_data, "etcd/server"),
    )


def _merge_config(program: Program, user_data: UserData) -> dict[str, Any]:
    """Merge the configuration file and the files of its folder. The last file wins."""
    config: dict[str, Any] = {}
    folder = sorted(path for path in user_data.files if path.startswith(f"{program.file}.d/"))
    for path in (program.file, *folder):
        try:
            values = yaml.safe_load(user_data.files[path].content)
        except yaml.YAMLError:
            raise GuestError(f"{path}: invalid YAML") from None
        if not isinstance(values, dict):
            raise GuestError(f"{path}: must be a mapping")
        # As in the real programs, a value replaces an earlier value of the same name as a whole.
        config |= values
    return config


def _has_cni(config: dict[str, Any]) -> bool:
    """Return whether the distribution installs a CNI. flannel may be disabled in K3s."""
    return config.get("cni") not in ("none", ["none"]) and config.get(_FLANNEL) != "none"


def _authority(program: Program, user_data: UserData, name: str) -> CA:
    authority = _authority_in(program, user_data, name)
    if authority is None:
        raise GuestError(
            f"{program.authority(name)[0]} and its key are required on the first server"
        )
    return authority


def _authority_in(program: Program, user_data: UserData, name: str) -> CA | None:
    files = [user_data.files.get(path) for path in program.authority(name)]
    if not all(files):
        return None
    certificate, key = (file.content.encode() for file in files if file)
    return CA(KeyPair(certificate, key))
