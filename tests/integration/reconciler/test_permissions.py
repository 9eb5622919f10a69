"""The shipped rules are enough for the provider, and none of them is too many.

API servers with RBAC write down what is asked and what their rules say to it. The provider goes through all that it
does with the account of the shipped manifests on the management cluster, and with one that `caphv identity create`
makes on Harvester.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from caphv import data
from caphv.api import remedies
from caphv.api.object import PERSISTENT_VOLUME_CLAIMS, SECRETS
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden, NotFound
from caphv.runtime.kubeconfig import parse_kubeconfig
from commands.main import cli
from commands.options.groups import pick
from commands.webhook import WebhookOptions, webhook_runnables
from operations.doctor import rights
from reconciler.harvester import identityaccount
from reconciler.harvester.accountobjects import Account
from sandbox import manifests
from sandbox.harvester import kinds
from sandbox.processes import children, pki
from sandbox.processes.apiserver import ApiServer
from tests.support.images import declared
from tests.support.permissions import asked, granted
from tests.support.printed import Person
from tests.support.reconciler import inprocess
from tests.support.reconciler.case import HARVESTER_CLUSTERS, HARVESTER_MACHINES, MACHINES, Case
from tests.support.reconciler.cloudconfig import ACCOUNTS, BINDINGS
from tests.support.reconciler.conditions import condition_of, is_false, is_true
from tests.support.reconciler.restricted import ACCOUNT, BASE, MANAGER, Restricted, clusters, manager, provider
from tests.support.reconciler.uses import (
    backed_up,
    imported,
    live,
    may_give_cloud_configs,
    recreated_after_quota,
    shared,
    started_after_quota,
    stay_in,
    take_over,
    watched,
)
from tests.support.waiting import until
from tests.support.webhooks import write_certificate
from webhooks.configuration import NAMES, RESOURCES
from webhooks.handler import WEBHOOKS, Webhook

pytestmark = pytest.mark.integration

HARVESTER = [
    role
    for path in sorted(data.folder("deploy/harvester").glob("*.yaml"))
    for role in manifests.parse(path.read_text(encoding="utf-8"))
]
NARROW = Account("narrow", "caphv-system", ("narrow-3-vms",))
ON_HARVESTER = f"system:serviceaccount:{ACCOUNT.namespace}:{ACCOUNT.name}"
# Checked within an apply, see tests/integration/webhooks/test_rights.py.
APPLIED = {(resource.group, resource.plural, "create") for resource in RESOURCES.values()}

# Harvester's webhook asks for these rights of who creates a VM, see operations/doctor/rights.py.
AHEAD = {(right.group, right.resource, right.verb) for right in rights.AHEAD}


@pytest.mark.usefixtures("runner")
async def test_shipped_rules_are_enough_and_none_is_too_many(
    restricted: Restricted, monkeypatch: pytest.MonkeyPatch
) -> None:
    inprocess.install(monkeypatch)
    await guard(restricted.management, restricted.folder / "certificates")
    (port,) = children.free_ports(1)
    async with provider(restricted.management, port), clusters(restricted, "full", "taken", "narrow", "made") as cases:
        full, taken, narrow, made = cases
        # Its target namespace is made by the provider.
        await made.ready_cluster()
        await watched(full, port)
        await may_give_cloud_configs(full, ACCOUNT)
        await live(full)
        await shared(full)
        await recreated_after_quota(full)
        await started_after_quota(full)
        await imported(full)
        await backed_up(made)
        await take_over(taken, ACCOUNT)
        await stay_in(narrow, NARROW)
    management, harvester = restricted.management, restricted.harvester
    assert asked(management, MANAGER, "forbid") == set()
    for account in (ACCOUNT, NARROW):
        assert asked(harvester, f"system:serviceaccount:{account.namespace}:{account.name}", "forbid") == set()
    assert granted(BASE) - APPLIED - asked(management, MANAGER, "allow") == set()
    assert granted(HARVESTER) - AHEAD - asked(harvester, ON_HARVESTER, "allow") == set()


@pytest.mark.usefixtures("runner")
async def test_account_without_target_namespaces_gets_more_rights_by_the_command_in_the_condition(
    restricted: Restricted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inprocess.install(monkeypatch)
    (port,) = children.free_ports(1)
    plain = Account("plain", "caphv-system")
    account = f"--name {plain.name} --namespace {plain.namespace} -o kubeconfig"
    async with provider(restricted.management, port), clusters(restricted, "plain") as (case,):
        identity = await identityaccount.create(case.harvester, plain, restricted.harvester.url)
        await limits(case, identity)
        await case.identity(identity)
        pool = {"rangeStart": f"{case.subnet}.1", "rangeEnd": f"{case.subnet}.2", "gateway": case.gateway}
        pool |= {"subnet": f"{restricted.prefix}.0.0/17", "vmNetwork": "default/production"}
        await case.create_cluster(
            loadBalancerConfig={"ipamType": "pool", "ipPool": pool},
            cloudConfig={"delivery": "File"},
            images=[declared("shared/sles")],
        )
        command = f"caphv identity create --harvester-kubeconfig FILE --target-namespace {case.target}"
        message = f"{command} --create-ip-pools"
        refused = is_false("CustomIPPoolCreated", "CustomPoolCreationInHarvesterFailed", message)
        await case.until(HARVESTER_CLUSTERS, case.name, refused)
        await identityaccount.create(case.harvester, replace(plain, pools=True), restricted.harvester.url)
        await reconcile_now(case)
        await case.ready()
        refused = is_false("CloudProviderConfigReady", "CloudProviderConfigGenerationFailed", f"{command},")
        found = await case.until(HARVESTER_CLUSTERS, case.name, refused)
        granted_by = condition_of(found, "CloudProviderConfigReady")["message"]
        person = Person(tmp_path, restricted.management, restricted.harvester)
        await person.follows(remedies.GRANT_RIGHTS, granted_by, options=account)
        await reconcile_now(case)
        await case.until(HARVESTER_CLUSTERS, case.name, is_true("CloudProviderConfigReady"))
        guests = f"caphv-guests:{case.target}"
        subject = {"kind": "ServiceAccount", "name": case.name, "namespace": case.target}
        assert (await case.harvester.get(BINDINGS, guests))["subjects"] == [subject]
        await imports_images(case, person, f"{command} --import-images shared", account)
        await limits(case, identity)
    async with restricted.harvester.client() as client:
        assert not (await client.get(BINDINGS, guests)).get("subjects")


async def imports_images(case: Case, person: Person, command: str, account: str) -> None:
    """The right to import images into a namespace is named when it is missing, and granted by the command."""
    refused = is_false("ImagesReady", "ImageImportFailed", command)
    found = await case.until(HARVESTER_CLUSTERS, case.name, refused)
    message = condition_of(found, "ImagesReady")["message"]
    # A person reads the whole command; `follows` ends at a blank in what is filled in.
    await person.follows(remedies.GRANT_RIGHTS, message, options=f"--import-images shared {account}")
    await reconcile_now(case)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true("ImagesReady"))


@pytest.mark.usefixtures("runner")
async def test_an_identity_for_one_namespace_is_enough_to_delete_what_a_lost_machine_left(
    restricted: Restricted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not list Secrets: that of a VM follows from the VM. What it may not see is named, and exit status 2."""
    inprocess.install(monkeypatch)
    (port,) = children.free_ports(1)
    case, kept = Case(restricted, 5, "lost"), ["one"]
    account = Account("lost", "caphv-system", (case.target,))
    kubeconfig = str(restricted.folder / f"{restricted.management.name}.kubeconfig")
    await case.open()
    try:
        async with provider(restricted.management, port):
            await stay_in(case, account)
            await case.ready_machine("gone")
        for kind in (HARVESTER_MACHINES, MACHINES):
            await case.ask_deletion(kind, "gone")
            await case.patch(kind, "gone", {"metadata": {"finalizers": None}})
            await case.until_gone(kind, "gone")

        command = ["leftovers", "--delete", "--running", "--yes", "--kubeconfig", kubeconfig]
        done = await asyncio.to_thread(CliRunner().invoke, cli, command, prog_name="caphv")
        assert done.exit_code == 2, done.output
        assert "not seen: secrets of other names on Harvester" in done.stderr
        assert "failed" not in done.output
        assert await case.names(kinds.VIRTUAL_MACHINES) == kept
        assert [name.partition("-")[0] for name in await case.names(PERSISTENT_VOLUME_CLAIMS)] == kept
        assert [name for name in await case.names(SECRETS) if "cloud-init" in name] == ["one-cloud-init"]
        async with provider(restricted.management, port):
            assert await case.remove() == []
    finally:
        await case.close()


