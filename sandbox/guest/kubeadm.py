"""The files that `kubeadm init` and `kubeadm join` read in a guest.

The real bootstrap provider of kubeadm writes them into the cloud-config of a guest.
"""

from __future__ import annotations

import hashlib
import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from cryptography.hazmat.primitives import serialization

from caphv.api.object import Obj, at, dict_at, list_at
from sandbox.guest.cloudinit import GuestError, UserData
from sandbox.processes.pki import CA, KeyPair, load_certificate

PKI = "/etc/kubernetes/pki"
CONTROL_PLANE_TAINT: Obj = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
_APIS = ("kubeadm.k8s.io/v1beta3", "kubeadm.k8s.io/v1beta4")
_FILE_ENDS = ("crt", "key")
_KEY_PAIRS = ("ca", "etcd/ca", "front-proxy-ca")
_SERVICE_ACCOUNTS = ("sa.pub", "sa.key")


@dataclass(frozen=True)
class Kubeadm:
    """One run of kubeadm: `init` with a cluster configuration, or `join` with a token.

    `endpoint` is `host:port` of the workload API. `join` accepts a CA with one of the `hashes`.
    Only control planes have the authorities of the cluster and of its etcd. `node` has the name,
    taints and labels of the Node.
    """

    endpoint: str
    node: Node
    cluster: Obj | None = None
    token: str = field(default="", repr=False)
    hashes: tuple[str, ...] = ()
    authority: CA | None = field(default=None, repr=False)
    etcd: CA | None = field(default=None, repr=False)

    @property
    def port(self) -> int:
        """Return the port of the endpoint."""
        return int(self.endpoint.rpartition(":")[2])

    @property
    def host(self) -> str:
        """Return the host of the endpoint."""
        return self.endpoint.rpartition(":")[0]


