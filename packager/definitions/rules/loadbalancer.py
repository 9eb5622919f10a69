"""Rules about the load balancer of the control plane, or an external endpoint instead."""

from __future__ import annotations

from collections.abc import Iterator

from caphv.api.object import Obj
from caphv.api.supported import parse
from caphv.validation.finding import Fault, FieldPath, Finding
from caphv.validation.rule import Rules
from packager.definitions.rules.addresses import is_ipv4
from packager.definitions.rules.model import KINDS

RULES = Rules()
_API_PORT = 6443
# The first one whose kubeadm writes super-admin.conf.
_OLDEST_OF_KUBEADM = (1, 29)


@RULES.rule(
    "definition-load-balancer",
    KINDS,
    "`ipPoolRef` must be set with `ipamType: pool` and `endpoint` with `ipamType: none`, and only "
    "with it. An external endpoint must be an IPv4 address or a DNS name, and has no description. "
    "`kubeVip` needs `ipamType: none`, an IPv4 address as endpoint, and port 6443; with kubeadm, "
    "it needs Kubernetes 1.29.",
)
def _check_load_balancer(obj: Obj) -> Iterator[Finding]:
    spec = obj["spec"]
    # Without the field, the address comes from DHCP.
    balancer = spec.get("loadBalancer", {})
    path: FieldPath = ("spec", "loadBalancer", "ipPoolRef")
    if balancer.get("ipamType") == "pool" and "ipPoolRef" not in balancer:
        detail = "must be set when ipamType is pool: name an IPPool on Harvester"
        yield Finding(path, Fault.REQUIRED, detail)
    if balancer.get("ipamType") == "dhcp" and "ipPoolRef" in balancer:
        detail = "has no effect with ipamType dhcp: remove it, or use ipamType pool"
        yield Finding(path, Fault.FORBIDDEN, detail)
    yield from _check_external_endpoint(balancer)

    version = spec["kubernetesVersion"]
    is_kubeadm = spec.get("distribution") == "kubeadm"
    if "kubeVip" in balancer and is_kubeadm and parse(version) < _OLDEST_OF_KUBEADM:
        detail = (
            f"needs Kubernetes 1.29 with kubeadm, and kubernetesVersion is {version}: choose a "
            "newer one, since `kubeadm init` would wait for the address without end"
        )
        yield Finding(("spec", "loadBalancer", "kubeVip"), Fault.FORBIDDEN, detail)


def _check_external_endpoint(balancer: Obj) -> Iterator[Finding]:
    """Yield findings about fields that depend on `ipamType: none`."""
    path: FieldPath = ("spec", "loadBalancer")
    if balancer.get("ipamType") != "none":
        if "endpoint" in balancer:
            detail = "has no effect without ipamType none: remove it, or use ipamType none"
            yield Finding((*path, "endpoint"), Fault.FORBIDDEN, detail)
        if "kubeVip" in balancer:
            detail = "has no effect without ipamType none: remove it, or use ipamType none"
            yield Finding((*path, "kubeVip"), Fault.FORBIDDEN, detail)
        return

    for name in ("ipPoolRef", "description"):
        if name in balancer:
            detail = "has no effect with ipamType none: remove it, or use ipamType pool or dhcp"
            yield Finding((*path, name), Fault.FORBIDDEN, detail)
    if "endpoint" not in balancer:
        detail = "must be set when ipamType is none: give the address of your load balancer"
        if "kubeVip" in balancer:
            detail = "must be set with kubeVip: give the address that control plane machines hold"
        yield Finding((*path, "endpoint"), Fault.REQUIRED, detail)
        return

    # A name whose last label has only digits is meant as an address.
    host = balancer["endpoint"]["host"]
    if host.rpartition(".")[2].isdecimal() and not is_ipv4(host):
        detail = "must be an IPv4 address or a DNS name"
        yield Finding((*path, "endpoint", "host"), Fault.INVALID, detail, value=host)
    elif "kubeVip" in balancer:
        yield from _check_kube_vip(balancer["endpoint"])


def _check_kube_vip(endpoint: Obj) -> Iterator[Finding]:
    """Check an endpoint that machines of the control plane hold themselves."""
    path: FieldPath = ("spec", "loadBalancer", "endpoint")
    host = endpoint["host"]
    port = endpoint.get("port", _API_PORT)
    if not is_ipv4(host):
        detail = "must be an IPv4 address with kubeVip: machines hold an address, and no DNS name"
        yield Finding((*path, "host"), Fault.INVALID, detail, value=host)
    if port != _API_PORT:
        detail = "must be 6443 with kubeVip, which forwards nothing: remove it"
        yield Finding((*path, "port"), Fault.INVALID, detail, value=port)
