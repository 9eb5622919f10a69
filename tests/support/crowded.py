"""A Harvester whose namespace other teams share, as a process of its own: `python -m tests.support.crowded PORT VMS`.

Each of their VMs has an instance and a disk, and the text of a VM is 40 KiB, most of it cloud-init. One more VM has the
record of management cluster `ours`. Once all are read, the VMs of others change a hundred times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
from aiohttp import web

from caphv.api import names
from caphv.api.object import Obj
from sandbox.processes import children
from tests.support.paths import CHECKOUT
from tests.support.waiting import listens, until

VERSION = 1_000_000
CHANGES_A_SECOND = 100
_TEXT = 40 * 1024


def foreign_vm(number: int) -> Obj:
    """A VM that a user created in Harvester's UI."""
    name = f"team-vm-{number:05}"
    claims = [{"metadata": {"name": f"{name}-disk-0", "annotations": {names.IMAGE_ID_ANNOTATION: "default/image-x"}}}]
    disks = [{"name": "disk-0", "bootOrder": 1, "disk": {"bus": "virtio"}}, {"name": "cloud", "disk": {"bus": "sata"}}]
    vm: Obj = {
        "metadata": {
            **_metadata(name, "vm"),
            "generation": 3,
            "labels": {"harvesterhci.io/creator": "harvester", "harvesterhci.io/os": "linux"},
            "annotations": {names.VOLUME_CLAIM_TEMPLATES_ANNOTATION: orjson.dumps(claims).decode()},
            "finalizers": ["wrangler.cattle.io/VMController.CleanupPVCAndSnapshot"],
        },
        "spec": {
            "runStrategy": "RerunOnFailure",
            "template": {
                "metadata": {"labels": {"harvesterhci.io/vmName": name}},
                "spec": {
                    "domain": {"cpu": {"cores": 4}, "devices": {"disks": disks, "interfaces": [{"name": "default"}]}},
                    "networks": [{"name": "default", "multus": {"networkName": "default/vlan1"}}],
                    "volumes": [
                        {"name": "disk-0", "persistentVolumeClaim": {"claimName": f"{name}-disk-0"}},
                        {"name": "cloud", "cloudInitNoCloud": {"userData": ""}},
                    ],
                },
            },
        },
        "status": {"printableStatus": "Running", "ready": True, "conditions": _conditions()},
    }
    size = len(orjson.dumps(vm))
    vm["spec"]["template"]["spec"]["volumes"][1]["cloudInitNoCloud"]["userData"] = "#" * (_TEXT - size)
    return vm


def foreign_instance(number: int) -> Obj:
    """The instance of a VM."""
    name = f"team-vm-{number:05}"
    address = f"10.7.{number // 250}.{number % 250 + 1}"
    nic = {
        "name": "default",
        "interfaceName": "enp1s0",
        "ipAddress": address,
        "ipAddresses": [address, "fe80::5054:ff:fe00:1"],
        "mac": "52:54:00:00:00:01",
        "infoSource": "domain, guest-agent, multus-status",
        "queueCount": 1,
    }
    labels = {"harvesterhci.io/vmName": name, "kubevirt.io/nodeName": "node-1"}
    status = {"phase": "Running", "nodeName": "node-1", "interfaces": [nic], "conditions": _conditions()}
    return {"metadata": {**_metadata(name, "vmi"), "labels": labels}, "spec": {"text": "x" * 6000}, "status": status}


def foreign_claim(number: int) -> Obj:
    """The disk of a VM."""
    name = f"team-vm-{number:05}-disk-0"
    return {"metadata": _metadata(name, "pvc"), "spec": {"accessModes": ["ReadWriteMany"], "volumeMode": "Block"}}


def our_vm() -> Obj:
    """A VM with the record of management cluster `ours`."""
    vm = foreign_vm(0)
    annotations = {**vm["metadata"]["annotations"], names.OWNER_CLUSTER_ANNOTATION: "ours"}
    return {**vm, "metadata": {**vm["metadata"], "name": "our-vm", "annotations": annotations}}


def _metadata(name: str, kind: str) -> Obj:
    uid = f"3f1c9a52-7d1e-4c4b-9a7e-{kind}-{name}"
    return {"name": name, "namespace": "vms", "uid": uid, "resourceVersion": str(VERSION)}


def _conditions() -> list[Obj]:
    common = {"status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-11-01T10:00:00Z"}
    return [{"type": kind, **common} for kind in ("Ready", "LiveMigratable", "AgentConnected", "StorageLiveMigratable")]


class Crowd:
    """Serves the lists in pages, and watches."""

    def __init__(self, vms: int) -> None:
        numbers = range(vms)
        self._objects: dict[str, list[Obj]] = {
            "virtualmachines": [our_vm(), *map(foreign_vm, numbers)],
            "virtualmachineinstances": [*map(foreign_instance, numbers)],
            "persistentvolumeclaims": [*map(foreign_claim, numbers)],
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        if request.path.endswith("/namespaces/kube-system"):
            return web.json_response({"metadata": {"name": "kube-system", "uid": "crowded"}})
        if request.path.endswith("selfsubjectaccessreviews"):
            return web.json_response({"status": {"allowed": True}}, status=201)
        objects = self._objects.get(request.path.rpartition("/")[2], [])
        if request.query.get("watch"):
            return await self._watch(request, objects)
        start = int(request.query.get("continue") or 0)
        end = start + int(request.query["limit"])
        token = str(end) if end < len(objects) else ""
        page = {"metadata": {"resourceVersion": str(VERSION), "continue": token}, "items": objects[start:end]}
        return web.Response(body=orjson.dumps(page), content_type="application/json")

    async def _watch(self, request: web.BaseRequest, objects: list[Obj]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if not request.path.endswith("/virtualmachines"):
            await asyncio.Event().wait()
        for version in itertools.count(VERSION + 1):
            await asyncio.sleep(1 / CHANGES_A_SECOND)
            obj = objects[1 + version % (len(objects) - 1)]
            changed = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}
            await response.write(orjson.dumps({"type": "MODIFIED", "object": changed}) + b"\n")
        return response


@contextlib.asynccontextmanager
async def crowded(folder: Path, vms: int) -> AsyncIterator[str]:
    """Run a Harvester with so many VMs of others in namespace `vms`; its URL."""
    (port,) = children.free_ports(1)
    command = [sys.executable, "-P", "-m", "tests.support.crowded", str(port), str(vms)]
    process = children.start(folder, "crowded", command, env={"PYTHONPATH": str(CHECKOUT)})

    try:
        await until(lambda: listens(port), "the crowded Harvester listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        await children.end(process, grace=0)


async def _serve(port: int, vms: int) -> None:
    runner = web.ServerRunner(web.Server(Crowd(vms).handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
