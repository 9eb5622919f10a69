"""The cloud-config of a guest, from its bootstrap object and with the sandbox's join file. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from caphv.api.object import Obj
from sandbox.capi.distribution import Distribution, Node
from sandbox.guest.join import CA_FILES, CONTROL_PLANE, JOIN_FILE, WORKER
from sandbox.processes.pki import CA

JOIN_COMMAND = "caphv-sandbox-join"
_FILE_FIELDS = ("path", "content", "owner", "permissions", "encoding")
_ENCODINGS = {"base64": "b64", "gzip": "gzip", "gzip+base64": "gz+b64"}


@dataclass(frozen=True)
class Guest:
    """A guest: its node, and the resolved `files` of its bootstrap object."""

    node: Node
    version: str
    authority: CA = field(repr=False)
    files: Sequence[Obj] = field(default=(), repr=False)


def render(distribution: Distribution, guest: Guest) -> str:
    """User data for cloud-init."""
    node = guest.node
    own = {name: value for name, value in distribution.configuration(node).items() if value}
    files = [_file(entry) for entry in guest.files]
    files += [_private(distribution.file, yaml.safe_dump(own))]
    files += [_private(JOIN_FILE, yaml.safe_dump(_join(distribution, guest)))]
    if node.server is not None:
        contents = (guest.authority.certificate, guest.authority.pair.key)
        files += [_private(path, content.decode()) for path, content in zip(CA_FILES, contents, strict=True)]
    before, after = (node.config.get(name) or [] for name in distribution.commands)
    config: Obj = {"write_files": files, "runcmd": [*before, JOIN_COMMAND, *after]}
    ntp = (node.config.get("agentConfig") or node.config).get("ntp")
    if ntp:
        config["ntp"] = ntp
    return f"#cloud-config\n{yaml.safe_dump(config)}"


def _join(distribution: Distribution, guest: Guest) -> Obj:
    node = guest.node
    return {
        "role": WORKER if node.server is None else CONTROL_PLANE,
        "server": distribution.joins_at(node),
        "token": node.token,
        "ca": guest.authority.certificate.decode(),
        "version": guest.version,
        "cni": distribution.has_cni(node),
        "certSANs": distribution.sans(node.server or {}),
    }


def _file(entry: Obj) -> Obj:
    found = {name: entry[name] for name in _FILE_FIELDS if entry.get(name)}
    if "encoding" in found:
        found["encoding"] = _ENCODINGS[found["encoding"]]
    return found


def _private(path: str, content: str) -> Obj:
    return {"path": path, "permissions": "0600", "content": content}
