"""The cloud config: a kubeconfig that works, in all three places, with an account that is deleted with the cluster."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from datetime import UTC, datetime, timedelta

import pytest
import yaml

from caphv.api.conditions import rfc3339
from caphv.api.names import EXPIRES_AT_ANNOTATION, RENEW_AT_ANNOTATION
from caphv.api.object import CONFIG_MAPS, EVENTS, NAMESPACES, SECRETS, SERVICES, Obj, Resource
from caphv.runtime.errors import NotFound, Unauthorized
from caphv.runtime.kubeconfig import Kubeconfig, parse_kubeconfig
from tests.support.reconciler.case import HARVESTER_CLUSTERS, Case
from tests.support.reconciler.cloudconfig import (
    ACCOUNTS,
    BINDINGS,
    DAEMON,
    KEY,
    SECRET,
    config_map,
    connect,
    manifests,
    until_workload_secret,
    update_field,
    workload_secret,
)
from tests.support.reconciler.conditions import is_false, is_true
from tests.support.waiting import until

pytestmark = pytest.mark.integration

REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", namespaced=False)
READY = "CloudProviderConfigReady"


async def user_of(access: Kubeconfig) -> str:
    """Whom Harvester takes the bearer of a kubeconfig for."""
    client = access.client(name="test")
    try:
        answer = await client.create(REVIEWS, {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "metadata": {}})
    finally:
        await client.close()
    return answer["status"]["userInfo"]["username"]


async def check(case: Case, text: str) -> Kubeconfig:
    access = parse_kubeconfig(text)
    assert access.namespace == case.target
    assert await user_of(access) == f"system:serviceaccount:{case.target}:{case.name}"
    return access


async def check_revoked(access: Kubeconfig) -> None:
    async def refused() -> bool:
        try:
            await user_of(access)
        except Unauthorized:
            return True
        return False

    # The API server remembers for ten seconds that a token was good.
    await until(refused, lambda: "the token is still good")


async def remove_infrastructure(case: Case) -> list[str]:
    """Delete the cluster; answers what of it is left on Harvester."""
    await case.delete()
    return await case.leftovers()


async def touch(case: Case) -> None:
    """Have the HarvesterCluster reconciled without any reason."""
    await case.patch(HARVESTER_CLUSTERS, case.name, {"metadata": {"annotations": {"example.com/touched": "yes"}}})
    await asyncio.sleep(1)


def kubeconfig_in(manifest: str) -> str:
    secrets = [document for document in yaml.safe_load_all(manifest) if document["kind"] == "Secret"]
    (secret,) = secrets
    return base64.b64decode(secret["data"]["config"]).decode()


def content(secret: Obj) -> str:
    return base64.b64decode(secret["data"][KEY]).decode()


async def test_manifests_get_credentials_that_end_with_the_cluster(case: Case) -> None:
    await case.ready_cluster(updateCloudProviderConfig=await config_map(case))
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    text = await manifests(case)
    assert text.startswith(DAEMON)
    access = await check(case, kubeconfig_in(text))
    assert access.server == case.environment.harvester.url
    account = await case.harvester.get(ACCOUNTS, case.name, case.target)
    assert account["metadata"]["annotations"]["caphv.io/owner"] == f"HarvesterCluster/{case.name}/{case.name}"
    assert await remove_infrastructure(case) == []
    with pytest.raises(NotFound):
        await case.harvester.get(BINDINGS, case.name)
    await check_revoked(access)


async def test_manifests_are_fixed_and_otherwise_left_alone(case: Case) -> None:
    await case.ready_cluster(updateCloudProviderConfig=update_field(case))
    await case.until(HARVESTER_CLUSTERS, case.name, is_false(READY, "CloudProviderConfigGenerationFailed", "manifests"))
    await config_map(case)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    first = await case.management.get(CONFIG_MAPS, "manifests", case.name)
    # A user applies the manifests again, without the credentials.
    await case.management.patch(CONFIG_MAPS, "manifests", case.name, {"data": {"ccm.yaml": DAEMON}})

    async def restored() -> bool:
        return await manifests(case) == first["data"]["ccm.yaml"]

    await until(restored, lambda: "the credentials have not come back")
    settled = await case.management.get(CONFIG_MAPS, "manifests", case.name)
    note = {"metadata": {"annotations": {"example.com/seen": "yes"}}}
    noted = await case.management.patch(CONFIG_MAPS, "manifests", case.name, note)
    await touch(case)
    after = await case.management.get(CONFIG_MAPS, "manifests", case.name)
    assert after["metadata"]["resourceVersion"] == noted["metadata"]["resourceVersion"]
    assert after["data"] == settled["data"]


async def test_virtual_address_of_harvester_is_preferred(case: Case) -> None:
    metadata = {"name": "ingress-expose", "namespace": "kube-system"}
    notes = {"kube-vip.io/loadbalancerIPs": "192.0.2.9"}
    ports = {"ports": [{"port": 443}]}
    await case.harvester.create(SERVICES, {"metadata": {**metadata, "annotations": notes}, "spec": ports})
    try:
        await case.ready_cluster(updateCloudProviderConfig=await config_map(case))
        await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
        assert parse_kubeconfig(kubeconfig_in(await manifests(case))).server == "https://192.0.2.9:6443"
    finally:
        await case.harvester.delete(SERVICES, "ingress-expose", "kube-system")


async def test_account_of_another_client_is_left_alone(case: Case) -> None:
    await case.harvester.create(NAMESPACES, {"metadata": {"name": case.target}})
    theirs = await case.harvester.create(ACCOUNTS, {"metadata": {"name": case.name, "namespace": case.target}})
    await case.ready_cluster(updateCloudProviderConfig=await config_map(case))
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    user = await user_of(parse_kubeconfig(kubeconfig_in(await manifests(case))))
    assert user.startswith(f"system:serviceaccount:{case.target}:{case.name}-")
    assert await remove_infrastructure(case) == []
    left = await case.harvester.list(ACCOUNTS, case.target)
    assert [account["metadata"]["uid"] for account in left["items"]] == [theirs["metadata"]["uid"]]


async def test_secret_in_the_workload_cluster_is_kept_right(case: Case) -> None:
    await case.ready_cluster(cloudConfig={"delivery": "Secret"})
    waiting = is_false(READY, "CloudProviderConfigGenerationInProgress", "workload")
    await case.until(HARVESTER_CLUSTERS, case.name, waiting)
    await connect(case)
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    secret = await workload_secret(case)
    first = await check(case, content(secret))
    assert secret["metadata"]["labels"]["caphv.io/owner-uid"]
    assert secret["data"]["cloud-provider-config"] == secret["data"][KEY]
    version = secret["metadata"]["resourceVersion"]
    await touch(case)
    assert (await workload_secret(case))["metadata"]["resourceVersion"] == version
    # Changed, deleted, and due for a new token.
    await case.workload.patch(SECRETS, SECRET, "kube-system", {"stringData": {KEY: "broken"}})
    secret = await until_workload_secret(case, lambda obj: content(obj) != "broken")
    assert (await check(case, content(secret))).token != first.token
    await case.workload.delete(SECRETS, SECRET, "kube-system")
    secret = await until_workload_secret(case, lambda _obj: True)
    second = await check(case, content(secret))
    due = {"metadata": {"annotations": {"caphv.io/renew-at": "2026-01-01T00:00:00Z"}}}
    await case.workload.patch(SECRETS, SECRET, "kube-system", due)
    secret = await until_workload_secret(case, lambda obj: parse_kubeconfig(content(obj)).token != second.token)
    third = await check(case, content(secret))
    assert await remove_infrastructure(case) == []
    await check_revoked(third)
    await case.workload.delete(SECRETS, SECRET, "kube-system")


async def test_secret_of_another_client_is_left_alone(case: Case) -> None:
    with contextlib.suppress(NotFound):
        await case.workload.delete(SECRETS, SECRET, "kube-system")
    metadata = {"name": SECRET, "namespace": "kube-system"}
    theirs = await case.workload.create(SECRETS, {"metadata": metadata, "stringData": {KEY: "theirs"}})
    await case.connect_workload()
    await case.ready_cluster(cloudConfig={"delivery": "Secret"})
    await case.until(
        HARVESTER_CLUSTERS,
        case.name,
        is_false(READY, "CloudProviderConfigGenerationFailed", "not created by this provider"),
    )
    await case.until_event(case.name, "Warning", "CloudProviderConfigGenerationFailed")
    assert content(await workload_secret(case)) == "theirs"
    await case.workload.delete(SECRETS, SECRET, "kube-system", uid=theirs["metadata"]["uid"])
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    await case.workload.delete(SECRETS, SECRET, "kube-system")


async def test_guests_find_the_file_at_their_first_boot(case: Case) -> None:
    await case.ready_cluster(cloudConfig={"delivery": "File"})
    await case.ready_machine("one")
    user_data, _ = await case.user_data("one")
    (file,) = [file for file in user_data["write_files"] if file["path"] == "/etc/kubernetes/cloud-config"]
    assert file["permissions"] == "0600"
    await check(case, file["content"])


async def test_guests_find_the_file_after_a_restart_while_the_cluster_cannot_converge(case: Case) -> None:
    await case.ready_cluster(cloudConfig={"delivery": "File"})
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    provider = case.environment.provider
    await case.pause_object(HARVESTER_CLUSTERS, case.name, paused=True)
    await provider.stop()
    await provider.start()
    await case.create_machine("one")
    await case.vm("one")
    user_data, _ = await case.user_data("one")
    assert "/etc/kubernetes/cloud-config" in [file["path"] for file in user_data["write_files"]]
    await case.pause_object(HARVESTER_CLUSTERS, case.name, paused=False)


async def test_credentials_go_when_the_spec_asks_for_none(case: Case) -> None:
    await case.ready_cluster(updateCloudProviderConfig=await config_map(case))
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    access = await check(case, kubeconfig_in(await manifests(case)))
    await case.patch(HARVESTER_CLUSTERS, case.name, {"spec": {"updateCloudProviderConfig": None}})
    await case.until(HARVESTER_CLUSTERS, case.name, lambda obj: READY not in str(obj["status"]["conditions"]))
    await check_revoked(access)


async def test_tokens_are_nowhere_to_be_seen(case: Case) -> None:
    await connect(case)
    await case.ready_cluster(updateCloudProviderConfig=await config_map(case), cloudConfig={"delivery": "Secret"})
    found = await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    texts = [kubeconfig_in(await manifests(case)), content(await workload_secret(case))]
    tokens = [parse_kubeconfig(text).token for text in texts]
    await case.until_event(case.name, "Normal", "CloudConfigWritten")
    seen = case.environment.provider.log + str(found) + str(await case.management.list(EVENTS, case.name))
    for token in tokens:
        assert token.split(".")[2] not in seen
    await case.workload.delete(SECRETS, SECRET, "kube-system")


async def test_credentials_are_renewed_while_the_cluster_is_paused(case: Case) -> None:
    await connect(case)
    await case.ready_cluster(cloudConfig={"delivery": "Secret"})
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    first = parse_kubeconfig(content(await workload_secret(case))).token
    await case.pause(True)
    due = {"metadata": {"annotations": {RENEW_AT_ANNOTATION: "2026-01-01T00:00:00Z"}}}
    await case.workload.patch(SECRETS, SECRET, "kube-system", due)
    await until_workload_secret(case, lambda obj: parse_kubeconfig(content(obj)).token != first)
    await case.pause(False)
    await case.delete()


async def test_credentials_about_to_expire_are_reported_while_harvester_cannot_be_reached(case: Case) -> None:
    await connect(case)
    await case.ready_cluster(cloudConfig={"delivery": "Secret"})
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    await case.identity("not a kubeconfig")
    await case.until(HARVESTER_CLUSTERS, case.name, is_false("HarvesterConnectionReady", "HarvesterConnectionFailed"))
    now = datetime.now(UTC)
    times = {
        RENEW_AT_ANNOTATION: rfc3339(now - timedelta(hours=2)),
        EXPIRES_AT_ANNOTATION: rfc3339(now + timedelta(hours=1)),
    }
    await case.workload.patch(SECRETS, SECRET, "kube-system", {"metadata": {"annotations": times}})
    await case.until(HARVESTER_CLUSTERS, case.name, is_false(READY, "CloudProviderConfigExpiring", "expire at"))
    await case.until_event(case.name, "Warning", "CloudProviderConfigExpiring")
    await case.identity()
    await case.until(HARVESTER_CLUSTERS, case.name, is_true(READY))
    renewed = (await workload_secret(case))["metadata"]["annotations"]
    assert renewed[RENEW_AT_ANNOTATION] > times[EXPIRES_AT_ANNOTATION]
    await case.delete()
