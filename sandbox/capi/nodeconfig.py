"""Configuration files of RKE2 and K3s in a guest, as their bootstrap providers write them. Pure.

Like the providers, this module leaves out empty values. It raises an error for values that a
provider cannot use. A real provider reports such an error only in its log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from caphv.api.object import Obj, at, dict_at, list_at
from sandbox.guest.rancher import RKE2_PORT

# The first profiles require PodSecurityPolicies, which Kubernetes no longer has since this version.
_MINOR_WITHOUT_POLICIES = 25
_FIRST_PROFILES = ("cis-1.5", "cis-1.6")
_LATER_PROFILES = ("cis", "cis-1.23")
_CIPHERS = (
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
)


class UnusableConfigError(ValueError):
    """The settings yield no bootstrap data. A real provider logs the message and retries."""


class Role(StrEnum):
    """The role of a node. Only the first server brings the CAs, and it joins no other server."""

    FIRST = "first"
    SERVER = "server"
    WORKER = "worker"


@dataclass(frozen=True)
class Node:
    """The node of a guest.

    `endpoint` is `host:port` of the workload API, and `joins_at` the host where RKE2's nodes join.
    `config` is the spec of the bootstrap object, `server` has the settings of the control plane's
    servers, `network` is the `clusterNetwork` of the Cluster, and `snapshots` are the arguments of
    RKE2's servers for snapshots of etcd.
    """

    role: Role
    version: str
    endpoint: str
    config: Obj = field(default_factory=dict, repr=False)
    server: Obj = field(default_factory=dict, repr=False)
    network: Obj = field(default_factory=dict)
    token: str = field(default="", repr=False)
    joins_at: str = ""
    snapshots: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def host(self) -> str:
        """Return the endpoint without its port."""
        return self.endpoint.rpartition(":")[0]


def rke2_config(node: Node) -> Obj:
    """Return the content of `/etc/rancher/rke2/config.yaml`. Raises `UnusableConfigError`."""
    agent = node.config.get("agentConfig") or {}
    profile = agent.get("cisProfile")
    if profile and profile not in _profiles(node.version):
        raise UnusableConfigError(
            f'failed to generate rke2 agent config: profile "{profile}" is not supported for'
            f' version "{node.version}"'
        )

    config = {
        "cloud-provider-name": node.server.get("cloudProviderName"),
        "data-dir": agent.get("dataDir"),
        "kubelet-arg": at(agent, "kubelet", "extraArgs"),
        "node-label": agent.get("nodeLabels"),
        "node-taint": agent.get("nodeTaints"),
        "profile": profile,
        "protect-kernel-defaults": agent.get("protectKernelDefaults"),
        "pod-security-admission-config-file": agent.get("podSecurityAdmissionConfigFile"),
        "system-default-registry": agent.get("systemDefaultRegistry"),
        "token": node.token,
    }

    if node.role is not Role.FIRST:
        config["server"] = f"https://{node.joins_at or node.host}:{RKE2_PORT}"
    if node.role is not Role.WORKER:
        config |= _rke2_server(node) | dict(node.snapshots)
    return _without_empty(config)


def k3s_config(node: Node) -> Obj:
    """Return the content of `/etc/rancher/k3s/config.yaml`."""
    agent = node.config.get("agentConfig") or {}
    # K3s's provider reads the server settings from each bootstrap object instead of the control
    # plane.
    server = node.config.get("serverConfig") or {}
    provider = server.get("cloudProviderName")
    arguments = [f"cloud-provider={provider}"] if provider else []

    config: Obj = {
        "token": node.token,
        "kubelet-arg": [*(agent.get("kubeletArgs") or ()), *arguments],
        "node-label": agent.get("nodeLabels"),
        "node-taint": agent.get("nodeTaints"),
        "node-name": agent.get("nodeName"),
        "kube-proxy-arg": agent.get("kubeProxyArgs"),
    }

    if node.role is not Role.FIRST:
        config["server"] = f"https://{node.endpoint}"
    if node.role is not Role.WORKER:
        api_server_defaults = ["anonymous-auth=true", f"tls-cipher-suites={','.join(_CIPHERS)}"]
        config |= {
            "cluster-init": node.role is Role.FIRST,
            "disable-cloud-controller": server.get("disableCloudController", True),
            "disable": server.get("disableComponents"),
            "kube-apiserver-arg": [
                *(server.get("kubeAPIServerArg") or ()),
                *api_server_defaults,
            ],
            "kube-controller-manager-arg": [
                *(server.get("kubeControllerManagerArgs") or ()),
                *arguments,
            ],
            "kube-scheduler-arg": server.get("kubeSchedulerArgs"),
            "tls-san": [*(server.get("tlsSan") or ()), node.host],
            "cluster-dns": server.get("clusterDNS"),
            "cluster-domain": server.get("clusterDomain"),
            "system-default-registry": server.get("systemDefaultRegistry"),
        }
    return _without_empty(config)


def registries(
    spec: Mapping[str, Any], secrets: Mapping[str, Mapping[str, bytes]]
) -> tuple[Obj, list[Obj]]:
    """Return the content of `registries.yaml` and the certificate files to which it refers.

    Raises `UnusableConfigError`.

    :param spec: `privateRegistriesConfig` of a bootstrap object of RKE2
    :param secrets: the data of the Secrets to which `spec` refers, by `namespace/name`
    """
    content: Obj = {"configs": None, "mirrors": {}}
    files: list[Obj] = []
    for name, mirror in (spec.get("mirrors") or {}).items():
        rewrite = {"rewrite": mirror["rewrite"]} if mirror.get("rewrite") else {}
        content["mirrors"][name] = {"endpoint": mirror.get("endpoint"), **rewrite}

    for name, settings in (spec.get("configs") or {}).items():
        config: Obj = {}
        if settings.get("tls"):
            data = _secret(settings["tls"].get("tlsConfigSecret") or {}, secrets)
            config["tls"], certificates = _tls(
                data, insecure=bool(settings["tls"].get("insecureSkipVerify"))
            )
            files += certificates
        if settings.get("authSecret"):
            config["auth"] = _credentials(_secret(settings["authSecret"], secrets))
        # The provider replaces the map for each entry, so only the last entry stays.
        content["configs"] = {name: config}
    return content, files


def etcd_snapshots(
    server: Mapping[str, Any], secrets: Mapping[str, Mapping[str, bytes]]
) -> tuple[Obj, list[Obj]]:
    """Return arguments of RKE2's servers for snapshots of etcd, and the file with the store's CA.

    Raises `UnusableConfigError`.

    :param server: `serverConfig` of a control plane of RKE2
    :param secrets: the data of the Secrets to which it refers, by `namespace/name`
    """
    backup = dict_at(server, "etcd", "backupConfig")
    config: Obj = {
        "etcd-disable-snapshots": backup.get("disableAutomaticSnapshots"),
        "etcd-snapshot-name": backup.get("snapshotName"),
        "etcd-snapshot-retention": backup.get("retention"),
        "etcd-snapshot-schedule-cron": backup.get("scheduleCron"),
    }
    s3 = backup.get("s3")
    if s3 is None:
        return config, []

    config |= {
        f"etcd-s3-{name}": s3.get(name) for name in ("bucket", "endpoint", "folder", "region")
    }
    # The zero value of Go means that no certificate is verified.
    config |= {"etcd-s3": True, "etcd-s3-skip-ssl-verify": not s3.get("enforceSslVerify")}
    if s3.get("s3CredentialSecret"):
        data = _secret(s3["s3CredentialSecret"], secrets)
        for key, name in (("access", "aws_access_key_id"), ("secret", "aws_secret_access_key")):
            if name not in data:
                raise UnusableConfigError(f"aws credentials secret is missing {name}")
            config[f"etcd-s3-{key}-key"] = data[name].decode()

    files = []
    if s3.get("endpointCAsecret"):
        data = _secret(s3["endpointCAsecret"], secrets)
        if "ca.pem" not in data:
            raise UnusableConfigError("endpoint CA secret is missing ca.pem")
        config["etcd-s3-endpoint-ca"] = "/etc/rancher/rke2/etcd-s3-ca.crt"
        files.append({"path": config["etcd-s3-endpoint-ca"], "content": data["ca.pem"].decode()})
    return config, files


def snapshot_secrets(server: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return namespace and name of the Secrets that `serverConfig.etcd` names."""
    s3 = dict_at(server, "etcd", "backupConfig", "s3")
    return _named([s3.get("s3CredentialSecret"), s3.get("endpointCAsecret")])


