"""The cloud config: its place in manifests, whose account it is, and when its token is renewed."""

import base64
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caphv.api import names
from caphv.api.conditions import get_condition
from caphv.api.names import ConditionType
from caphv.api.object import Key, Obj
from caphv.api.ownership import Owner, record
from caphv.runtime.errors import Forbidden
from caphv.runtime.kubeconfig import parse_kubeconfig
from reconciler.cluster import cloudaccount
from reconciler.cluster.cloudaccount import usable
from reconciler.cluster.cloudconfig import ensure_cloud_config
from reconciler.cluster.guestsecret import TOKEN_SECONDS, expiry, intact, renewal, secret_object
from reconciler.cluster.manifest import ManifestError, with_credentials
from reconciler.cluster.scope import ClusterScope
from reconciler.harvester.guestaccount import LABEL
from reconciler.harvester.kubeconfig import kubeconfig, virtual_address
from reconciler.memory.store import Memory
from reconciler.statusdraft import StatusDraft

pytestmark = pytest.mark.unit

OWNER = Owner("HarvesterCluster", "clusters", "demo", "uid-1", "mc-1")
OTHER = Owner("HarvesterCluster", "clusters", "demo", "uid-2", "mc-2")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAEMON = "apiVersion: apps/v1\nkind: DaemonSet   # kept as it is\nmetadata: {name: ccm, namespace: kube-system}\n"
CA = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"


def test_kubeconfig_has_the_names_of_the_contract() -> None:
    text = kubeconfig(server="https://192.0.2.1:6443", ca=CA, token="t", namespace="vms")
    access = parse_kubeconfig(text)
    assert (access.server, access.namespace, access.ca, access.token) == ("https://192.0.2.1:6443", "vms", CA, "t")
    config = yaml.safe_load(text)
    assert config["current-context"] == config["contexts"][0]["name"] == "context"
    assert config["clusters"][0]["name"] == config["users"][0]["name"] == "default"


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("192.0.2.7", "https://192.0.2.7:6443"),
        ("192.0.2.7,192.0.2.8", "https://192.0.2.7:6443"),
        ("fd00::1", ""),
        ("", ""),
        ("not an address", ""),
    ],
)
def test_virtual_address_is_an_ipv4(address: str, url: str) -> None:
    service = {"metadata": {"name": "ingress-expose", "annotations": {"kube-vip.io/loadbalancerIPs": address}}}
    assert virtual_address(service) == url


def test_no_service_means_no_virtual_address() -> None:
    assert virtual_address(None) == ""


def secrets_in(manifest: str) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all(manifest) if d and d["kind"] == "Secret"]


def test_secret_is_appended_as_opaque_where_it_is_absent() -> None:
    after = with_credentials(DAEMON, "cloud-config", "key", "content")
    assert after.startswith(DAEMON)
    (secret,) = secrets_in(after)
    assert secret["type"] == "Opaque"
    assert secret["metadata"] == {"name": "cloud-config", "namespace": "kube-system"}
    assert base64.b64decode(secret["data"]["key"]) == b"content"


def test_secret_that_is_there_keeps_everything_else() -> None:
    own = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "cloud-config", "namespace": "kube-system", "labels": {"a": "b"}},
        "type": "secret",
        "data": {"other": "eA=="},
        "stringData": {"key": "old"},
    }
    before = f"---\n{DAEMON}---\n{yaml.safe_dump(own)}--- # last\n{DAEMON}"
    after = with_credentials(before, "cloud-config", "key", "content")
    (secret,) = secrets_in(after)
    assert after.startswith(f"---\n{DAEMON}---\n")
    assert after.endswith(f"--- # last\n{DAEMON}")
    assert secret["metadata"]["labels"] == {"a": "b"}
    assert secret["type"] == "secret"
    assert secret["data"] == {"other": "eA==", "key": base64.b64encode(b"content").decode()}
    assert "key" not in secret["stringData"]


@pytest.mark.parametrize(
    "other",
    [
        {"name": "cloud-config", "namespace": "default"},
        {"name": "cloud-config"},
        {"name": "another", "namespace": "kube-system"},
    ],
)
def test_other_secrets_are_left_alone(other: dict[str, str]) -> None:
    before = yaml.safe_dump({"apiVersion": "v1", "kind": "Secret", "metadata": other, "data": {"key": "eA=="}})
    after = with_credentials(before, "cloud-config", "key", "content")
    assert after.startswith(before)
    assert len(secrets_in(after)) == 2


@given(st.lists(st.sampled_from([DAEMON, "", "# only a comment\n", "a: |\n  text\n   --- no marker\n"]), max_size=4))
def test_second_time_nothing_changes(documents: list[str]) -> None:
    first = with_credentials("---\n".join(documents), "cloud-config", "key", "content")
    assert with_credentials(first, "cloud-config", "key", "content") == first
    assert len([d for d in yaml.safe_load_all(first) if d and d.get("kind") == "Secret"]) == 1


