"""Settings of the simulated Harvester, and the hosts, networks, images and pools it starts with.

All guest addresses lie in one loopback network (127.<n>.0.0/16), so that real TCP listeners can use
them and two sandboxes with different networks never collide.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sandbox.harvester.releases import NEWEST_STABLE, Release, release_named


@dataclass(frozen=True, slots=True)
class Host:
    """A physical host. No VM runs on a `witness`.

    :param zone: topology zone, empty for none
    :param memory: a Kubernetes quantity
    :param devices: amounts of further resources, such as devices and huge pages, by their names
    """

    name: str
    zone: str = ""
    cpu: int = 64
    memory: str = "1Ti"
    witness: bool = False
    devices: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Network:
    """A VM network `<namespace>/<name>`.

    :param dhcp: the range `<first>-<last>` from which its simulated DHCP server leases addresses
    """

    name: str
    cidr: str
    gateway: str
    dhcp: str


@dataclass(frozen=True, slots=True)
class Image:
    """A VM image `<namespace>/<name>`. The name of its StorageClass depends on the release."""

    name: str
    display_name: str


@dataclass(frozen=True, slots=True)
class Pool:
    """An IPPool with one range. `network` is the VM network that it serves, empty for all."""

    name: str
    subnet: str
    first: str
    last: str
    gateway: str
    network: str = ""


@dataclass(frozen=True, slots=True)
class SimulatorConfig:
    """Settings of the simulation. All times are in seconds."""

    # The loopback network of all addresses, and the release that is simulated, one of
    # `sandbox.harvester.releases`.
    network: str = "127.64.0.0/16"
    harvester: str = NEWEST_STABLE

    # Harvester creates the claims of a new VM after its instance. Then the claims are bound, and
    # then the instance starts.
    claim_seconds: float = 0.0
    bind_seconds: float = 0.1
    start_seconds: float = 0.2

    # The time until the guest agent answers, the random spread of this time as a fraction, and the
    # time from then until the Node registers.
    boot_seconds: float = 2.0
    boot_spread: float = 0.25
    register_seconds: float = 1.0

    # The agent is silent for `agent_seconds` after a migration, or a reboot inside the guest.
    migrate_seconds: float = 0.1
    agent_seconds: float = 0.5

    # The import of an image takes this time, and so does CDI to fill a disk.
    import_seconds: float = 0.0

    # A backup of a VM takes this time. Without a backup target, backups are refused.
    backup_seconds: float = 0.2
    backup_target: bool = True

    # The Node of a stopped guest becomes Unknown after `node_lost_seconds`.
    stop_seconds: float = 0.5
    node_lost_seconds: float = 1.0

    # Since Harvester 1.5, the load balancer controller releases a duplicate address, waits, and
    # reserves it again.
    releases_duplicates: bool = True
    takeover_seconds: float = 0.1

    # The duration of a second of a health check. It is shorter, as is the boot of a guest.
    probe_scale: float = 0.05

    # The percentages in Harvester's setting `overcommit-config`.
    cpu_overcommit: int = 1600
    memory_overcommit: int = 150

    # Objects that exist from the start.
    namespaces: tuple[str, ...] = ("default", "harvester-public", "harvester-system")
    storage_classes: tuple[str, ...] = ("harvester-longhorn",)
    key_pairs: tuple[str, ...] = ("default/caphv",)
    hosts: tuple[Host, ...] = field(default=())
    networks: tuple[Network, ...] = field(default=())
    images: tuple[Image, ...] = (Image("default/sles-15", "sles-15"),)
    pools: tuple[Pool, ...] = field(default=())

    @classmethod
    def from_settings(
        cls, network: str, settings: Mapping[str, Any] | None = None
    ) -> SimulatorConfig:
        """Return the settings for a loopback network.

        Raise ValueError with the name of an invalid setting.

        :param settings: values that override fields; structured fields take lists of mappings
        """
        prefix = network.removesuffix(".0.0/16")
        if not ipaddress.ip_network(network).is_loopback or prefix == network:
            raise ValueError(f"network: {network} must have the form 127.<n>.0.0/16")

        defaults = cls(
            network=network,
            hosts=tuple(Host(f"harvester-{n}", f"zone-{n}") for n in (1, 2, 3)),
            networks=_default_networks(prefix),
            pools=_default_pools(prefix),
        )
        overrides = {name: _setting(name, value) for name, value in (settings or {}).items()}
        config = replace(defaults, **overrides)

        # Fail here instead of when a part of the simulator first reads the release.
        release_named(config.harvester)
        return config

    @property
    def release(self) -> Release:
        """Return the simulated release, with its differences to others."""
        return release_named(self.harvester)


def _default_networks(prefix: str) -> tuple[Network, ...]:
    return (
        Network(
            "default/production",
            cidr=f"{prefix}.0.0/17",
            gateway=f"{prefix}.0.1",
            dhcp=f"{prefix}.32.1-{prefix}.47.254",
        ),
        Network(
            "default/storage",
            cidr=f"{prefix}.128.0/17",
            gateway=f"{prefix}.128.1",
            dhcp=f"{prefix}.160.1-{prefix}.175.254",
        ),
    )


def _default_pools(prefix: str) -> tuple[Pool, ...]:
    ranges = {
        # Four addresses, so that a pool can run out of them.
        "machines-a": ("8.1", "8.4"),
        "machines-b": ("9.1", "9.254"),
        "load-balancers": ("10.1", "10.254"),
        "machines-large": ("16.1", "31.254"),
    }

    return tuple(
        Pool(
            name,
            subnet=f"{prefix}.0.0/17",
            first=f"{prefix}.{first}",
            last=f"{prefix}.{last}",
            gateway=f"{prefix}.0.1",
        )
        for name, (first, last) in ranges.items()
    )


_STRUCTURED: dict[str, Callable[..., Any]] = {
    "hosts": Host,
    "networks": Network,
    "images": Image,
    "pools": Pool,
}


def _setting(name: str, value: Any) -> Any:
    if name not in {item.name for item in fields(SimulatorConfig)}:
        raise ValueError(f"{name}: unknown setting; see docs/sandbox.md")
    if name in _STRUCTURED:
        return tuple(_STRUCTURED[name](**entry) for entry in value)
    return tuple(value) if isinstance(value, list) else value
