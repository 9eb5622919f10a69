"""SandboxSettings and recorded state of a sandbox: the file `sandbox.json` in its folder."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.harvester.releases import NEWEST_STABLE
from sandbox.processes.apiserver import private_file

STATE_FILE = "sandbox.json"


@dataclass(frozen=True)
class SandboxSettings:
    """Settings of a sandbox.

    A simulated VM boots in `boot_seconds`, varied by up to the fraction `boot_spread`, and its Node registers
    `register_seconds` later. Its claims are created `claim_seconds` after its instance, and bound after `bind_seconds`;
    a migration takes `migrate_seconds`, and its guest agent is silent for `agent_seconds` after it or a reboot.
    The Node of a stopped guest becomes Unknown after `node_lost_seconds`. A second of a load balancer's health check
    takes `probe_scale` seconds.

    `audit` enables audit logs of the management and Harvester API servers. Without `provider`, only its CRDs are
    installed, to run a provider by hand; with `webhooks`, the provider serves its admission webhooks. With `page`, the
    live page of `caphv status --serve` is a part of it. Without `older_versions`, CRDs of the core and of the provider
    have only the version that is stored, which saves a conversion of each change.
    `harvester` is the simulated release of Harvester.
    `own_providers` lists distributions, separated by commas, whose bootstrap and control plane providers the user runs.
    With `kubeadm`, its real bootstrap and control plane providers run; without, its kinds are there and nothing else.
    """

    provider: bool = True
    webhooks: bool = False
    audit: bool = False
    page: bool = False
    older_versions: bool = True
    harvester: str = NEWEST_STABLE
    own_providers: str = ""
    kubeadm: bool = False
    boot_seconds: float = 2.0
    boot_spread: float = 0.25
    register_seconds: float = 1.0
    claim_seconds: float = 0.0
    bind_seconds: float = 0.1
    migrate_seconds: float = 0.1
    agent_seconds: float = 0.5
    node_lost_seconds: float = 1.0
    probe_scale: float = 0.05


@dataclass(frozen=True)
class ProcessRecord:
    """A process of a sandbox, with the command that starts it again."""

    pid: int
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """Content of `sandbox.json`; `ready` is set when `up` has completed.

    `core` is the API version of the Cluster API core; `network` is the loopback network for VM addresses; `servers` has
    the URL of each API server.
    """

    settings: SandboxSettings
    core: str = "v1beta2"
    network: str = ""
    created: str = ""
    ready: bool = False
    servers: dict[str, str] = field(default_factory=dict)
    processes: dict[str, ProcessRecord] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path) -> State | None:
        """Read the state of a folder; None if missing or invalid."""
        try:
            raw: dict[str, Any] = json.loads((folder / STATE_FILE).read_bytes())
            parts = {name: _part(part) for name, part in raw.get("processes", {}).items()}
            return cls(**{**raw, "settings": SandboxSettings(**raw["settings"]), "processes": parts})
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save(self, folder: Path) -> None:
        """Write the state of a folder."""
        private_file(folder / STATE_FILE, json.dumps(dataclasses.asdict(self), indent=2).encode())


def _part(recorded: Any) -> ProcessRecord:
    # caphv 0.11 recorded the pid only.
    return ProcessRecord(recorded) if isinstance(recorded, int) else ProcessRecord(**recorded)
