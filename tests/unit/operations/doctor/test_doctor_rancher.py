"""The doctor's checks of the CA by which agents and identities trust Rancher."""

from __future__ import annotations

import ssl
import time
from typing import Any, cast

import pytest

from caphv.api.names import AUTO_IMPORT_LABEL
from caphv.api.object import Key, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import Forbidden
from caphv.runtime.kubeconfig import Kubeconfig
from caphv.runtime.networkerrors import describe
from operations.doctor import rancher
from operations.doctor.harvesterfacts import HarvesterFacts
from operations.doctor.management import ManagementFacts
from operations.doctor.reading import read_management_facts
from operations.read.objects import HarvesterObjects, Unseen
from operations.status.check import Check, Result
from tests.support.doctor import ManagementServer, one

pytestmark = pytest.mark.unit

SECRET = "Secret team/identity"


def pem(*contents: str) -> str:
    return "\n".join(f"-----BEGIN CERTIFICATE-----\n{each}\n-----END CERTIFICATE-----" for each in contents)


def cluster(imported: str = "true") -> Obj:
    return {"metadata": {"namespace": "team", "name": "shop", "labels": {AUTO_IMPORT_LABEL: imported}}}


def identity(ca: str, server: str = "https://rancher.example.com/k8s/clusters/c-1", **fields: Any) -> HarvesterFacts:
    fine: dict[str, Any] = {"kubeconfig": Kubeconfig(server, ca=ca), "objects": HarvesterObjects()}
    return HarvesterFacts(Key("team", "identity"), **{**fine, **fields})


def certificate_error() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError("self-signed certificate")
    error.verify_code = 19
    return error


def checked(
    *harvesters: HarvesterFacts, clusters: list[Obj] | None = None, ca: str = "", mode: str = "strict"
) -> list[Check]:
    values = {"cacerts": ca, "agent-tls-mode": mode, "server-url": "https://Rancher.example.com"}
    return list(rancher.checks(ManagementFacts(rancher=values), clusters or [], harvesters))


# Agents


def test_strict_agents_need_a_ca() -> None:
    (only,) = checked(clusters=[cluster()])
    assert (only.subject, only.result) == ("management cluster", Result.ERROR)
    assert only.message.endswith("do not connect: team/shop")
    assert "cacerts" in only.remedy


def test_without_an_imported_cluster_that_is_a_warning() -> None:
    assert [check.result for check in checked(clusters=[cluster("false")])] == [Result.WARNING]


@pytest.mark.parametrize(("ca", "mode"), [(pem("AAAA"), "strict"), ("", "system-store"), (pem("AAAA"), "")])
def test_agents_that_can_trust_rancher_are_no_finding(ca: str, mode: str) -> None:
    assert [check.result for check in checked(clusters=[cluster()], ca=ca, mode=mode)] == [Result.OK]


def test_certificates_that_never_end_take_linear_time() -> None:
    text = "-----BEGIN CERTIFICATE-----\n" * 37_000
    began = time.process_time()
    assert rancher.certificates_of(text + pem("QUFB")) == {"QUFB"}
    assert time.process_time() - began < 1


def test_what_is_no_certificate_is_no_ca() -> None:
    assert [check.result for check in checked(ca="x")] == [Result.WARNING]


# Identities


@pytest.mark.parametrize(
    "facts",
    [
        identity(pem("AA\nAA")),
        identity(pem("CCCC", "AAAA")),
        identity(""),
        identity(pem("OLD"), server="https://172.16.0.10:6443"),
        identity(pem("OLD"), server="https://rancher.example.com:6443"),
        identity(pem("OLD"), server="https://rancher.example.com:6443/k8s/clusters/c-1"),
        identity(pem("OLD"), server="https://rancher.example.com"),
        identity("", objects=None, error="it rejects the credentials: 401", rejected=True),
        identity("", objects=None, error="it refuses requests: 403"),
        identity("", objects=None, error="no answer within 15 s"),
        identity(pem("OLD"), kubeconfig=Kubeconfig("https://rancher.example.com/k8s/clusters/c", insecure=True)),
        HarvesterFacts(Key("team", "identity")),
    ],
    ids=[
        "the same",
        "among others",
        "the system's",
        "not through Rancher",
        "the API server on Rancher's host",
        "another port",
        "no cluster",
        "rejected",
        "forbidden",
        "a firewall",
        "verifies nothing",
        "no kubeconfig",
    ],
)
def test_an_identity_that_trusts_rancher_is_no_finding(facts: HarvesterFacts) -> None:
    assert [check.result for check in checked(facts, ca=pem("AAAA", "BBBB"))] == [Result.OK]


def test_an_identity_with_a_former_ca_is_named_before_it_fails() -> None:
    warning = next(check for check in checked(identity(pem("OLD")), ca=pem("AAAA")) if check.subject == SECRET)
    assert (warning.result, warning.id) == (Result.WARNING, "rancher-ca")
    assert "may be refused" in warning.message
    assert "caphv identity rotate team/identity" in warning.remedy


@pytest.mark.parametrize("ca", [pem("OLD"), ""])
def test_only_an_error_of_certificates_is_blamed_on_the_ca(ca: str) -> None:
    untrusted = describe(certificate_error())
    refused = identity(ca, objects=None, error=f"it is unreachable: https://rancher.example.com: {untrusted}")
    error = next(check for check in checked(refused, ca=pem("AAAA")) if check.subject == SECRET)
    assert (error.result, "no connection" in error.message) == (Result.ERROR, True)

    late = identity(pem("OLD"), objects=None, error="no answer within 15 s")
    warning = next(check for check in checked(late, ca=pem("AAAA")) if check.subject == SECRET)
    assert (warning.result, "no connection" in warning.message) == (Result.WARNING, False)


def test_without_a_ca_of_rancher_there_is_nothing_to_compare() -> None:
    assert [check.subject for check in checked(identity(pem("OLD")), mode="system-store")] == ["management cluster"]


# Reading


def setting(name: str, **fields: str) -> Obj:
    return {"apiVersion": "management.cattle.io/v3", "kind": "Setting", "metadata": {"name": name}, **fields}


async def test_values_come_before_defaults() -> None:
    server = ManagementServer(
        setting("cacerts", value="", default=""),
        setting("agent-tls-mode", value="", default="strict"),
        setting("server-url", value="https://rancher", default="https://other"),
    )
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert facts.rancher == {"cacerts": "", "agent-tls-mode": "strict", "server-url": "https://rancher"}


async def test_a_management_cluster_without_rancher_has_no_check() -> None:
    facts = await read_management_facts(cast("ApiClient", ManagementServer()), "caphv-system")
    assert facts.rancher == {}
    assert list(rancher.checks(facts, [cluster()], [])) == []


async def test_settings_that_may_not_be_read_are_named_if_a_cluster_is_imported() -> None:
    server = ManagementServer()
    server.errors["get Setting"] = Forbidden(403, "Forbidden", "cannot get")
    facts = await read_management_facts(cast("ApiClient", server), "caphv-system")
    assert one(rancher.checks(facts, [cluster()], []), "rancher-ca").result is Result.SKIPPED
    assert list(rancher.checks(facts, [cluster("false")], [])) == []
    assert isinstance(facts.unseen[0], Unseen)
