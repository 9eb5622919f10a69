"""The cloud-config of a guest: what the RKE2Config says, and the sandbox's join file in place of RKE2 itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from caphv.runtime.resource import Obj
from sandbox.join import CA_FILES, CONTROL_PLANE, JOIN_FILE, WORKER
from sandbox.pki import CA

RKE2_FILE = "/etc/rancher/rke2/config.yaml"
JOIN_COMMAND = "caphv-sandbox-join"
_FILE_FIELDS = ("path", "content", "owner", "permissions", "encoding")
_ENCODINGS = {"base64": "b64", "gzip": "gzip", "gzip+base64": "gz+b64"}
_REGISTRATION_PORT = 9345


@dataclass(frozen=True)
class Guest:
    """What a guest is to become. `server` is the RKE2ControlPlane's `serverConfig`, None for a worker.

    `endpoint` is `host:port` of the workload API, `files` those of the RKE2Config with all their contents.
    """

    endpoint: str
    version: str
    authority: CA = field(repr=False)
    token: str = field(repr=False)
    config: Obj = field(default_factory=dict, repr=False)
    server: Obj | None = None
    files: Sequence[Obj] = field(default=(), repr=False)


def render(guest: Guest) -> str:
    """User data for cloud-init."""
    files = [_file(entry) for entry in guest.files]
    files += [_private(RKE2_FILE, yaml.safe_dump(_rke2(guest))), _private(JOIN_FILE, yaml.safe_dump(_join(guest)))]
    if guest.server is not None:
        contents = (guest.authority.certificate, guest.authority.pair.key)
        files += [_private(path, content.decode()) for path, content in zip(CA_FILES, contents, strict=True)]
    before = guest.config.get("preRKE2Commands") or []
    after = guest.config.get("postRKE2Commands") or []
    config: Obj = {"write_files": files, "runcmd": [*before, JOIN_COMMAND, *after]}
    ntp = (guest.config.get("agentConfig") or {}).get("ntp")
    if ntp:
        config["ntp"] = ntp
    return "#cloud-config\n" + yaml.safe_dump(config)


def _join(guest: Guest) -> Obj:
    return {
        "role": WORKER if guest.server is None else CONTROL_PLANE,
        "server": f"https://{guest.endpoint}",
        "token": guest.token,
        "ca": guest.authority.certificate.decode(),
        "version": guest.version,
        "cni": (guest.server or {}).get("cni") != "none",
        "certSANs": (guest.server or {}).get("tlsSan") or [],
    }


def _rke2(guest: Guest) -> Obj:
    """The part of RKE2's own configuration file that somebody may want to look at in a guest."""
    agent = guest.config.get("agentConfig") or {}
    server = guest.server or {}
    host = guest.endpoint.rpartition(":")[0]
    found = {
        "server": f"https://{host}:{_REGISTRATION_PORT}",
        "token": guest.token,
        "kubelet-arg": (agent.get("kubelet") or {}).get("extraArgs"),
        "node-label": agent.get("nodeLabels"),
        "node-taint": agent.get("nodeTaints"),
        "cni": server.get("cni"),
        "cloud-provider-name": server.get("cloudProviderName"),
        "disable-cloud-controller": "cloudController" in _disabled(server, "kubernetesComponents"),
        "disable": _disabled(server, "pluginComponents"),
        "tls-san": [host, *(server.get("tlsSan") or ())] if guest.server is not None else None,
    }
    return {name: value for name, value in found.items() if value}


def _disabled(server: Obj, group: str) -> list[str]:
    return (server.get("disableComponents") or {}).get(group) or []


def _file(entry: Obj) -> Obj:
    found = {name: entry[name] for name in _FILE_FIELDS if entry.get(name)}
    if "encoding" in found:
        found["encoding"] = _ENCODINGS[found["encoding"]]
    return found


def _private(path: str, content: str) -> Obj:
    return {"path": path, "permissions": "0600", "content": content}