async def limits(case: Case, identity: str) -> None:
    """No account on Harvester may delete or change a binding of others, nor issue tokens of other accounts."""
    client = parse_kubeconfig(identity.encode()).client(name="account")
    try:
        for refused in (
            client.delete(BINDINGS, "cluster-admin"),
            client.patch(BINDINGS, "cluster-admin", "", {"metadata": {"ownerReferences": None}}),
            client.request("POST", ACCOUNTS.path("kube-system", "default", "token"), body={"spec": {}}),
        ):
            with pytest.raises(Forbidden):
                await refused
    finally:
        await client.close()


async def reconcile_now(case: Case) -> None:
    """As a user does who has no patience for the next attempt."""
    note = {"metadata": {"annotations": {"caphv.io/reconcile-at": str(time.time())}}}
    await case.patch(HARVESTER_CLUSTERS, case.name, note)


async def guard(server: ApiServer, certificates: Path) -> None:
    """Both webhook configurations are made, follow another CA, and come back when a user deletes them.

    They are deleted at the end: what the rules say to addresses of the simulation is no matter of rights.
    """
    write_certificate(certificates, pki.CA.create("webhooks"))
    async with server.client() as client, serving(server, certificates):
        made = {webhook: await until(partial(bundle, client, webhook), "it is made") for webhook in WEBHOOKS}
        write_certificate(certificates, pki.CA.create("another"))
        for webhook, before in made.items():
            await until(partial(changed, client, webhook, before), "it has the other CA, too")
            await client.delete(RESOURCES[webhook], NAMES[webhook])
        for webhook in WEBHOOKS:
            await until(partial(bundle, client, webhook), "it is back")
    async with server.client() as client:
        for webhook in WEBHOOKS:
            await client.delete(RESOURCES[webhook], NAMES[webhook])


@contextlib.asynccontextmanager
async def serving(server: ApiServer, certificates: Path) -> AsyncIterator[None]:
    """What `caphv run --enable-webhooks` runs next to the provider, with a URL in place of the Service."""
    (port,) = children.free_ports(1)
    flags = {
        "kubeconfig": "",
        "webhook_service": "",
        "log_level": "info",
        "log_format": "text",
        "cross_namespace_refs": True,
    }
    flags |= {"webhook_bind_address": f"127.0.0.1:{port}", "webhook_url": f"https://127.0.0.1:{port}"}
    client = manager(server)
    running = [
        asyncio.create_task(part.run())
        for part in webhook_runnables(pick(WebhookOptions, {**flags, "webhook_cert_dir": str(certificates)}))(client)
    ]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await client.close()


async def changed(client: ApiClient, webhook: Webhook, before: str) -> bool:
    return await bundle(client, webhook) not in ("", before)


async def bundle(client: ApiClient, webhook: Webhook) -> str:
    """The CAs of a webhook configuration, empty if it does not exist."""
    try:
        found = await client.get(RESOURCES[webhook], NAMES[webhook])
    except NotFound:
        return ""
    return str(found["webhooks"][0]["clientConfig"]["caBundle"])