def registry_secrets(spec: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return namespace and name of the Secrets that `privateRegistriesConfig` names."""
    references = [
        reference
        for config in (spec.get("configs") or {}).values()
        for reference in (config.get("authSecret"), at(config, "tls", "tlsConfigSecret"))
    ]
    return _named(references)


def _named(references: Iterable[Mapping[str, Any] | None]) -> Sequence[tuple[str, str]]:
    return [
        (str(reference.get("namespace") or ""), str(reference["name"]))
        for reference in references
        if reference and reference.get("name")
    ]


def _rke2_server(node: Node) -> Obj:
    """Return the settings that only servers have."""
    server = node.server
    disabled = server.get("disableComponents") or {}
    components = disabled.get("kubernetesComponents") or ()
    pods, services = (
        ",".join(list_at(node.network, name, "cidrBlocks")) for name in ("pods", "services")
    )

    # Multus runs next to another CNI, and comes first.
    cni = [server["cni"]] if server.get("cni") else []
    return {
        "cni": ["multus", *cni] if server.get("cniMultusEnable") else cni,
        "cluster-cidr": pods,
        "service-cidr": services,
        "cluster-dns": server.get("clusterDNS"),
        "cluster-domain": server.get("clusterDomain"),
        "disable": disabled.get("pluginComponents"),
        "disable-cloud-controller": "cloudController" in components,
        "disable-kube-proxy": "kubeProxy" in components,
        "disable-scheduler": "scheduler" in components,
        "kube-apiserver-arg": at(server, "kubeAPIServer", "extraArgs"),
        "service-node-port-range": server.get("serviceNodePortRange"),
        "tls-san": [*(server.get("tlsSan") or ()), node.host],
    }


def _profiles(version: str) -> Sequence[str]:
    match = re.match(r"v1\.(\d+)\.", version)
    if match and int(match[1]) >= _MINOR_WITHOUT_POLICIES:
        return _LATER_PROFILES
    return _FIRST_PROFILES


def _secret(
    reference: Mapping[str, Any], secrets: Mapping[str, Mapping[str, bytes]]
) -> Mapping[str, bytes]:
    if not reference.get("name"):
        raise UnusableConfigError("resource name may not be empty")
    key = f"{reference.get('namespace') or ''}/{reference['name']}"
    if key not in secrets:
        raise UnusableConfigError(f'Secret "{reference["name"]}" not found')
    return secrets[key]


def _tls(data: Mapping[str, bytes], *, insecure: bool) -> tuple[Obj, list[Obj]]:
    folder = "/etc/rancher/rke2/tls"
    names = {"tls.crt": "cert_file", "tls.key": "key_file", "ca.crt": "ca_file"}
    present = [name for name in names if name in data]
    files = [{"path": f"{folder}/{name}", "content": data[name].decode()} for name in present]
    config: Obj = {names[name]: f"{folder}/{name}" for name in present}
    return config | ({"insecure_skip_verify": True} if insecure else {}), files


def _credentials(data: Mapping[str, bytes]) -> Obj:
    names = {"username": "username", "password": "password", "identity-token": "identitytoken"}
    return {field: data[name].decode() for name, field in names.items() if name in data}


def _without_empty(values: Mapping[str, Any]) -> Obj:
    return {name: value for name, value in values.items() if value}
