"""Files that nodes boot with, so that a cluster starts with the network that its bundles describe.

RKE2 and K3s install their network before Fleet can reach the cluster. With the same manifests on
disk, Fleet finds the objects that it would create, and does not reconfigure a running network a
minute later.

However, a server applies its manifests folder again at each start, which would undo later changes
by Fleet. So a script makes servers skip our files. Joining servers skip them from the beginning,
and the first server does as soon as the cluster has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from caphv.api.object import Obj
from packager.addons.settings import AddonSettings, Packaging
from packager.rendering import yaml
from packager.rendering.bundles import FLEET_YAML
from packager.rendering.rendered import Rendered
from packager.tree import cluster_folder

# Bundles whose manifests the distribution's own Helm controller installs.
_EARLY = ("cni", "ccm", "csi-crds", "csi")


@dataclass(frozen=True)
class NodeFiles:
    """Files for servers and agents by absolute path, and `serverConfig` of an RKE2ControlPlane."""

    server_files: Mapping[str, bytes]
    agent_files: Mapping[str, bytes] = field(default_factory=dict)
    server_config: Mapping[str, object] = field(default_factory=dict)


def node_files(rendered: Rendered, *, without_cloud_controller: bool = False) -> NodeFiles:
    """Return the boot files of a rendered cluster. Raises `ValueError` if it could not be rendered.

    `without_cloud_controller`: servers run without the cloud controller of the distribution. No
    server can join with it, even if the add-on is disabled.
    """
    settings = rendered.settings
    if settings is None or not rendered.ok:
        findings = "; ".join(map(str, rendered.findings))
        raise ValueError(f"cluster {rendered.cluster} was not rendered: {findings}")

    manifests = _manifests(rendered, settings)
    if manifests:
        manifests |= _skip_script(settings.distribution)

    if settings.distribution == "k3s":
        config = _k3s_config(settings, without_cloud_controller or settings.ccm.enabled)
        path = "/etc/rancher/k3s/config.yaml.d/50-caphv.yaml"
        server_files = {path: yaml.dump(config.server).encode(), **manifests}
        return NodeFiles(server_files, {path: yaml.dump(config.agent).encode()})

    if settings.distribution == "rke2":
        registry = _rke2_registry(settings)
        server_config = _rke2_config(settings, without_cloud_controller)
        return NodeFiles({**registry, **manifests}, registry, server_config)

    # Other distributions have no Helm controller, so nothing on their nodes would read manifests.
    return NodeFiles({})


def _manifests(rendered: Rendered, settings: AddonSettings) -> dict[str, bytes]:
    """Return the manifests of early bundles by their path in the manifests folder of a server."""
    folder = cluster_folder(*settings.cluster)
    manifests_folder = f"/var/lib/rancher/{settings.distribution}/server/manifests"
    files = {}
    for path, content in sorted(rendered.tree.items()):
        bundle, _, name = path.removeprefix(f"{folder}/").partition("/")
        # Deeper files belong to a chart that the bundle holds. Servers read single manifests only.
        if bundle in _EARLY and name and "/" not in name and name != FLEET_YAML:
            files[f"{manifests_folder}/caphv-{bundle}-{name}"] = content
    return files


_SKIP = """\
#!/bin/sh
# Written by caphv. A server applies its manifests folder again at each start, which would undo \
newer settings. It skips
# our files when it joins a cluster, and, on the first server, as soon as the cluster has them.
root=${{CAPHV_ROOT:-}}
folder=$root/var/lib/rancher/{name}/server/manifests
skip() {{
  for file in "$folder"/caphv-*.yaml; do
    [ -e "$file" ] && : > "$file.skip"
  done
}}
kubectl() {{
  "$root{program}" {arguments} "$@"
}}
is_applied() {{
  for file in "$folder"/caphv-*.yaml; do
    addon=$(basename "$file" .yaml)
    sum=$(kubectl -n kube-system get addons.k3s.cattle.io "$addon" -o 'jsonpath={{.spec.checksum}}')
    [ -n "$sum" ] || return 1
  done 2>/dev/null
}}
case $1 in
  joining)
    config=$root/etc/rancher/{name}/config.yaml
    grep -qsE '^[{{ ]*"?server"?:' "$config" "$config".d/*.yaml && skip
    ;;
  started)
    (
      tries=720
      until is_applied; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || exit 1
        sleep "${{CAPHV_PAUSE:-5}}"
      done
      skip
    ) &
    ;;
esac
exit 0
"""
_UNIT = """\
# Written by caphv.
[Service]
ExecStartPre=-/bin/sh {script} joining
ExecStartPost=-/bin/sh {script} started
"""
_KUBECTL = {
    "rke2": "/var/lib/rancher/rke2/bin/kubectl --kubeconfig /etc/rancher/rke2/rke2.yaml",
    "k3s": "/usr/local/bin/k3s kubectl",
}
_SERVICE = {"rke2": "rke2-server", "k3s": "k3s"}


def _skip_script(distribution: str) -> dict[str, bytes]:
    """Return a script that makes servers skip our manifests, and the drop-in that runs it."""
    program, _, arguments = _KUBECTL[distribution].partition(" ")
    script = f"/etc/rancher/{distribution}/caphv-manifests.sh"
    content = _SKIP.format(name=distribution, program=program, arguments=arguments)
    unit = f"/etc/systemd/system/{_SERVICE[distribution]}.service.d/50-caphv.conf"
    return {script: content.encode(), unit: _UNIT.format(script=script).encode()}


def _rke2_config(settings: AddonSettings, without_cloud_controller: bool) -> Obj:
    """Return `serverConfig` of an RKE2ControlPlane.

    RKE2 installs the cloud provider itself if charts are packaged as HelmChartConfigs. Otherwise
    the bundles install it, and replace the cloud controller of RKE2.
    """
    is_external = settings.packaging is not Packaging.HELM_CHART_CONFIG
    has_no_controller = is_external if settings.ccm.enabled else without_cloud_controller
    disabled = []
    if has_no_controller:
        disabled.append("cloudController")
    if settings.cni.kube_proxy_replacement:
        disabled.append("kubeProxy")

    config: Obj = {"cni": settings.cni.name}
    if settings.ccm.enabled:
        config["cloudProviderName"] = "external" if is_external else "harvester"
    if disabled:
        config["disableComponents"] = {"kubernetesComponents": disabled}
    return config


def _rke2_registry(settings: AddonSettings) -> dict[str, bytes]:
    """Return the file that makes RKE2 on all nodes pull its own images from a registry."""
    if not settings.image_registry:
        return {}
    content = yaml.dump({"system-default-registry": settings.image_registry}).encode()
    return {"/etc/rancher/rke2/config.yaml.d/50-caphv-registry.yaml": content}


class _K3sConfig(NamedTuple):
    """Settings of K3s, for servers and for agents."""

    server: Obj
    agent: Obj


def _k3s_config(settings: AddonSettings, without_cloud_controller: bool) -> _K3sConfig:
    """Return the settings of servers and agents.

    The settings for the CCM follow Harvester's documentation.
    """
    agent: Obj = {}
    server: Obj = {}
    if settings.ccm.enabled:
        agent = {"kubelet-arg": ["cloud-provider=external"], "protect-kernel-defaults": False}
    if without_cloud_controller:
        # servicelb is a part of K3s' cloud controller.
        server = {"disable": ["servicelb"], "disable-cloud-controller": True}

    if settings.image_registry:
        # Agents do not know this flag and would not start with it. Servers tell them the registry.
        server["system-default-registry"] = settings.image_registry
    if settings.cni.name != "none":
        server |= {"flannel-backend": "none", "disable-network-policy": True}
    if settings.cni.kube_proxy_replacement:
        server["disable-kube-proxy"] = True

    network = {
        "cluster-cidr": ",".join(settings.cni.pod_cidrs),
        "service-cidr": ",".join(settings.cni.service_cidrs),
    }
    return _K3sConfig(server={**server, **network, **agent}, agent=agent)
