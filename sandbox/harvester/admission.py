"""Harvester's admission webhooks, served over TLS on loopback.

For a VirtualMachine, one call does what Harvester's mutating and validating webhooks do in two: it denies the request
or returns the changes. With `failurePolicy: Fail`, no request is admitted while the simulator is down.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
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
    being_deleted,
    labels_of,
)
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import AlreadyExists, Invalid, ServerFault
from sandbox.harvester import admission_rules, guestbalancers, kinds
from sandbox.harvester.admission_rules import Denial
from sandbox.harvester.config import SimulatorConfig
from sandbox.harvester.informers import Informers
from sandbox.harvester.mutations import MutationSettings, VmNetwork, mutated
from sandbox.harvester.vmguards import balancers_run
from sandbox.processes import pki

Decide = Callable[[Obj], Denial | None]

ADDRESS = "127.0.0.1"
MUTATOR = "harvester-mutator"
# For kinds of which Harvester's webhooks check only the spec; without this condition, each other change costs a call.
SPEC_CHANGES = {
    "name": "spec-changes",
    "expression": "request.operation != 'UPDATE' || object.spec != oldObject.spec",
}


class Admission:
    """Admits or denies objects based on the informers' content."""

    def __init__(self, informers: Informers, config: SimulatorConfig) -> None:
        self._informers = informers
        self._config = config

    @contextlib.asynccontextmanager
    async def served(self, client: ApiClient) -> AsyncIterator[None]:
        """Serve and register the webhooks; the block starts once the API server calls them."""
        app = web.Application(client_max_size=4 * 1024**2)
        app.router.add_post("/virtualmachines", self._virtual_machine)
        app.router.add_post("/claims", self._decision(self._claim))
        app.router.add_post("/pools", self._pool)
        app.router.add_post("/loadbalancers", self._load_balancer)
        runner = web.AppRunner(app, access_log=None, keepalive_timeout=3600)
        await runner.setup()
        ca = pki.CA.create("caphv-sandbox-webhooks")
        try:
            site = web.TCPSite(runner, ADDRESS, 0, ssl_context=_server_context(ca))
            await site.start()
            await _register(client, f"https://{ADDRESS}:{runner.addresses[0][1]}", ca)
            await _wait_called(client)
            yield
        finally:
            await runner.cleanup()

    async def _virtual_machine(self, request: web.Request) -> web.Response:
        review = await self._review(request)
        vm = review["object"]
        settings = self._mutation_settings(vm["metadata"]["namespace"])
        denial = admission_rules.virtual_machine(vm, review.get("oldObject"), self._informers, settings)
        if denial or being_deleted(vm):
            return _answer(review, denial)
        new = mutated(vm, review.get("oldObject"), settings)
        patch = [{"op": "replace", "path": "/spec", "value": new["spec"]}]
        patch.append({"op": "add", "path": "/metadata/finalizers", "value": new["metadata"].get("finalizers") or []})
        return _answer(review, None, patch)

    def _mutation_settings(self, namespace: str) -> MutationSettings:
        def network(name: str) -> VmNetwork:
            space, _, bare = name.rpartition("/")
            obj = self._informers.networks.get(space or namespace, bare) or {"metadata": {}}
            labels = labels_of(obj)
            # The network's simulated DHCP server is that of its subnet.
            overlay_dhcp = labels.get(kinds.NETWORK_TYPE) == kinds.OVERLAY and kinds.NETWORK_DHCP in annotations_of(obj)
            return VmNetwork(labels.get(kinds.NETWORK_CLUSTER_NETWORK, ""), overlay_dhcp)

        return MutationSettings(
            cpu_overcommit=self._config.cpu_overcommit,
            memory_overcommit=self._config.memory_overcommit,
            guards_vms=self._config.release.guards_vms and balancers_run(self._informers),
            release=self._config.release,
            network=network,
        )

    async def _review(self, request: web.Request) -> Obj:
        await self._informers.wait_synced()  # before that, every network would seem to be missing
        return orjson.loads(await request.read())["request"]

    def _claim(self, review: Obj) -> Denial | None:
        return admission_rules.claim_deletion(review["oldObject"], self._informers)

    async def _pool(self, request: web.Request) -> web.Response:
        review = await self._review(request)
        if review["operation"] == "DELETE":
            return _answer(review, admission_rules.pool_deletion(review["oldObject"]))
        denial = admission_rules.pool(review["object"], self._informers)
        labels = {**labels_of(review["object"]), **self._pool_labels(review["object"])}
        return _answer(review, denial, [{"op": "add", "path": "/metadata/labels", "value": labels}])

    def _pool_labels(self, pool: Obj) -> dict[str, str]:
        """Labels that load-balancer-harvester's mutator sets (`pkg/webhook/ippool/mutator.go`)."""
        namespace, _, name = ((pool["spec"].get("selector") or {}).get("network") or "").partition("/")
        network = self._informers.networks.get(namespace, name) if name else None
        vlan = labels_of(network).get("network.harvesterhci.io/vlan-id", "0") if network else "0"
        return {
            f"{guestbalancers.GROUP}/vid": vlan,
            f"{guestbalancers.GROUP}/global-ip-pool": str(guestbalancers.is_global(pool)).lower(),
        }

    async def _load_balancer(self, request: web.Request) -> web.Response:
        review = await self._review(request)
        new, release = review["object"], self._config.release
        denial = admission_rules.load_balancer(new, review.get("oldObject"), self._informers, release)
        if denial or being_deleted(new):
            return _answer(review, denial)
        vmis = self._informers.vmis.store.by_index("namespace", new["metadata"]["namespace"])
        annotations = guestbalancers.mutated_annotations(new, list(vmis), release)
        return _answer(review, None, [{"op": "add", "path": "/metadata/annotations", "value": annotations}])

    def _decision(self, decide: Decide) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            review = await self._review(request)
            return _answer(review, decide(review))

        return handle