@dataclass(frozen=True)
class Node:
    """The registration of a Node by its kubelet, by default under the name of the host."""

    name: str = ""
    taints: tuple[Obj, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


def kubeadm_of(user_data: UserData) -> Kubeadm | None:
    """Return the run of kubeadm in the guest's commands, None without one. Raises `GuestError`."""
    runs = [run for command in user_data.commands for run in _find_runs(command)]
    if not runs:
        return None
    if len(runs) > 1:
        raise GuestError("userdata.runcmd: kubeadm must be run once")

    action, path = runs[0]
    documents = _parse_documents(user_data, path)
    if action == "init":
        return _parse_init(user_data, documents, path)
    return _parse_join(user_data, documents, path)


def hash_of(certificate: bytes) -> str:
    """Return the hash of a CA's public key, in the form of `caCertHashes`."""
    key = load_certificate(certificate).public_key()
    spki = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return f"sha256:{hashlib.sha256(spki).hexdigest()}"


def cert_sans(cluster: Obj) -> list[str]:
    """Return the additional names of the API server in a cluster configuration."""
    return list(list_at(cluster, "apiServer", "certSANs"))


def _find_runs(command: str) -> Iterator[tuple[str, str]]:
    """Yield the action and the file of each run of kubeadm in a command."""
    for part in command.split("&&"):
        try:
            words = shlex.split(part)
        except ValueError:
            # shlex does not understand every command, but it understands commands with kubeadm.
            continue
        if words[:1] == ["kubeadm"] and words[1:2] in (["init"], ["join"]):
            options = dict(itertools.pairwise(words))
            if "--config" not in options:
                raise GuestError(f"userdata.runcmd: kubeadm {words[1]} must have --config FILE")
            yield words[1], options["--config"]


def _parse_documents(user_data: UserData, path: str) -> dict[str, Obj]:
    """Return the documents of a file by their kind."""
    file = user_data.files.get(path)
    if file is None:
        raise GuestError(f"userdata.write_files: {path} is missing, which kubeadm reads")
    try:
        documents = [document for document in yaml.safe_load_all(file.content) if document]
    except yaml.YAMLError:
        raise GuestError(f"{path}: invalid YAML") from None

    if not all(at(document, "apiVersion") in _APIS for document in documents):
        raise GuestError(f"{path}: apiVersion must be {' or '.join(_APIS)}")
    return {str(document.get("kind")): document for document in documents}


def _parse_init(user_data: UserData, documents: Mapping[str, Obj], path: str) -> Kubeadm:
    cluster = _document(documents, "ClusterConfiguration", path)
    missing = [
        name for name in ("controlPlaneEndpoint", "kubernetesVersion") if not cluster.get(name)
    ]
    if missing:
        raise GuestError(f"{path}: {missing[0]} is missing")

    authority, etcd = _authorities(user_data)
    return Kubeadm(
        _check_endpoint(cluster["controlPlaneEndpoint"], path),
        _parse_node(documents.get("InitConfiguration") or {}, control_plane=True),
        cluster,
        authority=authority,
        etcd=etcd,
    )


def _parse_join(user_data: UserData, documents: Mapping[str, Obj], path: str) -> Kubeadm:
    join = _document(documents, "JoinConfiguration", path)
    discovery = dict_at(join, "discovery", "bootstrapToken")
    missing = [
        name for name in ("apiServerEndpoint", "token", "caCertHashes") if not discovery.get(name)
    ]
    if missing:
        raise GuestError(f"{path}: discovery.bootstrapToken.{missing[0]} is missing")

    # A node with this field belongs to the control plane, even if the field is an empty mapping.
    control_plane = join.get("controlPlane") is not None
    authority, etcd = _authorities(user_data) if control_plane else (None, None)
    return Kubeadm(
        _check_endpoint(discovery["apiServerEndpoint"], path),
        _parse_node(join, control_plane=control_plane),
        token=discovery["token"],
        hashes=tuple(discovery["caCertHashes"]),
        authority=authority,
        etcd=etcd,
    )


def _document(documents: Mapping[str, Obj], kind: str, path: str) -> Obj:
    if kind not in documents:
        raise GuestError(f"{path}: has no {kind}")
    return documents[kind]


def _check_endpoint(value: Any, path: str) -> str:
    host, _, port = str(value).rpartition(":")
    if not host or not port.isdecimal():
        raise GuestError(f"{path}: the endpoint must be HOST:PORT")
    return f"{host}:{port}"


def _parse_node(configuration: Obj, *, control_plane: bool) -> Node:
    registration = configuration.get("nodeRegistration") or {}
    arguments = _arguments(registration.get("kubeletExtraArgs") or ())
    labels = dict(
        pair.split("=", 1) for pair in arguments.get("node-labels", "").split(",") if "=" in pair
    )

    # As in kubeadm, only a missing list of taints has a default. An empty list means no taint.
    taints = registration.get("taints")
    if taints is None and control_plane:
        taints = [CONTROL_PLANE_TAINT]
    return Node(str(registration.get("name") or ""), tuple(taints or ()), labels)


def _arguments(extra: Mapping[str, str] | Sequence[Obj]) -> dict[str, str]:
    """Return the arguments of a component, which are a list since kubeadm's v1beta4."""
    if isinstance(extra, Mapping):
        return dict(extra)
    return {argument["name"]: argument.get("value", "") for argument in extra}


def _authorities(user_data: UserData) -> tuple[CA, CA]:
    """Return the CAs of a cluster and of its etcd.

    Raises `GuestError` unless all files exist that a control plane of kubeadm needs.
    """
    paths = [f"{PKI}/{pair}.{end}" for pair in _KEY_PAIRS for end in _FILE_ENDS]
    paths += [f"{PKI}/{name}" for name in _SERVICE_ACCOUNTS]
    missing = [path for path in paths if path not in user_data.files]
    if missing:
        raise GuestError(f"userdata.write_files: a control plane of kubeadm must have {missing[0]}")

    cluster, etcd = (_authority(user_data, pair) for pair in _KEY_PAIRS[:2])
    return cluster, etcd


def _authority(user_data: UserData, pair: str) -> CA:
    certificate, key = (
        user_data.files[f"{PKI}/{pair}.{end}"].content.encode() for end in _FILE_ENDS
    )
    return CA(KeyPair(certificate, key))