def test_secret_with_these_credentials_keeps_its_form() -> None:
    """A rewrite would be a change in Git or a rollout for nothing."""
    value = base64.b64encode(b"content").decode()
    metadata = "metadata: {namespace: kube-system, name: cloud-config}  # by hand"
    before = f"data:\n    key: {value}\nkind: Secret\napiVersion: v1\n{metadata}\n"
    assert with_credentials(before, "cloud-config", "key", "content") == before
    assert with_credentials(before, "cloud-config", "key", "other") != before


def test_broken_manifest_is_refused_without_a_quotation() -> None:
    with pytest.raises(ManifestError) as error:
        with_credentials("password: [canary", "cloud-config", "key", "content")
    assert "canary" not in str(error.value)


@pytest.mark.parametrize("field", ["metadata", "data", "stringData"])
@pytest.mark.parametrize("value", ["canary", ["canary"], 7])
def test_secret_of_another_form_is_refused_or_left_alone(field: str, value: object) -> None:
    metadata = {"name": "cloud-config", "namespace": "kube-system"}
    own = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, field: value}
    before = yaml.safe_dump(own)
    if field == "metadata":
        assert with_credentials(before, "cloud-config", "key", "content").startswith(before)
        return
    with pytest.raises(ManifestError, match=f"Secret cloud-config, whose {field} has no keys") as error:
        with_credentials(before, "cloud-config", "key", "content")
    assert "canary" not in str(error.value)


# Account

KEY = Key("vms", "demo")
ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "harvesterhci.io:cloudprovider"}
SUBJECT = {"kind": "ServiceAccount", "name": "demo", "namespace": "vms"}


def account(owner: Owner | None = None) -> dict[str, Any]:
    return {"metadata": {"name": "demo", "annotations": record(owner) if owner else {}}}


def binding(owner: Owner | None = None, **changes: Any) -> dict[str, Any]:
    return {**account(owner), "roleRef": ROLE, "subjects": [SUBJECT], **changes}


def of_command(obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "labels": {LABEL: "demo"}}}


@pytest.mark.parametrize(
    ("of_account", "of_binding", "answer"),
    [
        (None, None, True),
        (account(OWNER), binding(OWNER), True),
        (account(OWNER), None, True),
        (account(), binding(), True),
        (account(), None, False),
        (account(OTHER), None, False),
        (None, binding(OTHER), False),
        (account(), binding(roleRef={**ROLE, "name": "cluster-admin"}), False),
        (account(), binding(subjects=None), False),
        (None, binding(subjects=[{**SUBJECT, "namespace": "elsewhere"}]), False),
        (of_command(account()), of_command(binding()), False),
        (of_command(account(OWNER)), of_command(binding(OWNER)), True),
    ],
    ids=[
        *(
            "free",
            "ours",
            "half made",
            "of Go",
            "alone",
            "foreign account",
            "foreign binding",
            "other role",
            "no subject",
            "other",
        ),
        *("of caphv cloud-config", "of caphv cloud-config and adopted by an earlier version"),
    ],
)
def test_only_what_is_ours_or_of_the_go_provider_is_used(of_account: Any, of_binding: Any, answer: bool) -> None:
    assert usable(of_account, of_binding, KEY, OWNER) is answer


def test_a_pair_of_another_owner_is_taken_over_on_request_only() -> None:
    assert usable(account(OTHER), binding(OTHER), KEY, OWNER, adopt=True)
    assert not usable(account(OTHER), None, KEY, OWNER, adopt=True)
    # The binding for all guests of the namespace names it.
    assert usable(account(OTHER), None, KEY, OWNER, adopt=True, joined=True)
    assert not usable(account(OTHER), None, KEY, OWNER, joined=True)
    assert not usable(account(OTHER), binding(OTHER), KEY, OWNER)


# The Secret in the workload cluster


def test_token_is_renewed_when_its_time_has_come() -> None:
    secret = secret_object("uid-1", "content", "inputs", NOW + timedelta(hours=2))
    assert renewal(secret, "inputs", NOW) == 7200
    assert renewal(secret, "inputs", NOW + timedelta(hours=2)) is None


def test_time_that_no_token_has_means_now() -> None:
    """The clock was set back since the Secret was written, or a user has edited it."""
    for days, expected in ((5, 5 * 24 * 3600), (6, None), (300, None)):
        secret = secret_object("uid-1", "content", "inputs", NOW + timedelta(days=days))
        assert renewal(secret, "inputs", NOW) == expected


def test_other_inputs_or_no_time_mean_now() -> None:
    secret = secret_object("uid-1", "content", "inputs", NOW + timedelta(hours=2))
    assert renewal(secret, "others", NOW) is None
    for value in (None, "", "soon", "2026-01-01T00:00:00"):
        notes = {**secret["metadata"]["annotations"], names.RENEW_AT_ANNOTATION: value}
        if value is None:
            del notes[names.RENEW_AT_ANNOTATION]
        assert renewal({"metadata": {"annotations": notes}}, "inputs", NOW) is None


