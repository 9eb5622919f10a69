"""A cluster loses an object, and gets it back from a snapshot of etcd: real API servers, real etcd."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from caphv.api.names import ETCD_RESTORE_ANNOTATION
from caphv.api.object import CONFIG_MAPS, LEASES, NAMESPACES, NODES, SECRETS, Obj
from caphv.runtime.errors import ApiError, NotFound
from commands.access import ssh
from sandbox.processes import binaries, children, pki
from sandbox.processes.apiserver import ETCD_ENDPOINT, ETCD_PEER, ApiServer
from tests.support.clusters import Builder
from tests.support.overview import KINDS, Management
from tests.support.restoreguest import RestoreGuest

pytestmark = pytest.mark.integration

MEMBER = "etcd.rke2.cattle.io/node-name"
# The service starts etcd and does not end it, as RKE2. Its reset replaces the database by the file.
PROGRAMS = {
    "systemctl": """
case "$line" in
  *"is-active"*) exit 1;;
  *EnvironmentFiles*) ;;
  *show*) if test -e "$STATE/active"; then cat "$STATE/active"; else echo inactive; fi;;
  *disable*) rm -f "$STATE/enabled" "$STATE/active";;
  *enable*) touch "$STATE/enabled";;
  *start*)
    echo active > "$STATE/active"
    cd SERVER
    ETCD --name=cp-1 --data-dir="$DB/etcd" --unsafe-no-fsync --log-level=warn --listen-client-urls=CLIENT \\
      --advertise-client-urls=CLIENT --listen-peer-urls=PEER --initial-advertise-peer-urls=PEER \\
      --initial-cluster=cp-1=PEER >> "$STATE/etcd.log" 2>&1 < /dev/null &
    echo "$!" > "$STATE/pid";;
esac
""",
    "pgrep": 'file="/proc/$(cat "$STATE/pid")/status"; test -e "$file" && ! grep -q "^State:.*Z" "$file"\n',
    "sleep": "exec /bin/sleep 0.2\n",
    "pkill": 'kill "$(cat "$STATE/pid")"\n',
    "rke2": """
for word; do case "$word" in *restore-path=*) file="${word#*=}";; esac; done
mv "$DB/etcd" "$DB/etcd-old" && cp -r "$file" "$DB/etcd" && touch "$DB/reset-flag"
""",
}


class Workload:
    """A workload cluster of two servers, of which the first has the only etcd."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "server"
        self.folder.mkdir(parents=True)
        words = {
            "SERVER": str(self.folder),
            "ETCD": str(binaries.binary("etcd")),
            "CLIENT": ETCD_ENDPOINT,
            "PEER": ETCD_PEER,
        }
        programs = dict(PROGRAMS)
        for word, value in words.items():
            programs["systemctl"] = programs["systemctl"].replace(word, value)
        self.server = RestoreGuest(folder / "cp-1", programs=programs, name="cp-1")
        self.other = RestoreGuest(folder / "cp-2", name="cp-2")
        shutil.rmtree(self.server.database / "etcd")
        self.api = ApiServer(self.folder, "workload")

    async def start(self) -> None:
        for guest in (self.server, self.other):
            guest.authority.write_bytes(self.api.ca.certificate)
        assert self.server.run("systemctl start rke2-server").returncode == 0
        await self.api.start()

    async def stop(self) -> None:
        """Stop etcd, and the API server, whose cache would be newer than a snapshot."""
        await self.api.stop()
        self.server.run("pkill -TERM x; while pgrep x; do sleep 1; done")

    async def snapshot(self) -> Path:
        await self.stop()
        file = self.server.folder / "snapshot"
        shutil.copytree(self.server.database / "etcd", file)
        await self.start()
        return file

    async def register(self, member: str) -> None:
        """Write what servers and kubelets write: members, conditions and Leases."""
        async with self.api.client() as client:
            for name in ("cp-1", "cp-2"):
                metadata = {"name": name, "annotations": {MEMBER: f"{name}-{member}"}}
                with suppress(ApiError):
                    await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
                await client.patch(NODES, name, "", {"metadata": metadata})
                ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
                await client.patch(NODES, name, "", {"status": {"conditions": [ready]}}, subresource="status")
                now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
                lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"renewTime": now}}
                with suppress(ApiError):
                    await client.create(NAMESPACES, {"metadata": {"name": "kube-node-lease"}})
                with suppress(ApiError):
                    await client.create(LEASES, lease | {"metadata": {"name": name, "namespace": "kube-node-lease"}})
                await client.patch(LEASES, name, "kube-node-lease", {"spec": {"renewTime": now}})

    async def has_object(self) -> bool:
        async with self.api.client() as client:
            try:
                await client.get(CONFIG_MAPS, "orders", "default")
            except NotFound:
                return False
            return True


