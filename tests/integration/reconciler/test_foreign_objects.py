"""A namespace on Harvester that other teams fill with VMs: ours are read as ever, and theirs take little memory."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from caphv.api.object import Key
from caphv.runtime import largebuffers
from caphv.runtime.kubeconfig import Kubeconfig
from reconciler.harvester.session import SessionEvents
from reconciler.harvester.sessions import Sessions
from tests.support.crowded import crowded
from tests.support.waiting import until

pytestmark = pytest.mark.integration

MIB = 1024 * 1024


def memory() -> int:
    """Resident bytes of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("vms", "most", "seconds"), [(700, 16, 1), pytest.param(3000, 40, 60, marks=[pytest.mark.long, pytest.mark.timing])]
)
async def test_vms_of_others_stop_no_cluster_and_take_little_memory(
    tmp_path: Path, record_property: Callable[[str, object], None], vms: int, most: int, seconds: float
) -> None:
    largebuffers.return_to_system()
    sessions = Sessions(management_cluster="ours")
    sessions.connect(SessionEvents(lambda _sessions, _change: None, lambda _session: None))
    async with crowded(tmp_path, vms) as url:
        before = memory()
        access = Kubeconfig(server=url, token="t")
        session = await sessions.assign(Key("ns", "c"), access, "vms", identity="i")
        namespace = session.watch_namespace("vms")
        try:
            await until(lambda: namespace.current, "all objects are read")
            await asyncio.sleep(seconds)
            growth = (memory() - before) / MIB
            record_property("growth", f"{growth:.0f} MiB for {vms} VMs of others")

            assert len(namespace.vms.store) == vms + 1
            assert namespace.current
            assert not namespace.sync_error
            assert session.client.limits == []
            own = namespace.vms.get("vms", "our-vm")
            assert own
            assert own["spec"]["template"]["spec"]["domain"]
            foreign = namespace.vms.get("vms", "team-vm-00007")
            assert foreign
            assert "domain" not in foreign["spec"]["template"]["spec"]
            assert session.address_in_use("10.7.0.8"), "no machine gets an address of another team"
            assert growth < most
        finally:
            await sessions.close()
