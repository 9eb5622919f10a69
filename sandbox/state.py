"""The settings and the recorded state of a sandbox, in the file `sandbox.json` of its folder."""

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

    A simulated VM boots in `boot_seconds`, varied by up to the fraction `boot_spread`, and its Node
    registers `register_seconds` later. Its claims are created `claim_seconds` after its instance,
    and bound after `bind_seconds`; a migration takes `migrate_seconds`, and its guest agent is
    silent for `agent_seconds` after it or a reboot. The Node of a stopped guest becomes Unknown
    after `node_lost_seconds`. A second of a load balancer's health check takes `probe_scale`
    seconds.

    `audit` enables audit logs of the management and Harvester API servers. Without `provider`, only
    its CRDs are installed, to run a provider by hand. With `webhooks`, the provider serves its
    admission webhooks. With `page`, the sandbox runs the live page of `caphv status --serve`.
    Without `older_versions`, CRDs of the core and of the provider have only the version that is
    stored, which saves a conversion of each change. `harvester` is the simulated release of
    Harvester. `own_providers` lists distributions, separated by commas, whose bootstrap and control
    plane providers the user runs. With `kubeadm`, the real bootstrap and control plane providers of
    kubeadm run. Otherwise the sandbox has only the kinds of kubeadm.
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
    """The content of `sandbox.json`. `ready` is set when `up` has completed.

    `core` is the API version of the Cluster API core. `network` is the loopback network for VM
    addresses. `servers` has the URL of each API server.
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
        """Read the state of a folder, None if it is missing or invalid."""
        try:
            raw: dict[str, Any] = json.loads((folder / STATE_FILE).read_bytes())
            settings = SandboxSettings(**raw["settings"])
            records = raw.get("processes", {})
            processes = {name: ProcessRecord(**record) for name, record in records.items()}
            return cls(**{**raw, "settings": settings, "processes": processes})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            # The file is not JSON, or comes from a release whose settings had other fields.
            return None

    @staticmethod
    def exists(folder: Path) -> bool:
        """Return whether a folder has a state, perhaps of another release, which `load` ignores."""
        try:
            raw = json.loads((folder / STATE_FILE).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return False
        return isinstance(raw, dict) and {"settings", "processes"} <= raw.keys()

    def save(self, folder: Path) -> None:
        """Write the state of a folder."""
        private_file(folder / STATE_FILE, json.dumps(dataclasses.asdict(self), indent=2).encode())
