"""The logs of a support bundle: what cannot be read says why, without a credential."""

from __future__ import annotations

import io
import json
import ssl
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from caphv.api.object import Key, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.connection import Connection
from caphv.runtime.errors import Forbidden
from operations.doctor import supportbundle as bundle
from operations.doctor.redact import redact_text
from operations.read.harvester import Harvesters
from operations.read.objects import HarvesterObjects, ManagementObjects, Unseen

PASSWORD, TOKEN = "s3cret", "abcdef0123456789"


class Pods:
    """An API client that lists one Pod, or fails."""

    budget = None

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def list(self, *_: object, **__: object) -> dict[str, Any]:
        if self.error:
            raise self.error
        pod = {"metadata": {"name": "caphv-0"}, "spec": {"containers": [{"name": "manager"}]}}
        return {"metadata": {}, "items": [pod]}


async def authorization() -> str:
    return f"Bearer {TOKEN}"


async def log_of(server: str, proxy: str | None = None) -> str:
    connection = Connection(server, ssl.create_default_context(), authorization, proxy, None)
    client = cast("ApiClient", Pods())
    (text,) = (await bundle.read_logs(client, connection, "caphv-system", lambda _: None)).values()
    return text


@asynccontextmanager
async def answering(handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    server = RawTestServer(handler)
    await server.start_server()
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.close()


async def test_a_log_is_redacted() -> None:
    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(text=f"sent Bearer {TOKEN}\nlast line\n")

    async with answering(handler) as address:
        text = await log_of(f"http://{address}")
    assert text.endswith("last line\n")
    assert TOKEN not in text


@pytest.mark.parametrize("lines", [80_000, 200_000])
async def test_of_a_long_log_the_newest_lines_are_kept(lines: int) -> None:
    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(text="".join(f"line {number:064}\n" for number in range(lines)))

    async with answering(handler) as address:
        text = await log_of(f"http://{address}")
    kept = text.splitlines()
    assert kept[-1] == f"line {lines - 1:064}"
    assert len(kept[0]) == len(kept[-1])
    assert 5_000_000 < len(text) <= 5 * 1024 * 1024


async def test_a_block_of_a_log_is_redacted_as_a_block() -> None:
    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(text="password: |\n  hunter2\nlast line\n")

    async with answering(handler) as address:
        text = await log_of(f"http://{address}")
    assert "hunter2" not in text
    assert text.endswith("last line\n")


async def test_a_refusal_is_no_log() -> None:
    async def handler(_: web.BaseRequest) -> web.Response:
        return web.json_response({"message": f"may not get pods/log, sent Bearer {TOKEN}"}, status=403)

    async with answering(handler) as address:
        text = await log_of(f"http://{address}")
    assert text.startswith("cannot be read: HTTP 403: ")
    assert "may not get pods/log" in text
    assert TOKEN not in text


async def test_a_proxy_that_refuses_is_described_without_its_password() -> None:
    async def handler(_: web.BaseRequest) -> web.Response:
        return web.Response(status=407, reason=f"not with http://user:{PASSWORD}@proxy:3128")

    async with answering(handler) as address:
        text = await log_of("https://192.0.2.1:6443", f"http://user:{PASSWORD}@{address}")
    assert text.startswith("cannot be read: HTTP 407 ")
    assert PASSWORD not in text


async def test_an_unreachable_server_is_described_in_words() -> None:
    assert await log_of("http://127.0.0.1:1") == (
        "cannot be read: the connection was refused: nothing listens at this address and port\n"
    )


async def test_pods_that_cannot_be_listed_are_named_without_credentials() -> None:
    refused = cast("ApiClient", Pods(Forbidden(403, "Forbidden", f"denied to Bearer {TOKEN}")))
    connection = Connection("http://127.0.0.1:1", ssl.create_default_context(), authorization, None, None)
    files = await bundle.read_logs(refused, connection, "caphv-system", lambda _: None)
    assert list(files) == ["logs/README.txt"]
    assert "Pods of namespace caphv-system: denied to" in files["logs/README.txt"]
    assert TOKEN not in files["logs/README.txt"]


def test_objects_are_written_in_their_order_and_with_their_letters() -> None:
    vm = {
        "metadata": {"name": "vm", "namespace": "vms"},
        "kind": "VirtualMachine",
        "apiVersion": "v1",
        "reason": "Größe",
    }
    files = dict(bundle.files_of_harvester(2, HarvesterObjects(server="https://harvester", vms=[vm])))
    text = files["harvester-2/vms.yaml"]
    assert text.index("kind: ") < text.index("apiVersion: ") < text.index("reason: Größe")
    assert {*files} == {"harvester-2/vms.yaml", "harvester-2/server.txt"}


def test_what_was_not_seen_on_a_harvester_is_redacted() -> None:
    objects = HarvesterObjects(server="https://harvester")
    objects.unseen = [Unseen("Harvester", f"proxy http://user:{PASSWORD}@proxy:3128 refuses")]
    files = dict(bundle.files_of_harvester(1, objects))
    assert "refuses" in files["harvester-1/server.txt"]
    assert PASSWORD not in files["harvester-1/server.txt"]


def obj(kind: str, name: str, namespace: str = "team", cluster: str = "") -> Obj:
    labels = {"cluster.x-k8s.io/cluster-name": cluster} if cluster else {}
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, "labels": labels}}


