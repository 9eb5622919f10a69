"""The script in the image of the Helm controller's Jobs, klipper-helm, on the real Helm."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.addons.helm import Helm, HelmError, ReleaseStatus

_REINSTALL, _RETRY = "reinstall", "retry"
_DEFAULT_POLICY = _REINSTALL
"""Default of the CRDs, of HelmCharts and of HelmChartConfigs."""

Run = Callable[[str, Sequence[str]], Awaitable[None]]
"""Installs or upgrades the chart: `install` or `upgrade`, and flags. Raises HelmError."""


@dataclass(frozen=True)
class JobOptions:
    """What a HelmChart and its HelmChartConfig say of failures and conflicts."""

    failure_policy: str
    force_conflicts: bool

    @classmethod
    def of(cls, spec: dict[str, Any], config: dict[str, Any] | None) -> JobOptions:
        """Return the options of a HelmChart; those of a HelmChartConfig win, the default of its policy, too."""
        policy = str((spec if config is None else config).get("failurePolicy") or _DEFAULT_POLICY)
        conflicts = (config or {}).get("forceConflicts", spec.get("forceConflicts", False))
        return cls(policy, bool(conflicts))


@dataclass(frozen=True)
class HelmJob:
    """A Job for one release.

    `revision` is what the release must have: the upgrade of another one is left to the next Job.
    """

    helm: Helm
    release: str
    namespace: str
    options: JobOptions
    revision: str = ""

    async def install_or_upgrade(self, run: Run, uninstalled: Counter[str]) -> None:
        """Install, upgrade, or do what the failure policy says. Count failed releases that it uninstalls.

        Raises HelmError.
        """
        status = await self.helm.status(self.release, self.namespace)
        if status is None:
            await run("install", self._sides(None))
        elif self.revision not in ("", str(status.revision)):
            return
        elif status.state == "deployed" or self.options.failure_policy == _RETRY:
            await run("upgrade", self._sides(status))
        elif self.options.failure_policy == _REINSTALL:
            await self.helm.uninstall(self.release, self.namespace)
            uninstalled[self.release] += 1
            await run("install", self._sides(None))
        else:
            raise HelmError(
                f"Release status is '{status.state}' and failure policy is '{self.options.failure_policy}'; "
                "waiting for operator intervention"
            )

    async def uninstall(self) -> None:
        """Uninstall the release. Failures are ignored."""
        with contextlib.suppress(HelmError):
            await self.helm.uninstall(self.release, self.namespace)

    def _sides(self, status: ReleaseStatus | None) -> list[str]:
        """Return the flags of server-side apply: forced conflicts need a release that is applied server-side."""
        force = self.options.force_conflicts and (status is None or status.is_server_side)
        return [f"--server-side={'true' if status is None else 'auto'}", *(["--force-conflicts"] if force else [])]