def test_changed_content_is_noticed() -> None:
    secret = secret_object("uid-1", "content", "inputs", NOW)
    assert intact(secret)
    assert sorted(secret["data"]) == ["cloud-config", "cloud-provider-config"]
    for key, value in secret["data"].items():
        assert base64.b64decode(value) == b"content"
        assert not intact({**secret, "data": {**secret["data"], key: base64.b64encode(b"else").decode()}})
        assert not intact({**secret, "data": {**secret["data"], key: "?"}})
        # As it was before there were two keys.
        assert not intact({**secret, "data": {key: value}})
    assert not intact({**secret, "data": {**secret["data"], "more": "eA=="}})
    assert not intact({**secret, "data": {}})


@given(st.timedeltas(min_value=timedelta(minutes=1), max_value=timedelta(days=30)))
def test_warning_comes_after_the_renewal_and_before_the_end(left: timedelta) -> None:
    renew_at = NOW + timedelta(hours=2)
    found = expiry(secret_object("uid-1", "content", "inputs", renew_at, renew_at + left))
    assert found is not None
    assert renew_at <= found[0] < found[1]


def test_end_of_a_token_of_an_earlier_version_is_computed() -> None:
    found = expiry(secret_object("uid-1", "content", "inputs", NOW))
    assert found is not None
    assert found[1] == NOW + timedelta(seconds=TOKEN_SECONDS / 3)


@pytest.mark.parametrize("noted", ["", "soon", "9999-12-31T23:59:59Z"])
def test_unreadable_times_are_no_reason_to_warn(noted: str) -> None:
    secret = secret_object("uid-1", "content", "inputs", NOW)
    secret["metadata"]["annotations"][names.RENEW_AT_ANNOTATION] = noted
    assert expiry(secret) is None


# Refusals


class Refused(SimpleNamespace):
    """The scope of a ready cluster that has its cloud config."""

    def __init__(self, spec: Obj) -> None:
        obj = {"metadata": {"namespace": "clusters", "name": "demo", "uid": "u"}, "spec": spec}
        draft = StatusDraft(obj)
        for condition in ("Ready", "InfrastructureReady", "CloudProviderConfigReady"):
            draft.set_true(ConditionType(condition))
        memory, events = Memory(), list[str]()
        super().__init__(
            obj=obj,
            key=Key("clusters", "demo"),
            draft=draft,
            memory=memory.cluster(obj),
            target_namespace="vms",
            context=SimpleNamespace(memory=memory, object_watches=SimpleNamespace(forget=self._forget)),
            warning_event=lambda _reason, message: events.append(message),
            events=events,
            requeue_after=None,
        )

    async def _forget(self, _key: Key) -> None:
        pass

    def requeue_within(self, delay: float | None) -> None:
        self.requeue_after = delay

    def condition(self, name: str) -> dict[str, Any]:
        return get_condition(self.draft.fields["conditions"], name) or {}


def forbidden(server: str) -> Forbidden:
    error = Forbidden(403, "Forbidden", "cannot do that")
    error.server = server
    return error


async def test_account_that_may_not_be_deleted_leaves_a_cluster_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    refused, answers = Refused({}), [forbidden("harvester"), None]

    async def delete(_: object) -> None:
        if answer := answers.pop(0):
            raise answer

    monkeypatch.setattr(cloudaccount, "delete_account", delete)
    remembered = refused.memory.guest
    refused.memory.connection_error = "kept"
    await ensure_cloud_config(cast(ClusterScope, refused))
    assert refused.draft.is_true(ConditionType.READY)
    assert refused.draft.is_true(ConditionType.INFRASTRUCTURE_READY)
    found = refused.condition("CloudProviderConfigReady")
    assert (found["status"], found["reason"]) == ("False", "CloudProviderConfigGenerationFailed")
    assert "refused by Harvester: cannot do that; an administrator of Harvester can grant it" in found["message"]
    assert refused.requeue_after == 60
    assert refused.context.memory.cluster(refused.obj).guest is remembered
    await ensure_cloud_config(cast(ClusterScope, refused))
    assert refused.condition("CloudProviderConfigReady") == {}
    assert refused.context.memory.cluster(refused.obj).guest is not remembered
    assert refused.context.memory.cluster(refused.obj).connection_error == "kept"


@pytest.mark.parametrize(("server", "name"), [("workload", "the workload cluster"), ("management", "the management")])
async def test_refusal_of_another_server_is_not_blamed_on_harvester(server: str, name: str) -> None:
    refused = Refused({"cloudConfig": {"delivery": "File"}})
    refused.require_session = lambda: (_ for _ in ()).throw(forbidden(server))
    await ensure_cloud_config(cast(ClusterScope, refused))
    message = refused.condition("CloudProviderConfigReady")["message"]
    assert f"refused by {name}" in message
    assert "Harvester" not in message
    assert refused.events == [message]