def test_only_objects_of_the_chosen_clusters_are_collected() -> None:
    objects = ManagementObjects(
        clusters=[obj("Cluster", "shop"), obj("Cluster", "other"), obj("Cluster", "shop", "far")],
        machines=[obj("Machine", "m", cluster="shop"), obj("Machine", "n", cluster="other"), obj("Machine", "unknown")],
        # These may have no label yet, and another name than their cluster.
        harvester_clusters=[obj("HarvesterCluster", "shop-x"), obj("HarvesterCluster", "shop-x", "far")],
        control_planes=[obj("RKE2ControlPlane", "cp"), obj("RKE2ControlPlane", "cp", "far")],
        harvester_machines=[obj("HarvesterMachine", "m", cluster="shop"), obj("HarvesterMachine", "m", "far", "shop")],
    )
    assert [path for path, _ in bundle.files_of_management(objects, [Key("team", "shop")])] == [
        "management/cluster/team/shop.yaml",
        "management/machine/team/m.yaml",
        "management/rke2controlplane/team/cp.yaml",
        "management/harvestercluster/team/shop-x.yaml",
        "management/harvestermachine/team/m.yaml",
    ]


class Events:
    """An API client that lists Events, by namespace; other namespaces may not be read."""

    budget = None

    def __init__(self, **events: list[Obj]) -> None:
        self.events = events

    async def list(self, _: object, namespace: str = "", **__: object) -> dict[str, Any]:
        if namespace not in self.events:
            raise Forbidden(403, "Forbidden", f"denied to Bearer {TOKEN}")
        return {"metadata": {}, "items": self.events[namespace]}


def event(message: str, **times: str) -> Obj:
    about = {"kind": "Machine", "name": "m"}
    created = {"creationTimestamp": times.pop("created", "2026-11-27T09:00:00Z")}
    return {"metadata": created, "involvedObject": about, "type": "Normal", "reason": "R", "message": message, **times}


async def test_events_are_in_order_of_time_and_errors_are_among_them() -> None:
    client = Events(
        team=[
            event("third", lastTimestamp="2026-11-27T12:00:00Z", eventTime="2026-11-27T08:00:00Z"),
            event("second", eventTime="2026-11-27T11:00:00Z"),
            event("first", created="2026-11-27T10:00:00Z"),
            {**event(f"sent Bearer {TOKEN}"), "involvedObject": None},
        ]
    )
    text = await bundle.read_events(cast("ApiClient", client), ["team", "denied", "team"])
    assert text.splitlines() == [
        "denied: denied to Bearer (removed)",
        "2026-11-27T09:00:00Z Normal R team None/None: sent Bearer (removed)",
        "2026-11-27T10:00:00Z Normal R team Machine/m: first",
        "2026-11-27T11:00:00Z Normal R team Machine/m: second",
        "2026-11-27T12:00:00Z Normal R team Machine/m: third",
    ]
    assert text.endswith("third\n")


async def test_a_log_is_asked_for_with_the_credentials_of_the_client_and_no_redirect_gets_them() -> None:
    asked: list[web.BaseRequest] = []

    async def handler(request: web.BaseRequest) -> web.Response:
        asked.append(request)
        return web.Response(status=302, headers={"Location": "/elsewhere"}, text="moved")

    async with answering(handler) as address:
        text = await log_of(f"http://{address}")
    (request,) = asked
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert (request.path, request.query["container"]) == ("/api/v1/namespaces/caphv-system/pods/caphv-0/log", "manager")
    # The server would leave out the newest lines, and what is in front of a line hides what it is.
    assert not {"limitBytes", "timestamps"} & {*request.query}
    assert text == "cannot be read: HTTP 302: moved\n"


