"""Webhook configurations: what is registered, and what happens to one that a user changed or deleted."""

import base64
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from caphv.api.object import Obj
from caphv.runtime import certwatcher
from sandbox.processes import pki
from webhooks import configuration
from webhooks.handler import TARGETS

pytestmark = pytest.mark.unit

SERVICE = {"service": {"namespace": "caphv-system", "name": "caphv-webhook-service"}}
OLD, NEW = (pki.CA.create(name).certificate for name in ("old", "new"))


def encoded(*pems: bytes) -> str:
    return base64.b64encode(b"".join(pems)).decode()


def bundles(found: Obj) -> set[str]:
    return {webhook["clientConfig"].get("caBundle", "") for webhook in found["webhooks"]}


def validating(target: Obj = SERVICE, **options: Any) -> Obj:
    return configuration.configurations(target, **options)[0]


def stored(found: Obj, bundle: str = "") -> Obj:
    """As the API server keeps it: with its own fields and defaults."""
    new = deepcopy(found)
    new["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 2, "creationTimestamp": "t"}
    for webhook in new["webhooks"]:
        webhook |= {"namespaceSelector": {}, "objectSelector": {}}
        webhook["clientConfig"] |= {"caBundle": bundle} if bundle else {}
        if "service" in webhook["clientConfig"]:
            webhook["clientConfig"]["service"]["port"] = 443
    return new


def test_names_are_those_of_the_go_provider_and_paths_are_served() -> None:
    first, second = configuration.configurations(SERVICE)
    assert first["metadata"]["name"] == "caphv-validating-webhook-configuration"
    names = {webhook["name"] for webhook in first["webhooks"]}
    assert {f"vharvester{kind}{infix}.kb.io" for kind in ("cluster", "machine") for infix in ("", ".v1beta1")} <= names
    paths = [webhook["clientConfig"]["service"]["path"] for found in (first, second) for webhook in found["webhooks"]]
    assert sorted(paths) == sorted(TARGETS)


def test_deletions_and_what_is_being_deleted_are_never_sent() -> None:
    for found in configuration.configurations(SERVICE):
        for webhook in found["webhooks"]:
            (rule,) = webhook["rules"]
            assert rule["operations"] == ["CREATE", "UPDATE"]
            assert "/" not in rule["resources"][0]
            assert webhook["matchConditions"][0]["expression"] == "!has(object.metadata.deletionTimestamp)"
            policy = "Fail" if found["kind"].startswith("Validating") else "Ignore"
            assert (webhook["sideEffects"], webhook["failurePolicy"]) == ("None", policy)


@pytest.mark.parametrize(
    ("service", "url"),
    [
        ("", ""),
        ("only-a-name", ""),
        ("a/b/c", ""),
        ("", "http://host"),
        ("", "https://"),
        ("", "https://host/path"),
        ("", "https://host?a=b"),
    ],
)
def test_addresses_that_api_servers_cannot_use_are_refused(service: str, url: str) -> None:
    with pytest.raises(ValueError, match="is not of the form"):
        configuration.client_config(service, url)


def test_a_url_gets_the_path() -> None:
    found = validating(configuration.client_config(url="https://[fd00::1]:9443/"))
    assert {w["clientConfig"]["url"].partition("/validate")[0] for w in found["webhooks"]} == {"https://[fd00::1]:9443"}


def test_an_unchanged_one_is_left_alone() -> None:
    found = stored(validating(), encoded(OLD))
    assert configuration.repair(found, validating(), OLD, first=True) is None
    assert configuration.repair(found, validating(), b"", first=True) is None


def test_settings_of_an_operator_are_kept() -> None:
    found = stored(validating(), encoded(OLD))
    for webhook in found["webhooks"]:
        webhook |= {"timeoutSeconds": 20, "failurePolicy": "Ignore"}
    assert configuration.repair(found, validating(), OLD, first=True) is None


@pytest.mark.parametrize("change", ["missing", "moved"])
def test_one_of_another_release_becomes_ours_once_and_keeps_its_bundle(change: str) -> None:
    found = stored(validating(), encoded(OLD))
    if change == "missing":
        del found["webhooks"][1:]
    else:
        found["webhooks"][0]["clientConfig"]["service"]["name"] = "elsewhere"
    assert configuration.repair(found, validating(), OLD, first=False) is None
    new = configuration.repair(found, validating(), OLD, first=True)
    assert new is not None
    assert [webhook["name"] for webhook in new["webhooks"]] == [w["name"] for w in validating()["webhooks"]]
    assert bundles(new) == {encoded(OLD)}
    assert new["metadata"]["resourceVersion"] == "7"


def test_a_new_authority_is_added_and_the_previous_one_stays() -> None:
    found = stored(validating(), encoded(OLD))
    new = configuration.repair(found, validating(), NEW, first=False)
    assert new is not None
    assert bundles(new) == {encoded(NEW, OLD)}
    # A replica that still has the previous one is content: the two do not fight.
    assert configuration.repair(new, validating(), OLD, first=False) is None


def test_authorities_do_not_pile_up() -> None:
    found = stored(validating())
    for number in range(6):
        found = configuration.repair(found, validating(), pki.CA.create(str(number)).certificate, first=False) or found
    (bundle,) = bundles(found)
    assert len(certwatcher.certificates_in(base64.b64decode(bundle))) == 3


def test_the_bundle_is_cert_managers_where_it_injects() -> None:
    found = stored(validating(annotations={configuration.INJECT_ANNOTATION: "caphv-system/x"}), encoded(OLD))
    assert configuration.repair(found, validating(), NEW, first=True) is None


def test_a_deleted_one_comes_back_as_it_was() -> None:
    annotation = {configuration.INJECT_ANNOTATION: "caphv-system/x"}
    last = stored(validating(annotations=annotation), encoded(OLD))
    last["webhooks"][0]["timeoutSeconds"] = 20
    new = configuration.recreate(last, validating(), NEW)
    assert new["metadata"] == {"name": last["metadata"]["name"], "labels": last["metadata"]["labels"]} | {
        "annotations": annotation
    }
    assert new["webhooks"] == last["webhooks"]


def test_one_that_was_never_seen_is_made_with_the_authority_of_the_folder() -> None:
    assert bundles(configuration.recreate(None, validating(), NEW)) == {encoded(NEW)}
    assert bundles(configuration.recreate(None, validating(), b"")) == {""}


def test_a_bundle_that_is_none_is_replaced() -> None:
    new = configuration.repair(stored(validating(), "nonsense!"), validating(), NEW, first=False)
    assert new is not None
    assert bundles(new) == {encoded(NEW)}


def test_the_authority_of_a_folder(tmp_path: Path) -> None:
    assert certwatcher.authority(tmp_path) == b""
    (tmp_path / "ca.crt").write_bytes(b"text before\n" + OLD + b"text between\n" + NEW)
    assert certwatcher.authority(tmp_path) == OLD + NEW
    (tmp_path / "ca.crt").write_bytes(b"nothing of the kind")
    assert certwatcher.authority(tmp_path) == b""
