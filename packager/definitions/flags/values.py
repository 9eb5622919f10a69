"""Make values of fields from the texts of flags.

Values are kept as typed until the schema validates them, so that all errors are reported at once.
"""

from __future__ import annotations

from typing import Any


def as_typed(text: str) -> Any:
    """Return the text itself."""
    return text


def number(text: str) -> Any:
    """Return a number; other text as it is, which the schema rejects."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def items(text: str) -> Any:
    """Return the parts of a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


def pool(text: str) -> Any:
    """Return a load balancer whose address comes from an IPPool."""
    return {"ipamType": "pool", "ipPoolRef": text}


def endpoint(text: str) -> Any:
    """Return an external endpoint for `HOST` or `HOST:PORT`."""
    host, separator, port = text.partition(":")
    return {
        "ipamType": "none",
        "endpoint": {"host": host, **({"port": number(port)} if separator else {})},
    }


def virtual_address(text: str) -> Any:
    """Return an endpoint whose address control plane machines hold themselves."""
    return {"ipamType": "none", "endpoint": {"host": text}, "kubeVip": {}}


def disks(text: str) -> Any:
    """Return one further disk for `SIZE` or `SIZE:STORAGECLASS`."""
    size, _, storage_class = text.partition(":")
    return [{"size": size, **({"storageClass": storage_class} if storage_class else {})}]


def workers(text: str) -> Any:
    """Return one pool of workers of a size."""
    return [{"name": "workers", "replicas": number(text)}]


def devices(text: str) -> Any:
    """Return devices for `RESOURCE` and `RESOURCE=COUNT`, comma-separated."""
    pairs = [part.partition("=") for part in items(text)]
    return [
        {"resourceName": name, **({"count": number(count)} if separator else {})}
        for name, separator, count in pairs
    ]


def interfaces(text: str) -> Any:
    """Return settings of interfaces for `NETWORK=POOLS` and `NETWORK=POOLS@DNS`, comma-separated.

    `+` separates pools, and DNS servers. A pool is `NAME` of an InClusterIPPool, or
    `KIND.GROUP/NAME`.
    """
    settings = []
    for part in items(text):
        network, _, sources = part.partition("=")
        pools, separator, servers = sources.partition("@")
        dns = {"dnsServers": servers.split("+")} if separator else {}
        listed = [_address_pool(pool) for pool in pools.split("+")]
        settings.append({"network": network, "addressesFromPools": listed, **dns})
    return settings


def mtus(text: str) -> Any:
    """Return settings of interfaces for `NETWORK=BYTES`, comma-separated."""
    pairs = [part.partition("=") for part in items(text)]
    return [{"network": network, "mtu": number(size)} for network, _, size in pairs]


def routes(text: str) -> Any:
    """Return settings of interfaces for `NETWORK=TO@VIA+TO@VIA`, comma-separated."""
    settings = []
    for part in items(text):
        network, _, listed = part.partition("=")
        pairs = [route.partition("@") for route in listed.split("+")]
        settings.append(
            {"network": network, "routes": [{"to": to, "via": via} for to, _, via in pairs]}
        )
    return settings


def _address_pool(text: str) -> dict[str, str]:
    resource, separator, name = text.rpartition("/")
    kind, _, group = resource.partition(".")
    if not separator:
        kind = "InClusterIPPool"
        group = "ipam.cluster.x-k8s.io"
    return {"apiGroup": group, "kind": kind, "name": name}


def switch(text: str) -> Any:
    """Return a boolean for `true` and `false`; other text as it is, which the schema rejects."""
    return {"true": True, "false": False}.get(text, text)


def mirrors(text: str) -> Any:
    """Return mirrors of registries for `REGISTRY=URL`, comma-separated."""
    mirrors: dict[str, Any] = {}
    for part in items(text):
        registry, _, endpoint = part.partition("=")
        mirrors.setdefault(registry, {"endpoint": []})["endpoint"].append(endpoint)
    return mirrors


def _expressions(text: str) -> Any:
    """Return demands on labels: `KEY=VALUE` for a value, `KEY` alone for any."""
    # A label may have an empty value, so only the separator tells `KEY=` from `KEY`.
    pairs = [part.partition("=") for part in items(text)]
    return [
        (
            {"key": key, "operator": "In", "values": [value]}
            if separator
            else {"key": key, "operator": "Exists"}
        )
        for key, separator, value in pairs
    ]


def hosts(text: str) -> Any:
    """Return a node affinity for labels that hosts must have."""
    terms = [{"matchExpressions": _expressions(text)}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def neighbours(text: str) -> Any:
    """Return a Pod affinity for labels of workloads that hosts must run."""
    term = {
        "labelSelector": {"matchExpressions": _expressions(text)},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