async def test_a_namespace_without_pods_says_so() -> None:
    client = cast("ApiClient", Events(empty=[]))
    connection = Connection("http://127.0.0.1:1", ssl.create_default_context(), authorization, None, None)
    files = await bundle.read_logs(client, connection, "empty", lambda _: None)
    assert files == {"logs/README.txt": "no Pods in namespace empty\n"}


def test_an_archive_has_private_files_below_one_folder() -> None:
    content = bundle.archive({"b.txt": "größer", "a/a.txt": ""}, "support")
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
        assert [(member.name, member.mode) for member in tar] == [("support/a/a.txt", 0o600), ("support/b.txt", 0o600)]
        file = tar.extractfile("support/b.txt")
        assert file is not None
        assert file.read().decode() == "größer"


def test_harvesters_are_numbered_by_their_addresses() -> None:
    harvesters = Harvesters()
    for server in ("https://b", "https://a"):
        harvesters.by_identity[Key("team", server)] = HarvesterObjects(server=server, version="v1")
    files = dict(bundle.files_of_harvesters(harvesters))
    assert files == {"harvester-1/server.txt": "https://a\nv1\n", "harvester-2/server.txt": "https://b\nv1\n"}


CAUSES = (
    "IPPool team/vms has no free address: 20 of 20 are allocated; add a range",
    "Harvester is unreachable: connection to https://harvester.example.com:6443 timed out after 10 s",
    "image default/image-x7k2p of VirtualMachine vms/demo-cp-0 does not exist",
    "VirtualMachine vms/demo-cp-0 cannot be scheduled: 0/3 nodes are available: 3 Insufficient memory (16Gi requested)",
    "the token in identity Secret team/identity expired at 2026-11-20T10:00:00Z; put a new kubeconfig into the Secret",
    'admission webhook "validator.harvesterhci.io" denied the request: quota limits.memory exceeded in namespace vms',
)


def test_the_cause_of_a_broken_cluster_stays_readable() -> None:
    """Supporters see names, versions, addresses, sizes and every message, in objects, findings and logs."""
    conditions = [
        {"type": f"Condition{number}", "status": "False", "reason": "ProvisioningFailed", "message": message}
        for number, message in enumerate(CAUSES)
    ]
    spec = {
        "targetNamespace": "vms",
        "server": "https://harvester.example.com:6443",
        "identitySecret": {"namespace": "team", "name": "identity"},
        "controlPlaneEndpoint": {"host": "10.0.0.10", "port": 6443},
        "vmNetworkConfig": {"ipPoolRef": "vms", "gateway": "10.0.0.1"},
    }
    machine_spec = {
        "cpu": 4,
        "memory": "16Gi",
        "volumes": [{"volumeType": "image", "imageName": "default/image-x7k2p", "volumeSize": "40Gi"}],
        "networks": ["default/production"],
        "providerID": "harvester://0c4f1a52-7b1c-4a52-9d0c-3f1f6f0a7d11",
    }
    metadata = {"namespace": "team", "name": "demo", "labels": {"cluster.x-k8s.io/cluster-name": "demo"}}
    cluster = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "metadata": metadata}
    objects = ManagementObjects(
        clusters=[{**cluster, "spec": {"topology": {"version": "v1.36.2+rke2r1"}}}],
        harvester_clusters=[
            {"kind": "HarvesterCluster", "metadata": metadata, "spec": spec, "status": {"conditions": conditions}}
        ],
        harvester_machines=[
            {
                "kind": "HarvesterMachine",
                "metadata": {**metadata, "name": "demo-cp-0"},
                "spec": machine_spec,
                "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.11"}]},
            }
        ],
    )
    files = dict(bundle.files_of_management(objects, [Key("team", "demo")]))
    stored = yaml.safe_load(files["management/harvestercluster/team/demo.yaml"])
    assert [condition["message"] for condition in stored["status"]["conditions"]] == list(CAUSES)
    assert stored["spec"] == spec
    machine = yaml.safe_load(files["management/harvestermachine/team/demo-cp-0.yaml"])
    assert machine["spec"] == machine_spec
    assert machine["status"]["addresses"][0]["address"] == "10.0.0.11"
    assert "v1.36.2+rke2r1" in files["management/cluster/team/demo.yaml"]
    for message in CAUSES:
        line = f"2026-11-24T10:00:00Z WARNING ProvisioningFailed: {message}\n"
        assert redact_text(line) == line
        assert json.loads(bundle.json_file([{"check": "cluster", "message": message}]))[0]["message"] == message
