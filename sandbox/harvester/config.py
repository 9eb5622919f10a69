"""Settings of the simulated Harvester, and the hosts, networks, images and pools that it starts with.

All guest addresses lie in one loopback network (127.<n>.0.0/16), so that real TCP listeners can use them and two
sandboxes with different networks never collide.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sandbox.harvester.releases import NEWEST_STABLE, Release, release_named


@dataclass(frozen=True, slots=True)
class Host:
    """A physical host; `memory` is a Kubernetes quantity, `zone` may be empty. No VM runs on a `witness`."""

    name: str
    zone: str = ""
    cpu: int = 64
    memory: str = "1Ti"
    witness: bool = False


@dataclass(frozen=True, slots=True)
class Network:
    """A VM network `<namespace>/<name>`; its simulated DHCP server leases from the range `dhcp`, `<first>-<last>`."""

    name: str
    cidr: str
    gateway: str
    dhcp: str


@dataclass(frozen=True, slots=True)
class Image:
    """A VM image `<namespace>/<name>`; the name of its StorageClass depends on the release of Harvester."""

    name: str
    display_name: str


@dataclass(frozen=True, slots=True)
class Pool:
    """An IPPool with one range; `network` is the VM network it serves, empty for all."""

    name: str
    subnet: str
    first: str
    last: str
    gateway: str
    network: str = ""


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """Settings of the simulation; times in seconds, `boot_spread` as a fraction of `boot_seconds`.

    `harvester` is the release of Harvester that is simulated, as `sandbox.harvester.releases` lists them.

    Harvester creates the claims of a new VM `claim_seconds` after its instance; they are bound after `bind_seconds`.
    A VM then takes `start_seconds` until its instance runs, `boot_seconds` until the guest agent answers, and
    `register_seconds` more until its Node registers. A migration takes `migrate_seconds`. The agent is silent for
    `agent_seconds` after it, or after a reboot inside the guest. An image is imported within `import_seconds`, and CDI
    fills a disk within that. A VM stops within `stop_seconds`. The Node of a stopped guest becomes Unknown after
    `node_lost_seconds`.

    If it `releases_duplicates`, as since Harvester 1.5, the load balancer controller waits `takeover_seconds` between
    releasing a duplicate address and reserving it again. A second of a health check takes `probe_scale` seconds,
    because VMs boot faster than real ones, too.
    """

    network: str = "127.64.0.0/16"
    harvester: str = NEWEST_STABLE
    start_seconds: float = 0.2
    claim_seconds: float = 0.0
    bind_seconds: float = 0.1
    boot_seconds: float = 2.0
    migrate_seconds: float = 0.1
    agent_seconds: float = 0.5
    import_seconds: float = 0.0
    boot_spread: float = 0.25
    register_seconds: float = 1.0
    stop_seconds: float = 0.5
    node_lost_seconds: float = 1.0
    takeover_seconds: float = 0.1
    releases_duplicates: bool = True
    probe_scale: float = 0.05
    cpu_overcommit: int = 1600
    memory_overcommit: int = 150
    namespaces: tuple[str, ...] = ("default", "harvester-public", "harvester-system")
    storage_classes: tuple[str, ...] = ("harvester-longhorn",)
    key_pairs: tuple[str, ...] = ("default/caphv",)
    hosts: tuple[Host, ...] = field(default=())
    networks: tuple[Network, ...] = field(default=())
    images: tuple[Image, ...] = (Image("default/sles-15", "sles-15"),)
    pools: tuple[Pool, ...] = field(default=())

    @classmethod
    def from_settings(cls, network: str, settings: Mapping[str, Any] | None = None) -> SimulatorConfig:
        """Settings for a loopback network; `settings` override fields by name, structured ones by lists of mappings.

        Raises ValueError with the name of the invalid setting.
        """
        prefix = network.removesuffix(".0.0/16")
        if not ipaddress.ip_network(network).is_loopback or prefix == network:
            raise ValueError(f"network: {network} must have the form 127.<n>.0.0/16")
        standard = cls(
            network=network,
            hosts=tuple(Host(f"harvester-{n}", f"zone-{n}") for n in (1, 2, 3)),
            networks=(
                Network("default/production", f"{prefix}.0.0/17", f"{prefix}.0.1", f"{prefix}.32.1-{prefix}.47.254"),
                Network("default/storage", f"{prefix}.128.0/17", f"{prefix}.128.1", f"{prefix}.160.1-{prefix}.175.254"),
            ),
            pools=tuple(
                Pool(name, f"{prefix}.0.0/17", f"{prefix}.{first}", f"{prefix}.{last}", f"{prefix}.0.1")
                for name, first, last in (
                    ("machines-a", "8.1", "8.4"),
                    ("machines-b", "9.1", "9.254"),
                    ("load-balancers", "10.1", "10.254"),
                    ("machines-large", "16.1", "31.254"),
                )
            ),
        )
        config = replace(standard, **{name: _setting(name, value) for name, value in (settings or {}).items()})
        release_named(config.harvester)
        return config

    @property
    def release(self) -> Release:
        """What the simulated release does that others do not."""
        return release_named(self.harvester)


_STRUCTURED: dict[str, Callable[..., Any]] = {"hosts": Host, "networks": Network, "images": Image, "pools": Pool}


def _setting(name: str, value: Any) -> Any:
    if name not in {item.name for item in fields(SimulatorConfig)}:
        raise ValueError(f"{name}: unknown setting; see docs/sandbox.md")
    if name in _STRUCTURED:
        return tuple(_STRUCTURED[name](**entry) for entry in value)
    return tuple(value) if isinstance(value, list) else value
