"""Who gets which credentials: the decision about HarvesterClusterIdentities."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from caphv.api import identities
from caphv.api.identities import Refused
from caphv.api.object import Key, Obj

pytestmark = pytest.mark.unit

PROVIDER = "caphv-system"
SECRET = Key(PROVIDER, "shared-harvester")
NAMES = st.from_regex(r"\A[a-z]([a-z0-9-]{0,6}[a-z0-9])?\Z")
LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)


def identity(allowed: Any = None, secret: Key = SECRET) -> Obj:
    spec: Obj = {"secretRef": {"name": secret.name, "namespace": secret.namespace}}
    if allowed is not None:
        spec["allowedNamespaces"] = allowed
    return {"metadata": {"name": "shared"}, "spec": spec}


def resolve(obj: Obj | None, namespace: str = "team-a", labels: dict[str, str] | None = None) -> Key | Refused:
    return identities.resolve("shared", obj, namespace, labels, PROVIDER)


def cluster(**spec: Any) -> Obj:
    return {"metadata": {"name": "demo", "namespace": "team-a"}, "spec": spec}


@given(st.lists(NAMES, max_size=4), NAMES)
def test_exactly_the_listed_namespaces_are_allowed(listed: list[str], namespace: str) -> None:
    assert (resolve(identity({"list": listed}), namespace) == SECRET) is (namespace in listed)


@given(LABELS, st.none() | LABELS, NAMES)
def test_a_selector_allows_namespaces_that_have_all_its_labels(
    required: dict[str, str], labels: dict[str, str] | None, namespace: str
) -> None:
    allowed = resolve(identity({"selector": {"matchLabels": required}}), namespace, labels) == SECRET
    assert allowed is (bool(required) and labels is not None and all(labels.get(k) == v for k, v in required.items()))


@pytest.mark.parametrize("allowed", [None, {}, {"list": []}, {"selector": {}}, {"selector": {"matchLabels": {}}}])
def test_nothing_allows_no_namespace(allowed: Any) -> None:
    assert isinstance(resolve(identity(allowed), labels={"a": "x"}), Refused)
    assert isinstance(resolve(identity(allowed), namespace=""), Refused)


def test_a_star_allows_all_and_no_part_of_a_name_does() -> None:
    assert resolve(identity({"list": ["*"]}), "anything") == SECRET
    assert isinstance(resolve(identity({"list": ["team-*"]})), Refused)
    assert isinstance(resolve(identity({"list": ["team-ab"]})), Refused)
    assert isinstance(resolve(identity({"list": ["*"]}), namespace=""), Refused)


def test_list_and_selector_each_suffice() -> None:
    both = identity({"list": ["team-a"], "selector": {"matchLabels": {"a": "x"}}})
    assert resolve(both, "team-a") == resolve(both, "team-b", {"a": "x"}) == SECRET
    assert isinstance(resolve(both, "team-b", {"a": "y"}), Refused)


@given(st.lists(NAMES | st.just("*"), max_size=2), LABELS, NAMES, LABELS)
def test_labels_are_asked_for_only_where_they_decide(
    listed: list[str], required: dict[str, str], namespace: str, labels: dict[str, str]
) -> None:
    obj = identity({"list": listed, "selector": {"matchLabels": required}})
    unlabelled = resolve(obj, namespace)
    assert identities.depends_on_labels(obj, namespace) or resolve(obj, namespace, labels) == unlabelled
    assert not (identities.depends_on_labels(obj, namespace) and unlabelled == SECRET)


def test_absent_and_refused_identities_look_the_same() -> None:
    absent, refused = resolve(None), resolve(identity({"list": ["team-b"]}))
    assert absent == refused
    assert isinstance(absent, Refused)
    assert "team-b" not in absent.message
    assert "add the namespace to spec.allowedNamespaces" in absent.message
    assert SECRET.name not in absent.message


@pytest.mark.parametrize("namespace", ["team-b", "kube-system", ""])
def test_a_secret_outside_of_the_providers_namespace_is_not_used(namespace: str) -> None:
    answer = resolve(identity({"list": ["*"]}, Key(namespace, "token")))
    assert isinstance(answer, Refused)
    assert not answer.is_permission
    assert f"namespace {PROVIDER} of the provider" in answer.message


@given(NAMES, NAMES, NAMES)
def test_no_secret_has_the_key_of_a_cluster_identity(name: str, namespace: str, other: str) -> None:
    shared = identities.identity_of(cluster(identityRef={"name": name}))
    secret = identities.identity_of(cluster(identitySecret={"name": other, "namespace": namespace}))
    assert identities.is_cluster_identity(shared)
    assert not identities.is_cluster_identity(secret)
    assert str(shared) != str(secret)
    assert identities.describe(shared) == f"HarvesterClusterIdentity {name}"
    assert identities.secret_name(str(shared)) == f"of HarvesterClusterIdentity {name}"
    assert identities.secret_name(secret) == f"{namespace}/{other}"


def test_a_cluster_with_both_gets_only_what_the_identity_allows() -> None:
    both = cluster(identityRef={"name": "shared"}, identitySecret={"name": "own", "namespace": "team-a"})
    assert identities.identity_of(both) == identities.cluster_identity("shared")
    assert identities.identity_of({}) == Key("", "")


@given(st.binary(max_size=60))
def test_what_is_in_a_secret_is_read_as_it_is(content: bytes) -> None:
    assert identities.decode_kubeconfig("kubeconfig", base64.b64encode(content).decode()) == content


@example("x" * 160)
@given(st.text(max_size=60))
def test_text_of_a_cloud_credential_may_itself_be_base64(text: str) -> None:
    content = f"apiVersion: v1\n{text}".encode()
    lines = base64.encodebytes(content)
    for encoded in (content, base64.b64encode(content), lines, lines.replace(b"\n", b"\r\n")):
        value = base64.b64encode(encoded).decode()
        assert identities.decode_kubeconfig(identities.CLOUD_CREDENTIAL_KEY, value) == content


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({"kubeconfig": "x", "harvestercredentialConfig-kubeconfigContent": "x"}, "kubeconfig"),
        ({"kubeconfig": "", "harvestercredentialConfig-kubeconfigContent": "x"}, identities.CLOUD_CREDENTIAL_KEY),
        ({"amazonec2credentialConfig-secretKey": "x"}, ""),
        ({}, ""),
        (None, ""),
    ],
)
def test_key_of_the_kubeconfig(data: dict[str, str] | None, key: str) -> None:
    assert identities.kubeconfig_key({"data": data}) == key
