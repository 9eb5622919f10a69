"""Harvester's admission webhooks, served over TLS on loopback.

For a VirtualMachine, one call does what Harvester's mutating and validating webhooks do in two: it
denies the request or returns the changes. With `failurePolicy: Fail`, no request is admitted while
the simulator is down.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
from aiohttp import web

from caphv.api.object import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    PERSISTENT_VOLUME_CLAIMS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    Obj,
    Resource,
    annotations_of,
    at,
    being_deleted,
    labels_of,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, Invalid, ServerFault
from sandbox.harvester import (
    admission_rules,
    disks,
    guestbalancers,
    hotplug,
    kinds,
    pinning,
    poolselection,
    vmbackups,
)
from sandbox.harvester.admission_rules import Denial
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers
from sandbox.harvester.mutations import MutationSettings, VmNetwork, mutate
from sandbox.harvester.vmguards import is_balancer_controller_running
from sandbox.processes import pki

ADDRESS = "127.0.0.1"
MUTATOR = "harvester-mutator"

# Harvester's webhooks check only the spec of some kinds. This condition saves a call for each other
# change of their objects.
SPEC_CHANGES = {
    "name": "spec-changes",
    "expression": "request.operation != 'UPDATE' || object.spec != oldObject.spec",
}
# Harvester's webhook checks each update of the status of a VM, but here only these can be denied.
STOP_REQUESTS = {
    "name": "stop-requests",
    "expression": (
        "has(object.status.stateChangeRequests) && size(object.status.stateChangeRequests) > 0"
    ),
}


class Admission:
    """Admits or denies objects based on the informers' content."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config

    @contextlib.asynccontextmanager
    async def serving(self, client: ApiClient) -> AsyncIterator[None]:
        """Serve and register the webhooks; the block starts once the API server calls them."""
        app = web.Application(client_max_size=4 * 1024**2)
        app.router.add_post("/virtualmachines", self._handle_virtual_machine)
        app.router.add_post("/stops", self._handle_stop)
        app.router.add_post("/claims", self._handle_claim_deletion)
        app.router.add_post("/pools", self._handle_pool)
        app.router.add_post("/loadbalancers", self._handle_load_balancer)
        app.router.add_post("/images", self._handle_image)
        app.router.add_post("/vmbackups", self._handle_vm_backup)

        # The API server keeps its connections, so that calls need no TLS handshake.
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=3600)
        await runner.setup()
        try:
            ca = pki.CA.create("caphv-sandbox-webhooks")
            site = web.TCPSite(runner, ADDRESS, 0, ssl_context=_server_context(ca))
            await site.start()

            await _register(client, f"https://{ADDRESS}:{runner.addresses[0][1]}", ca)
            await _wait_until_in_force(client)
            yield
        finally:
            await runner.cleanup()

    # Handlers

    async def _handle_virtual_machine(self, request: web.Request) -> web.Response:
        review = await self._read_review(request)
        vm = review["object"]
        old = review.get("oldObject")
        settings = self._mutation_settings(vm["metadata"]["namespace"])

        denial = admission_rules.check_virtual_machine(vm, old, self._informers, settings)
        if denial or being_deleted(vm):
            return _answer(review, denial)

        # `add` also replaces, and works when there are no finalizers yet.
        mutated = mutate(vm, old, settings)
        domain = mutated["spec"]["template"]["spec"]["domain"]
        if reason := hotplug.denial_reason(domain) or pinning.denial_reason(domain):
            return _answer(review, admission_rules.Denial(reason, 422, "Invalid"))
        if old and (reason := self._disks_problem(vm, old)):
            return _answer(review, admission_rules.Denial(reason, 422, "Invalid"))
        finalizers = kinds.finalizers_of(mutated)
        patch: list[Obj] = [
            {"op": "replace", "path": "/spec", "value": mutated["spec"]},
            {"op": "add", "path": "/metadata/finalizers", "value": finalizers},
        ]
        return _answer(review, None, patch)

    async def _handle_stop(self, request: web.Request) -> web.Response:
        review = await self._read_review(request)
        denial = admission_rules.check_stop(review["object"], review["oldObject"], self._informers)
        return _answer(review, denial)

    async def _handle_claim_deletion(self, request: web.Request) -> web.Response:
        review = await self._read_review(request)
        return _answer(
            review, admission_rules.check_claim_deletion(review["oldObject"], self._informers)
        )

    async def _handle_image(self, request: web.Request) -> web.Response:
        review = await self._read_review(request)
        return _answer(review, admission_rules.check_image(review["object"], self._informers))

    async def _handle_vm_backup(self, request: web.Request) -> web.Response:
        review = await self._read_review(request)
        denial = vmbackups.check_backup(review["object"], self._informers, self._config)
        return _answer(review, denial)

    async def _handle_pool(self, request: web.Request) -> web.Response:
        review = await self._read_review(request)
        if review["operation"] == "DELETE":
            return _answer(review, admission_rules.check_pool_deletion(review["oldObject"]))

        pool = review["object"]
        denial = admission_rules.check_pool(pool, self._informers)
        labels = {**labels_of(pool), **self._pool_labels(pool)}
        return _answer(review, denial, [{"op": "add", "path": "/metadata/labels", "value": labels}])

    async def _handle_load_balancer(self, request: web.Request) -> web.Response:
        review = await self._read_review(request)
        new = review["object"]
        release = self._config.release

        denial = admission_rules.check_load_balancer(
            new, review.get("oldObject"), self._informers, release
        )
        if denial or being_deleted(new):
            return _answer(review, denial)

        vmis = self._informers.vmis.store.by_index("namespace", new["metadata"]["namespace"])
        annotations = guestbalancers.mutated_annotations(new, list(vmis), release)
        patch: Obj = {"op": "add", "path": "/metadata/annotations", "value": annotations}
        return _answer(review, None, [patch])

    # Helpers of the handlers

    async def _read_review(self, request: web.Request) -> Obj:
        # Before the informers have synced, every network seems to be missing.
        await self._informers.wait_synced()
        return orjson.loads(await request.read())["request"]

    def _disks_problem(self, vm: Obj, old: Obj) -> str:
        classes = self._informers.storage_classes
        return disks.denial_reason(
            vm, old, lambda name: classes.get("", name), self._config.release
        )

    def _mutation_settings(self, namespace: str) -> MutationSettings:
        def read_network(name: str) -> VmNetwork:
            prefix, _, bare = name.rpartition("/")
            network = self._informers.networks.get(prefix or namespace, bare) or {"metadata": {}}
            labels = labels_of(network)
            is_overlay = labels.get(kinds.NETWORK_TYPE) == kinds.OVERLAY
            # On Harvester, the subnet of an overlay network has the DHCP server. Here the network
            # itself has it.
            return VmNetwork(
                cluster_network=labels.get(kinds.NETWORK_CLUSTER_NETWORK, ""),
                overlay_dhcp=is_overlay and kinds.NETWORK_DHCP in annotations_of(network),
            )

        release = self._config.release
        return MutationSettings(
            cpu_overcommit=self._config.cpu_overcommit,
            memory_overcommit=self._config.memory_overcommit,
            guards_vms=release.guards_vms and is_balancer_controller_running(self._informers),
            release=release,
            network=read_network,
        )

    def _pool_labels(self, pool: Obj) -> dict[str, str]:
        """Return labels that load-balancer-harvester sets (`pkg/webhook/ippool/mutator.go`)."""
        qualified = at(pool, "spec", "selector", "network") or ""
        namespace, _, name = qualified.partition("/")
        network = self._informers.networks.get(namespace, name) if name else None
        vlan = labels_of(network).get("network.harvesterhci.io/vlan-id", "0") if network else "0"
        return {
            f"{guestbalancers.GROUP}/vid": vlan,
            f"{guestbalancers.GROUP}/global-ip-pool": str(poolselection.is_global(pool)).lower(),
        }


