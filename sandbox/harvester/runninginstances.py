"""KubeVirt: changes of running instances, such as new labels, disks, and live migrations.

Each method makes at most one write per object, like the steps of the lifecycle.
"""

from __future__ import annotations

from caphv.api.object import Obj, at, dict_at, key_of, labels_of, list_at
from sandbox.harvester import disks, hostlabels, hotplug, instances, migration
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.deadlines import Deadlines
from sandbox.harvester.informers import Informers, claims_of
from sandbox.harvester.placements import Placements
from sandbox.harvester.volumes import Pending, Volumes


class RunningInstances:
    """Keeps instances that have a host up to date."""

    def __init__(
        self,
        informers: Informers,
        config: SimulatorConfig,
        volumes: Volumes,
        placements: Placements,
        deadlines: Deadlines,
    ) -> None:
        self._informers = informers
        self._config = config
        self._volumes = volumes
        self._placements = placements
        self._deadlines = deadlines

    async def update(self, vm: Obj, vmi: Obj, *, runs: bool) -> None:
        """Bring labels, annotations and phase of an instance up to date, in one write."""
        patch: Obj = {}

        # Harvester copies labels of the template, and removes others (`SyncLabelsToVmi`).
        labels = dict_at(vm, "spec", "template", "metadata", "labels")
        if labels_of(vmi) != labels:
            removed = dict.fromkeys(labels_of(vmi).keys() - labels.keys())
            patch["metadata"] = {"labels": {**labels, **removed}}

        host = self._informers.hosts.get("", instances.host_of(vmi))
        if topology := hostlabels.topology_changes(vmi, labels, host):
            patch.setdefault("metadata", {})["annotations"] = topology

        if runs and instances.phase_of(vmi) != "Running":
            patch |= instances.running_patch(vmi, self._claims(vm))
        if patch:
            await self._patch(vmi, patch)

    async def update_disks(self, vm: Obj, vmi: Obj) -> float:
        """Let disks of a running VM grow, and attach others; return the seconds until a next step.

        A claim that is deleted under a running VM is not created again.
        """
        attached = {status["name"]: status for status in vmi["status"].get("volumeStatus") or ()}
        hotplugged = (
            volume
            for volume in list_at(vm, "spec", "template", "spec", "volumes")
            if at(volume, "persistentVolumeClaim", "hotpluggable")
        )
        incomplete = any(
            at(attached.get(volume["name"]), "phase") != "Ready" for volume in hotplugged
        )
        pending = await self._volumes.ensure(vm) if incomplete else Pending()
        await self._volumes.enlarge(vm)

        claims = {claim["metadata"]["name"]: claim for claim in self._claims(vm)}
        if patch := disks.instance_patch(vm, vmi, claims, self._config.release):
            await self._patch(vmi, patch)
        return pending.retry_after or 0

    async def continue_migration(self, vm: Obj) -> float:
        """Complete a migration that has begun; return the seconds until it ends."""
        key = key_of(vm)
        vmi = self._informers.vmis.get(*key)
        target = instances.target_of(vmi) if vmi is not None else ""
        if vmi is None or not target:
            return 0

        remaining = self._deadlines.remaining("migrate", vmi, self._config.migrate_seconds)
        if remaining <= 0:
            self._deadlines.forget(vmi, "migrate")
            self._placements.record(key, vmi, target)
            await self._patch(vmi, instances.migrated_patch(vmi, target))
        return remaining

    async def migrate(self, vm: Obj) -> bool:
        """Migrate an instance that was evicted or gets other sizes.

        Return False if it has to migrate, but no host can take it. Like KubeVirt's evacuation
        controller and workload updater, the caller retries when a host changes.
        """
        vmi = self._informers.vmis.get(*key_of(vm))
        if vmi is None or not _has_to_migrate(vmi):
            return True

        target = self._placements.place_elsewhere(vm, vmi)
        if not target:
            return False
        await self._patch(vmi, instances.migrating_patch(vmi, target))
        return True

    def _claims(self, vm: Obj) -> list[Obj]:
        namespace = vm["metadata"]["namespace"]
        claims = (self._informers.claims.get(namespace, name) for name in claims_of(vm))
        return [claim for claim in claims if claim is not None]

    async def _patch(self, vmi: Obj, patch: Obj) -> None:
        await self._informers.patch(self._informers.vmis, key_of(vmi), patch)


def _has_to_migrate(vmi: Obj) -> bool:
    if hotplug.is_changing(vmi):
        return migration.is_migratable(vmi)
    is_evicted = instances.host_of(vmi) == vmi["status"].get("evacuationNodeName")
    return is_evicted and migration.eviction_of(vmi) is migration.Eviction.MIGRATE
