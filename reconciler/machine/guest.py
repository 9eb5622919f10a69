"""What a machine's `spec.guestConfig` adds to the first boot of its guest, as cloud-config."""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj

JOINED = ("packages", "runcmd", "ssh_authorized_keys", "groups", "users", "write_files", "bootcmd")
"""Keys whose lists are joined where several sources have them (contract)."""


@dataclass(frozen=True)
class GuestConfig:
    """`user_data` is more cloud-config, as text."""

    install_agent: bool = True
    disable_fstrim_timer: bool = False
    user_data: str = field(default="", repr=False)


STANDARD = GuestConfig()
"""A guest whose machine asks for nothing."""


def guest_config(spec: Obj) -> GuestConfig:
    """Read `guestConfig` of a HarvesterMachine's spec."""
    found: Obj = spec.get("guestConfig") or {}
    return GuestConfig(
        install_agent=found.get("installGuestAgent", True) is not False,
        disable_fstrim_timer=bool(found.get("disableFstrimTimer")),
        user_data=str(found.get("userData") or ""),
    )


def base(config: GuestConfig) -> dict[str, Any]:
    """Cloud-config that every guest gets (contract), less what the image brings."""
    packages, commands = ["iptables"], []
    if config.install_agent:
        packages.insert(0, "qemu-guest-agent")
        commands.append(["systemctl", "enable", "--now", "qemu-guest-agent.service"])
    if config.disable_fstrim_timer:
        # Trimming a volume that Longhorn rebuilds causes I/O errors (Harvester's knowledge base).
        commands.append(["systemctl", "disable", "--now", "fstrim.timer"])
    return {"package_update": True, "packages": packages, **({"runcmd": commands} if commands else {})}


def joined(lower: dict[str, Any], higher: dict[str, Any]) -> dict[str, Any]:
    """Both cloud-configs as one: lists of `JOINED` one after the other, of other keys those of `higher`."""
    result = {**lower, **higher}
    for key in JOINED:
        if isinstance(lower.get(key), list) and isinstance(higher.get(key), list):
            result[key] = lower[key] + higher[key]
    return result


def plain(value: Any) -> Any:
    """A YAML value as JSON can say it, dates as text. Raises ValueError for binary data, sets and the like."""
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