def _answer(review: Obj, denial: Denial | None, patch: list[Obj] | None = None) -> web.Response:
    response: Obj = {"uid": review["uid"], "allowed": not denial}
    if denial:
        message = f"Harvester admission webhook: {denial.message}"
        response["status"] = {"code": denial.code, "reason": denial.reason, "message": message}
    elif patch:
        encoded = base64.b64encode(orjson.dumps(patch)).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}

    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def _server_context(ca: pki.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = ca.server([ADDRESS])

    # OpenSSL reads keys from files only.
    with tempfile.TemporaryDirectory(prefix="caphv-") as folder:
        files = Path(folder, "tls.crt"), Path(folder, "tls.key")
        for file, content in zip(files, (pair.certificate, pair.key), strict=True):
            file.write_bytes(content)
        context.load_cert_chain(*files)
    return context


# Registration


async def _register(client: ApiClient, url: str, ca: pki.CA) -> None:
    bundle = base64.b64encode(ca.certificate).decode()

    def webhook(
        name: str,
        resource: Resource,
        operations: list[str],
        *,
        subresource: str = "",
        condition: Obj | None = None,
    ) -> Obj:
        rule = {
            "apiGroups": [resource.group],
            "apiVersions": [resource.version],
            "resources": [f"{resource.plural}/{subresource}" if subresource else resource.plural],
            "operations": operations,
        }
        return {
            "name": f"{name}.harvesterhci.io",
            "clientConfig": {"url": f"{url}/{name}", "caBundle": bundle},
            "rules": [rule],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            **({"matchConditions": [condition]} if condition else {}),
        }

    # The mutating webhooks also validate, which saves a second call for each request.
    changes = ["CREATE", "UPDATE"]
    mutators = [
        webhook("virtualmachines", kinds.VIRTUAL_MACHINES, changes),
        webhook("pools", kinds.IP_POOLS, [*changes, "DELETE"], condition=SPEC_CHANGES),
        webhook("loadbalancers", kinds.LOAD_BALANCERS, changes, condition=SPEC_CHANGES),
    ]
    stops = webhook(
        "stops",
        kinds.VIRTUAL_MACHINES,
        ["UPDATE"],
        subresource="status",
        condition=STOP_REQUESTS,
    )
    validators = [
        stops,
        webhook("claims", PERSISTENT_VOLUME_CLAIMS, ["DELETE"]),
        webhook("images", kinds.IMAGES, ["CREATE"]),
        webhook("vmbackups", kinds.VM_BACKUPS, ["CREATE"]),
    ]
    await _put(client, MUTATING_WEBHOOK_CONFIGURATIONS, MUTATOR, mutators)
    await _put(client, VALIDATING_WEBHOOK_CONFIGURATIONS, "harvester-validator", validators)


async def _put(client: ApiClient, resource: Resource, name: str, webhooks: list[Obj]) -> None:
    config = kinds.typed(resource, {"metadata": {"name": name}, "webhooks": webhooks})
    try:
        await client.create(resource, config)
    except AlreadyExists:
        # An earlier run of the simulator, on another port, created the configuration.
        await client.patch(resource, name, "", {"webhooks": webhooks})


async def _wait_until_in_force(client: ApiClient) -> None:
    """Wait until the API server calls the webhooks of VMs and pools.

    It picks up configurations a moment after they are written.
    """
    metadata = {"name": "admission-probe", "namespace": "default"}
    template: Obj = {"spec": {"domain": {"devices": {}}}}
    vm = kinds.typed(
        kinds.VIRTUAL_MACHINES,
        {"metadata": metadata, "spec": {"runStrategy": "Halted", "template": template}},
    )

    # Only the webhook denies this pool, because its range is not in its subnet.
    span = {"subnet": "192.0.2.0/24", "rangeStart": "198.51.100.1"}
    pool = kinds.typed(
        kinds.IP_POOLS, {"metadata": {"name": "admission-probe"}, "spec": {"ranges": [span]}}
    )

    mutates = validates = False
    while not (mutates and validates):
        await asyncio.sleep(0.05)
        with contextlib.suppress(ServerFault):
            answer = await client.create(kinds.VIRTUAL_MACHINES, vm, dry_run=True)
            mutates = bool(kinds.finalizers_of(answer))
            try:
                await client.create(kinds.IP_POOLS, pool, dry_run=True)
            except Invalid:
                validates = True