def _answer(review: Obj, denial: Denial | None, patch: list[Obj] | None = None) -> web.Response:
    response: Obj = {"uid": review["uid"], "allowed": not denial}
    if denial:
        message = f"Harvester admission webhook: {denial.message}"
        response["status"] = {"code": denial.code, "reason": denial.reason, "message": message}
    elif patch:
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(orjson.dumps(patch)).decode()}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return web.Response(body=orjson.dumps(body), content_type="application/json")


def _server_context(ca: pki.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    pair = ca.server([ADDRESS])
    with tempfile.TemporaryDirectory(prefix="caphv-") as folder:  # OpenSSL reads keys from files only
        files = Path(folder, "tls.crt"), Path(folder, "tls.key")
        for file, content in zip(files, (pair.certificate, pair.key), strict=True):
            file.write_bytes(content)
        context.load_cert_chain(*files)
    return context


async def _register(client: ApiClient, url: str, ca: pki.CA) -> None:
    def webhook(name: str, path: str, resource: Resource, operations: list[str], **more: object) -> Obj:
        rule = {"apiGroups": [resource.group], "apiVersions": [resource.version], "resources": [resource.plural]}
        bundle = base64.b64encode(ca.certificate).decode()
        return {
            "name": f"{name}.harvesterhci.io",
            "clientConfig": {"url": f"{url}/{path}", "caBundle": bundle},
            "rules": [{**rule, "operations": operations}],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            **more,
        }

    changes = ["CREATE", "UPDATE"]
    only_spec = {"matchConditions": [SPEC_CHANGES]}
    mutators = [
        webhook("virtualmachines", "virtualmachines", kinds.VIRTUAL_MACHINES, changes),
        webhook("pools", "pools", kinds.IP_POOLS, [*changes, "DELETE"], **only_spec),
        webhook("loadbalancers", "loadbalancers", kinds.LOAD_BALANCERS, changes, **only_spec),
    ]
    validators = [
        webhook("claims", "claims", PERSISTENT_VOLUME_CLAIMS, ["DELETE"]),
    ]
    await _put(client, MUTATING_WEBHOOK_CONFIGURATIONS, MUTATOR, mutators)
    await _put(client, VALIDATING_WEBHOOK_CONFIGURATIONS, "harvester-validator", validators)


async def _put(client: ApiClient, resource: Resource, name: str, webhooks: list[Obj]) -> None:
    config = kinds.typed(resource, {"metadata": {"name": name}, "webhooks": webhooks})
    try:
        await client.create(resource, config)
    except AlreadyExists:
        await client.patch(resource, name, "", {"webhooks": webhooks})


async def _wait_called(client: ApiClient) -> None:
    """Wait until both configurations are in force; the API server picks them up a moment after they are written."""
    metadata = {"name": "admission-probe", "namespace": "default"}
    template: Obj = {"spec": {"domain": {"devices": {}}}}
    vm = {"metadata": metadata, "spec": {"runStrategy": "Halted", "template": template}}
    # Only the webhook denies this pool: its range ends before it starts.
    span = {"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.2", "rangeEnd": "192.0.2.1"}
    pool = {"metadata": {"name": "admission-probe"}, "spec": {"ranges": [span]}}
    mutates = validates = False
    while not (mutates and validates):
        await asyncio.sleep(0.05)
        with contextlib.suppress(ServerFault):
            answer = await client.create(kinds.VIRTUAL_MACHINES, kinds.typed(kinds.VIRTUAL_MACHINES, vm), dry_run=True)
            mutates = bool(answer["metadata"].get("finalizers"))
            try:
                await client.create(kinds.IP_POOLS, kinds.typed(kinds.IP_POOLS, pool), dry_run=True)
            except Invalid:
                validates = True
