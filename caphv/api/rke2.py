"""Find settings of RKE2's bootstrap objects that its provider cannot use or loses. Pure functions.

No condition reports them. The machine waits for its bootstrap data, and only the provider's log has
the reason. This was seen with CAPRKE2 v0.25.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from caphv.api.object import at

KINDS = ("RKE2Config", "RKE2ControlPlane")
_POLICIES_UNTIL = 25
_FIRST_PROFILES = ("cis-1.5", "cis-1.6")
_LATER_PROFILES = ("cis", "cis-1.23")


@dataclass(frozen=True, slots=True)
class Problem:
    """A setting by its path below the spec, with its problem and the remedy.

    `lost` means that the provider only ignores the setting.
    """

    path: tuple[str, ...]
    value: Any
    detail: str
    lost: bool = False


def installs_cloud_provider(control_plane: Mapping[str, Any]) -> bool:
    """Return whether RKE2 installs its own charts of Harvester's cloud provider and CSI driver."""
    name = at(control_plane, "spec", "serverConfig", "cloudProviderName")
    return control_plane.get("kind") == "RKE2ControlPlane" and name == "harvester"


def problems(spec: Mapping[str, Any], version: str) -> Iterator[Problem]:
    """Yield settings of an RKE2Config or a control plane that RKE2's provider cannot use.

    :param spec: the spec that has `agentConfig` and `privateRegistriesConfig`
    :param version: Kubernetes version of the machines, empty if not known
    """
    profile = at(spec, "agentConfig", "cisProfile")
    minor = _minor(version)
    if profile and minor is not None:
        usable = _LATER_PROFILES if minor >= _POLICIES_UNTIL else _FIRST_PROFILES
        if profile in (*_FIRST_PROFILES, *_LATER_PROFILES) and profile not in usable:
            detail = (
                f"RKE2's provider makes no bootstrap data with this profile for {version}: use "
                f"{usable[0]}"
            )
            yield Problem(("agentConfig", "cisProfile"), profile, detail)

    configs = at(spec, "privateRegistriesConfig", "configs")
    if not isinstance(configs, Mapping):
        return
    path = ("privateRegistriesConfig", "configs")
    if len(configs) > 1:
        detail = (
            "RKE2's provider keeps any one of several: keep one, or write "
            "/etc/rancher/rke2/registries.yaml in `files`"
        )
        yield Problem(path, ", ".join(sorted(map(str, configs))), detail, lost=True)
    for name, config in configs.items():
        tls = at(config, "tls")
        if tls and not at(tls, "tlsConfigSecret", "name"):
            detail = (
                "RKE2's provider makes no bootstrap data without this Secret: name one, or "
                "remove tls"
            )
            yield Problem((*path, str(name), "tls", "tlsConfigSecret"), None, detail)


def _minor(version: str) -> int | None:
    match = re.match(r"v?1\.(\d{1,3})\.", version)
    return int(match[1]) if match else None