@pytest.fixture
def workload(tmp_path: Path) -> Iterator[Workload]:
    binaries.prepare()
    workload = Workload(tmp_path)
    yield workload
    asyncio.run(workload.stop())
    asyncio.run(children.stop_all(workload.folder))


def test_an_object_that_was_deleted_is_back_after_a_restore(
    management: Management, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = asyncio.run(lose_an_object(workload))
    addresses = asyncio.run(cluster_of(management, workload))
    guests = {addresses["cp-1"]: workload.server, addresses["cp-2"]: workload.other}
    runs: list[str] = []

    def run_script(user: str, address: str, script: str) -> int:
        runs.append(address)
        if len(runs) == 5:
            return 255  # the connection breaks before the snapshot is restored
        return guests[address].run(script).returncode

    monkeypatch.setattr(ssh, "run_script", run_script)
    before = asyncio.run(stored(management))
    broken = management.caphv("etcd", "restore", "lost/shop", str(snapshot), "--on", "cp-1", "--ssh", "--yes")
    assert (broken.exit_code, "continue with caphv etcd restore lost/shop --ssh" in broken.output) == (1, True)
    assert not workload.server.has("active")
    assert asyncio.run(stored(management))["Cluster"]["spec"]["paused"] is True
    # A server that is stopped has no API that could end the restore.
    asyncio.run(workload.api.stop())
    refused = management.caphv("etcd", "restore", "lost/shop", "--finish", "--yes")
    assert (refused.exit_code, "does not answer" in refused.output) == (1, True), refused.output

    # Another restore does not begin.
    other = management.caphv("etcd", "restore", "lost/shop", "other", "--on", "cp-2", "--ssh", "--yes")
    assert (other.exit_code, "has begun" in other.output) == (2, True), other.output
    again = management.caphv("etcd", "restore", "lost/shop", "--ssh", "--yes")
    assert again.exit_code == 0, again.output
    asyncio.run(workload.api.start())
    assert asyncio.run(workload.has_object())
    assert workload.other.joined == [f"server: https://{addresses['cp-1']}:9345"]

    # Only the new member of etcd proves the restore.
    asyncio.run(workload.register("1a2b"))
    early = management.caphv("etcd", "restore", "lost/shop", "--finish", "--yes")
    assert (early.exit_code, "the snapshot was not restored" in early.output) == (1, True), early.output
    asyncio.run(workload.register("3c4d"))
    done = management.caphv("etcd", "restore", "lost/shop", "--finish", "--yes")
    assert done.exit_code == 0, done.output
    after = asyncio.run(stored(management))
    assert not after["Cluster"]["spec"].get("paused")
    assert ETCD_RESTORE_ANNOTATION not in (after["Cluster"]["metadata"].get("annotations") or {})
    assert after["machines"] == before["machines"]
    assert workload.server.resets == 1


async def lose_an_object(workload: Workload) -> Path:
    """Start the cluster, take a snapshot, and delete an object that it has; return the snapshot."""
    await workload.start()
    async with workload.api.client() as client:
        await client.create(CONFIG_MAPS, {"metadata": {"name": "orders", "namespace": "default"}, "data": {"1": "x"}})
    await workload.register("1a2b")
    snapshot = await workload.snapshot()
    async with workload.api.client() as client:
        await client.delete(CONFIG_MAPS, "orders", "default")
    assert not await workload.has_object()
    return snapshot


async def cluster_of(management: Management, workload: Workload) -> dict[str, str]:
    """Create the cluster on the management cluster; return the addresses of its machines."""
    builder = Builder(control_planes=2)
    await asyncio.to_thread(management.load, "lost", builder.objects())
    value = base64.b64encode(pki.to_yaml(workload.api.kubeconfig())).decode()
    secret: Obj = {"metadata": {"name": "shop-kubeconfig", "namespace": "lost"}, "data": {"value": value}}
    async with management.server.client() as client:
        await client.create(SECRETS, secret)
    return {name: machine["status"]["addresses"][0]["address"] for name, machine in builder.harvester_machines.items()}


async def stored(management: Management) -> Obj:
    """Return the Cluster, and the uids and deletions of its Machines."""
    async with management.server.client() as client:
        cluster = await client.get(KINDS["Cluster"], "shop", "lost")
        machines = (await client.list(KINDS["Machine"], "lost"))["items"]
    return {
        "Cluster": cluster,
        "machines": {
            machine["metadata"]["name"]: (machine["metadata"]["uid"], machine["metadata"].get("deletionTimestamp"))
            for machine in machines
        },
    }
