"""Convert a machine's `spec.guestConfig` to cloud-config for the first boot of its guest."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj

CloudConfig = dict[str, Any]
"""A cloud-config as values, by its keys."""

JOINED = ("packages", "runcmd", "ssh_authorized_keys", "groups", "users", "write_files", "bootcmd")
"""Keys whose lists are joined if several sources have them (contract)."""


@dataclass(frozen=True)
class GuestConfig:
    """A machine's additions to the first boot of its guest; `user_data` is cloud-config as text."""

    install_agent: bool = True
    disable_fstrim_timer: bool = False
    user_data: str = field(default="", repr=False)


STANDARD = GuestConfig()
"""The configuration of a guest whose machine requests nothing special."""


def guest_config(spec: Obj) -> GuestConfig:
    """Read `guestConfig` of a HarvesterMachine's spec."""
    config: Obj = spec.get("guestConfig") or {}
    return GuestConfig(
        install_agent=config.get("installGuestAgent", True) is not False,
        disable_fstrim_timer=bool(config.get("disableFstrimTimer")),
        user_data=str(config.get("userData") or ""),
    )


def base(config: GuestConfig) -> CloudConfig:
    """Return the cloud-config that every guest gets (contract), without omitted parts."""
    packages = ["iptables"]
    commands = []
    if config.install_agent:
        packages.insert(0, "qemu-guest-agent")
        commands.append(["systemctl", "enable", "--now", "qemu-guest-agent.service"])
    if config.disable_fstrim_timer:
        # Trimming a volume while Longhorn rebuilds it causes I/O errors, according to Harvester's
        # knowledge base.
        commands.append(["systemctl", "disable", "--now", "fstrim.timer"])
    return {
        "package_update": True,
        "packages": packages,
        **({"runcmd": commands} if commands else {}),
    }


def join_configs(lower: CloudConfig, higher: CloudConfig) -> CloudConfig:
    """Return both cloud-configs as one.

    Lists under keys of `JOINED` are joined, with items of `lower` first. For other keys, `higher`
    takes precedence.
    """
    result = {**lower, **higher}
    for key in JOINED:
        if isinstance(lower.get(key), list) and isinstance(higher.get(key), list):
            result[key] = lower[key] + higher[key]
    return result


def plain(value: Any) -> Any:
    """Return a YAML value with types of JSON only. Dates become text.

    Raises `ValueError` for binary data, sets and other types that JSON lacks.
    """
    if isinstance(value, dict):
        return {plain(name): plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number that is not finite")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"a value of type {type(value).__name__}")
