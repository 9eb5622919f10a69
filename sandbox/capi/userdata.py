"""The cloud-config that the bootstrap providers of RKE2 and K3s make for a guest. Pure.

It is a Jinja template, whatever it contains, and the contents of files are indented and not quoted: a file that begins
with a space makes it invalid.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from caphv.api.object import Obj
from sandbox.capi.distribution import Distribution
from sandbox.capi.nodeconfig import Node, Role, k3s_config, rke2_config
from sandbox.guest.cloudinit import HEADER, JINJA

_SENTINEL = "echo success > /run/cluster-api/bootstrap-success.complete"
_CIS_SCRIPT = "/opt/rke2-cis-script.sh"
_ARTIFACTS = "INSTALL_RKE2_ARTIFACT_PATH=/opt/rke2-artifacts"
_ETCD_PROXY = "/var/lib/rancher/k3s/server/manifests/etcd-proxy.yaml"
_OWNER = "root:root"


@dataclass(frozen=True)
class Guest:
    """A guest: its node, the resolved `files` of its bootstrap object, and the CAs as files, for the first server."""

    node: Node
    files: Sequence[Obj] = field(default=(), repr=False)
    registries: Sequence[Obj] = field(default=(), repr=False)
    authorities: Sequence[Obj] = field(default=(), repr=False)


def render(distribution: Distribution, guest: Guest) -> str:
    """User data for cloud-init. Raises UnusableConfigError."""
    config = k3s_config(guest.node) if distribution.is_k3s else rke2_config(guest.node)
    content = yaml.safe_dump(config, sort_keys=False)
    own = {"path": distribution.program.file, "content": content, "owner": _OWNER, "permissions": "0640"}
    return _k3s(guest, own) if distribution.is_k3s else _rke2(guest, own)


def authority_files(folder: str, name: str, certificate: bytes, key: bytes) -> list[Obj]:
    """Files with the certificate and key of a CA."""
    contents = ((".crt", certificate, "0640"), (".key", key, "0600"))
    return [
        {
            "path": f"{folder}/{name}-ca{suffix}",
            "content": content.decode(),
            "owner": _OWNER,
            "permissions": permissions,
        }
        for suffix, content, permissions in contents
    ]


def registries_file(content: Obj) -> Obj:
    """RKE2's `registries.yaml`."""
    text = yaml.safe_dump(content)
    return {"path": "/etc/rancher/rke2/registries.yaml", "content": text, "owner": _OWNER, "permissions": "0640"}


def _rke2(guest: Guest, own: Obj) -> str:
    node, agent = guest.node, guest.node.config.get("agentConfig") or {}
    service, other = ("agent", "server") if node.role is Role.WORKER else ("server", "agent")
    script = [{"path": _CIS_SCRIPT, "content": "#!/bin/bash\n", "owner": _OWNER, "permissions": "0700"}]
    hardened = bool(agent.get("cisProfile"))
    files = [*(script if hardened else ()), *guest.registries, *guest.files, *guest.authorities, own]
    commands = [
        *map(json.dumps, node.config.get("preRKE2Commands") or ()),
        f"'{_rke2_install(node, air_gapped=bool(agent.get('airGapped')))}'",
        *([f"'{_CIS_SCRIPT}'"] if hardened else ()),
        f"'systemctl mask rke2-{other}.service || true'",
        f"'systemctl enable rke2-{service}.service'",
        f"'systemctl start rke2-{service}.service'",
        "'mkdir -p /run/cluster-api'",
        f"'{_SENTINEL}'",
        *map(json.dumps, node.config.get("postRKE2Commands") or ()),
    ]
    servers = (agent.get("ntp") or {}).get("servers") or ()
    ntp = ["ntp:", "  enabled: true", "  servers:", *(f"  - {json.dumps(server)}" for server in servers)]
    return _text(files, ntp if servers else [], commands)


def _rke2_install(node: Node, *, air_gapped: bool) -> str:
    kind = 'INSTALL_RKE2_TYPE="agent" ' if node.role is Role.WORKER else ""
    if air_gapped:
        return f"{_ARTIFACTS} {kind}sh /opt/install.sh"
    server = "" if node.role is Role.WORKER else " server"
    return f"curl -sfL https://get.rke2.io | INSTALL_RKE2_VERSION={node.version} {kind}sh -s -{server}"


def _k3s(guest: Guest, own: Obj) -> str:
    node, agent = guest.node, guest.node.config.get("agentConfig") or {}
    role = "agent" if node.role is Role.WORKER else "server"
    proxy = {"path": _ETCD_PROXY, "content": _proxy(node), "owner": _OWNER, "permissions": "0640"}
    files = [*guest.authorities, *guest.files, *([] if node.role is Role.WORKER else [proxy]), own]
    if agent.get("airGapped"):
        path = agent.get("airGappedInstallScriptPath") or "/opt/install.sh"
        install = f"INSTALL_K3S_SKIP_DOWNLOAD=true INSTALL_K3S_EXEC='{role}' sh {path}"
    else:
        space = " " if node.role is Role.WORKER else ""
        install = f"curl -sfL https://get.k3s.io | {space}INSTALL_K3S_VERSION={node.version} sh -s - {role}"
    commands = [
        *map(json.dumps, node.config.get("preK3sCommands") or ()),
        f" {install}  && mkdir -p /run/cluster-api && {_SENTINEL}",
        *map(json.dumps, node.config.get("postK3sCommands") or ()),
    ]
    return _text(files, [], commands)


def _proxy(node: Node) -> str:
    """The DaemonSet by which the control plane provider reaches etcd; it runs nothing in a guest."""
    server = node.config.get("serverConfig") or {}
    registry = f"{server['systemDefaultRegistry']}/" if server.get("systemDefaultRegistry") else ""
    image = server.get("etcdProxyImage") or f"{registry}alpine/socat:1.8.0.0"
    labels = {"app": "etcd-proxy"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "etcd-proxy", "image": image}]}}
    return yaml.safe_dump(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "etcd-proxy", "namespace": "kube-system", "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
    )


def _text(files: Sequence[Obj], ntp: Sequence[str], commands: Sequence[str]) -> str:
    entries = "\n".join(_entry(file) for file in files)
    runcmd = "\n".join(f"  - {command}" for command in commands)
    return "\n".join([JINJA, HEADER, "", f"write_files:\n{entries}", *ntp, "", f"runcmd:\n{runcmd}", ""])


def _entry(file: Obj) -> str:
    lines = [f"-   path: {file['path']}"]
    lines += [f'    encoding: "{file["encoding"]}"'] if file.get("encoding") else []
    lines += [f"    owner: {file['owner']}"] if file.get("owner") else []
    lines += [f"    permissions: '{file['permissions']}'"] if file.get("permissions") else []
    content = "\n".join(f"      {line}" for line in (file.get("content") or "").split("\n"))
    return "\n".join([*lines, "    content: |", content])
