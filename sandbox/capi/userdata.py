"""The cloud-config that the bootstrap providers of RKE2 and K3s make for a guest. Pure.

The cloud-config is always a Jinja template. The contents of files are indented and not quoted, so a
file that begins with a space makes the cloud-config invalid.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import yaml

from caphv.api.object import Obj, list_at
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
    """A guest and its files.

    `files` are the files of the bootstrap object with their contents, `registries` the files for
    private registries, and `authorities` the files with the CAs. Only the first server has the CAs.
    """

    node: Node
    files: Sequence[Obj] = field(default=(), repr=False)
    registries: Sequence[Obj] = field(default=(), repr=False)
    authorities: Sequence[Obj] = field(default=(), repr=False)


def render(distribution: Distribution, guest: Guest) -> str:
    """Return user data for cloud-init. Raises `UnusableConfigError`."""
    config = k3s_config(guest.node) if distribution.is_k3s else rke2_config(guest.node)
    content = yaml.safe_dump(config, sort_keys=False)
    config_file = _file(distribution.program.file, content)
    return (
        _render_k3s(guest, config_file) if distribution.is_k3s else _render_rke2(guest, config_file)
    )


def authority_files(folder: str, name: str, certificate: bytes, key: bytes) -> list[Obj]:
    """Return the files with the certificate and key of a CA."""
    return [
        _file(f"{folder}/{name}-ca.crt", certificate.decode()),
        _file(f"{folder}/{name}-ca.key", key.decode(), "0600"),
    ]


def registries_file(content: Obj) -> Obj:
    """Return RKE2's `registries.yaml`."""
    return _file("/etc/rancher/rke2/registries.yaml", yaml.safe_dump(content))


def _file(path: str, content: str, permissions: str = "0640") -> Obj:
    return {"path": path, "content": content, "owner": _OWNER, "permissions": permissions}


def _render_rke2(guest: Guest, config_file: Obj) -> str:
    node = guest.node
    agent = guest.node.config.get("agentConfig") or {}
    service = "server"
    other = "agent"
    if node.role is Role.WORKER:
        service = "agent"
        other = "server"
    is_hardened = bool(agent.get("cisProfile"))
    files = [
        *([_file(_CIS_SCRIPT, "#!/bin/bash\n", "0700")] if is_hardened else ()),
        *guest.registries,
        *guest.files,
        *guest.authorities,
        config_file,
    ]

    # The provider quotes its own commands for YAML in another way than the user's commands.
    commands = [
        *map(json.dumps, node.config.get("preRKE2Commands") or ()),
        f"'{_rke2_install(node, air_gapped=bool(agent.get('airGapped')))}'",
        *([f"'{_CIS_SCRIPT}'"] if is_hardened else ()),
        f"'systemctl mask rke2-{other}.service || true'",
        f"'systemctl enable rke2-{service}.service'",
        f"'systemctl start rke2-{service}.service'",
        "'mkdir -p /run/cluster-api'",
        f"'{_SENTINEL}'",
        *map(json.dumps, node.config.get("postRKE2Commands") or ()),
    ]

    servers = list_at(agent, "ntp", "servers")
    ntp = [
        "ntp:",
        "  enabled: true",
        "  servers:",
        *(f"  - {json.dumps(server)}" for server in servers),
    ]
    return _render_text(files, ntp if servers else [], commands)


def _rke2_install(node: Node, *, air_gapped: bool) -> str:
    kind = 'INSTALL_RKE2_TYPE="agent" ' if node.role is Role.WORKER else ""
    if air_gapped:
        return f"{_ARTIFACTS} {kind}sh /opt/install.sh"
    server = "" if node.role is Role.WORKER else " server"
    return (
        f"curl -sfL https://get.rke2.io | INSTALL_RKE2_VERSION={node.version} {kind}sh -s -{server}"
    )


def _render_k3s(guest: Guest, config_file: Obj) -> str:
    node = guest.node
    agent = guest.node.config.get("agentConfig") or {}
    is_worker = node.role is Role.WORKER
    proxy = [] if is_worker else [_file(_ETCD_PROXY, _etcd_proxy_manifest(node))]
    files = [*guest.authorities, *guest.files, *proxy, config_file]

    # The provider's templates have these spaces.
    role = "agent" if is_worker else "server"
    if agent.get("airGapped"):
        path = agent.get("airGappedInstallScriptPath") or "/opt/install.sh"
        install = f"INSTALL_K3S_SKIP_DOWNLOAD=true INSTALL_K3S_EXEC='{role}' sh {path}"
    else:
        space = " " if is_worker else ""
        install = (
            f"curl -sfL https://get.k3s.io | {space}INSTALL_K3S_VERSION={node.version} sh -s - "
            f"{role}"
        )

    commands = [
        *map(json.dumps, node.config.get("preK3sCommands") or ()),
        f" {install}  && mkdir -p /run/cluster-api && {_SENTINEL}",
        *map(json.dumps, node.config.get("postK3sCommands") or ()),
    ]
    return _render_text(files, [], commands)


def _etcd_proxy_manifest(node: Node) -> str:
    """Return the DaemonSet through which the control plane provider reaches etcd.

    In a simulated guest, it runs nothing.
    """
    server = node.config.get("serverConfig") or {}
    registry = f"{server['systemDefaultRegistry']}/" if server.get("systemDefaultRegistry") else ""
    image = server.get("etcdProxyImage") or f"{registry}alpine/socat:1.8.0.0"

    labels = {"app": "etcd-proxy"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "etcd-proxy", "image": image}]},
    }
    return yaml.safe_dump(
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "etcd-proxy", "namespace": "kube-system", "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        }
    )


def _render_text(files: Sequence[Obj], ntp: Sequence[str], commands: Sequence[str]) -> str:
    entries = "\n".join(_render_file(file) for file in files)
    runcmd = "\n".join(f"  - {command}" for command in commands)
    return "\n".join(
        [JINJA, HEADER, "", f"write_files:\n{entries}", *ntp, "", f"runcmd:\n{runcmd}", ""]
    )


def _render_file(file: Obj) -> str:
    lines = [f"-   path: {file['path']}"]
    if file.get("encoding"):
        lines.append(f'    encoding: "{file["encoding"]}"')
    if file.get("owner"):
        lines.append(f"    owner: {file['owner']}")
    if file.get("permissions"):
        lines.append(f"    permissions: '{file['permissions']}'")

    content = "\n".join(f"      {line}" for line in (file.get("content") or "").split("\n"))
    return "\n".join([*lines, "    content: |", content])
