"""Find the proxy that the environment sets for a server, with the rules of Go programs.

Python's own rules ignore networks in `NO_PROXY`, where users list networks of Pods and Services.
"""

import os
from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit


def environment_proxy(server: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the proxy for an https server, empty for a direct connection.

    `HTTPS_PROXY` is a URL or `host:port`. `NO_PROXY` lists exceptions: addresses, networks, domains
    (with their subdomains), each with an optional port, or `*`. Loopback addresses are always
    direct.
    """
    proxy = environment.get("HTTPS_PROXY") or environment.get("https_proxy") or ""
    exceptions = environment.get("NO_PROXY") or environment.get("no_proxy") or ""
    if not proxy or _is_direct(server, exceptions):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _is_direct(server: str, exceptions: str) -> bool:
    parts = urlsplit(server)
    host = (parts.hostname or "").rstrip(".")
    port = parts.port or 443
    if host == "localhost" or _is_in(host, "127.0.0.0/8") or host == "::1":
        return True
    return any(
        _fits(host, port, item.strip().lower()) for item in exceptions.split(",") if item.strip()
    )


def _fits(host: str, port: int, item: str) -> bool:
    if item == "*" or _is_in(host, item.strip("[]")):
        return True
    name, _, only = item.rpartition(":")
    if name and only.isdigit():
        return int(only) == port and _fits(host, port, name)
    name = item.removeprefix("*").removeprefix(".")
    return host.endswith(f".{name}") or (host == name and not item.startswith((".", "*")))


def _is_in(host: str, network: str) -> bool:
    try:
        return ip_address(host) in ip_network(network, strict=False)
    except ValueError:
        return False
