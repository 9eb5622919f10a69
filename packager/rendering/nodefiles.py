"""Files that nodes boot with, so that a cluster starts with the network that its bundles describe.

RKE2 and K3s install their network before Fleet can reach the cluster. With the same manifests on disk, Fleet finds what
it would create, and does not reconfigure a running network a minute later.

But a server applies its manifests folder again at each start, whatever Fleet has changed since. So a script lets it
skip our files: on joining servers from the beginning, on the first one as soon as the cluster has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from caphv.api.object import Obj
from packager.addons.settings import AddonSettings, Packaging
from packager.rendering import yaml
from packager.rendering.bundles import FLEET_YAML
from packager.rendering.renderer import Rendered
from packager.tree import cluster_folder

_EARLY = ("cni", "ccm", "csi-crds", "csi")
"""Bundles whose manifests a distribution's own Helm controller takes."""


@dataclass(frozen=True)
class NodeFiles:
    """Files by absolute path, for servers and for agents, and the fields of an RKE2ControlPlane's `serverConfig`."""

    server_files: Mapping[str, bytes]
    agent_files: Mapping[str, bytes] = field(default_factory=dict)
    server_config: Mapping[str, object] = field(default_factory=dict)


def node_files(rendered: Rendered, *, without_cloud_controller: bool = False) -> NodeFiles:
    """Return what the nodes of a rendered cluster start with. Raises ValueError for a cluster that has no files.

    `without_cloud_controller`: servers run without the cloud controller of the distribution. None can join with it,
    also when the add-on is disabled.
    """
    settings = rendered.settings
    if settings is None or not rendered.ok:
        msg = f"cluster {rendered.cluster} was not rendered: " + "; ".join(map(str, rendered.findings))
        raise ValueError(msg)
    manifests = _manifests(rendered, settings)
    if manifests:
        manifests |= _skip_script(settings.distribution)
    if settings.distribution == "k3s":
        server, agent = _k3s_config(settings, without_cloud_controller or settings.ccm.enabled)
        place = "/etc/rancher/k3s/config.yaml.d/50-caphv.yaml"
        return NodeFiles({place: yaml.dump(server).encode(), **manifests}, {place: yaml.dump(agent).encode()})
    if settings.distribution == "rke2":
        registry = _rke2_registry(settings)
        return NodeFiles({**registry, **manifests}, registry, _rke2_config(settings, without_cloud_controller))
    # Others have no Helm controller: nothing on their nodes would read manifests.
    return NodeFiles({})


def _manifests(rendered: Rendered, settings: AddonSettings) -> dict[str, bytes]:
    folder = cluster_folder(*settings.cluster)
    found = {}
    for path, content in sorted(rendered.tree.items()):
        bundle, _, name = path.removeprefix(f"{folder}/").partition("/")
        if bundle in _EARLY and name and "/" not in name and name != FLEET_YAML:
            place = f"/var/lib/rancher/{settings.distribution}/server/manifests"
            found[f"{place}/caphv-{bundle}-{name}"] = content
    return found


_SKIP = """\
#!/bin/sh
# Written by caphv. A server applies its manifests folder again at each start, which would undo newer settings. It skips
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
    """Return a script that lets servers skip our manifests, and the drop-in that runs it with the server."""
    program, _, arguments = _KUBECTL[distribution].partition(" ")
    script = f"/etc/rancher/{distribution}/caphv-manifests.sh"
    content = _SKIP.format(name=distribution, program=program, arguments=arguments)
    unit = f"/etc/systemd/system/{_SERVICE[distribution]}.service.d/50-caphv.conf"
    return {script: content.encode(), unit: _UNIT.format(script=script).encode()}


def _rke2_config(settings: AddonSettings, without_cloud_controller: bool) -> Obj:
    external = settings.packaging is not Packaging.HELM_CHART_CONFIG
    # RKE2's own cloud provider and, without kube-proxy, its replacement's rival are turned off.
    off = external if settings.ccm.enabled else without_cloud_controller
    disabled = ["cloudController"] if off else []
    disabled += ["kubeProxy"] if settings.cni.kube_proxy_replacement else []
    return {
        "cni": settings.cni.name,
        **({"cloudProviderName": "external" if external else "harvester"} if settings.ccm.enabled else {}),
        **({"disableComponents": {"kubernetesComponents": disabled}} if disabled else {}),
    }


def _rke2_registry(settings: AddonSettings) -> dict[str, bytes]:
    """Return a file that makes RKE2 take its own images from a registry, on servers and agents alike."""
    if not settings.image_registry:
        return {}
    content = yaml.dump({"system-default-registry": settings.image_registry}).encode()
    return {"/etc/rancher/rke2/config.yaml.d/50-caphv-registry.yaml": content}


def _k3s_config(settings: AddonSettings, without_cloud_controller: bool) -> tuple[Obj, Obj]:
    """Settings of servers and agents, the first four as the document of Harvester's cloud provider has them."""
    agent: Obj = {}
    server: Obj = {}
    if settings.ccm.enabled:
        agent = {"kubelet-arg": ["cloud-provider=external"], "protect-kernel-defaults": False}
    if without_cloud_controller:
        server = {"disable": ["servicelb"], "disable-cloud-controller": True}
    if settings.image_registry:
        # Agents have no such flag, and do not start with it: servers pass them theirs.
        server["system-default-registry"] = settings.image_registry
    if settings.cni.name != "none":
        server |= {"flannel-backend": "none", "disable-network-policy": True}
    if settings.cni.kube_proxy_replacement:
        server["disable-kube-proxy"] = True
    network = {
        "cluster-cidr": ",".join(settings.cni.pod_cidrs),
        "service-cidr": ",".join(settings.cni.service_cidrs),
    }
    return {**server, **network, **agent}, agent
