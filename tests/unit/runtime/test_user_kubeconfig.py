"""A user's own kubeconfig means what kubectl takes it for: for whom it acts, which file decides, and when a Pod."""

import asyncio
import dataclasses
import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from caphv.api.object import NODES
from caphv.runtime.client import ApiClient
from caphv.runtime.clientconfig import own_configuration, process_configuration
from caphv.runtime.kubeconfig import KubeconfigError
from caphv.runtime.user_kubeconfig import context_namespace
from tests.support.answering import serving
from tests.support.kubeconfigs import CA, valid

pytestmark = pytest.mark.unit

IMPERSONATION = {
    "as": "viewer",
    "as-uid": "7",
    "as-groups": ["readers", "auditors"],
    "as-user-extra": {"example.com/reason": ["a", "b"]},
}


@pytest.mark.parametrize("kind", ["token", "tokenFile"])
async def test_own_kubeconfig_acts_as_the_user_that_it_names(kind: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file")
    config = valid()
    config["users"][0]["user"] = {kind: str(tmp_path / "token"), **IMPERSONATION}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    connection = await own_configuration(str(tmp_path / "config"))
    received: list[tuple[str, str]] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        received.extend(request.headers.items())
        return web.json_response({"metadata": {"name": "a"}})

    async with serving(answer) as other:
        client = ApiClient(dataclasses.replace(connection, server=other.server, proxy=None), name="test")
        await client.get(NODES, "a")
        await client.close()
    assert sorted(pair for pair in received if pair[0].startswith("Impersonate")) == [
        ("Impersonate-Extra-example.com%2Freason", "a"),
        ("Impersonate-Extra-example.com%2Freason", "b"),
        ("Impersonate-Group", "auditors"),
        ("Impersonate-Group", "readers"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-User", "viewer"),
    ]


@pytest.mark.parametrize(
    ("user", "text"),
    [
        ({"as-groups": ["readers"]}, "as: required"),
        ({"as": "viewer", "as-groups": "readers"}, "as-groups must be a list"),
        ({"as": "viewer\nX: y"}, "as: must be text"),
        ({"as": "viewer", "as-uid": 7}, "as-uid: must be text"),
    ],
)
def test_own_kubeconfig_whose_impersonation_is_unclear_is_refused(user: Any, text: str, tmp_path: Path) -> None:
    config = valid()
    config["users"][0]["user"] |= user
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    with pytest.raises(KubeconfigError, match=text):
        asyncio.run(own_configuration(str(tmp_path / "config")))


@pytest.mark.parametrize("kind", ["token", "tokenFile"])
def test_hand_made_certificates_are_accepted_from_any_kubeconfig(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ssl.create_default_context

    def strict(*arguments: Any, **options: Any) -> ssl.SSLContext:
        context = real(*arguments, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default of Python 3.13
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    (tmp_path / "token").write_text("from-a-file")
    config = valid()
    config["users"][0]["user"] = {kind: str(tmp_path / "token")}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    tls = asyncio.run(own_configuration(str(tmp_path / "config"))).tls
    assert not tls.verify_flags & ssl.VERIFY_X509_STRICT
    assert tls.verify_mode is ssl.CERT_REQUIRED


def config_of(context: str, server: str, namespace: str) -> str:
    """A kubeconfig with one context, which is the current one."""
    config = valid()
    config["contexts"] = [{"name": context, "context": {"cluster": context, "user": "u", "namespace": namespace}}]
    config["clusters"] = [{"name": context, "cluster": {"server": server}}]
    config["users"] = [{"name": "u", "user": {"token": "t"}}]
    return yaml.safe_dump({**config, "current-context": context})


def test_the_first_file_chooses_the_context_for_server_and_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "a").write_text(config_of("one", "https://one:6443", "team-one"))
    (tmp_path / "b").write_text(config_of("two", "https://two:6443", "team-two"))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/a:{tmp_path}/absent:{tmp_path}/b")
    assert asyncio.run(own_configuration("")).server == "https://one:6443"
    assert context_namespace("", "") == "team-one"
    assert asyncio.run(own_configuration("", "two")).server == "https://two:6443"
    assert context_namespace("", "two") == "team-two"
    assert context_namespace("", "three") == "default"


def test_in_a_pod_a_command_takes_kubeconfig_first_and_a_controller_the_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caphv.runtime.clientconfig._SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT", raising=False)
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    for name, text in (("ca.crt", CA.certificate.decode()), ("token", "t"), ("namespace", "runners")):
        (tmp_path / name).write_text(text)
    (tmp_path / "config").write_text(config_of("one", "https://one:6443", "team"))

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert asyncio.run(own_configuration("")).server == "https://one:6443"
    assert context_namespace("", "") == "team"
    assert asyncio.run(process_configuration("")).server == "https://10.0.0.1:443"

    for nothing in ("", str(tmp_path / "absent")):
        monkeypatch.setenv("KUBECONFIG", nothing)
        assert asyncio.run(own_configuration("")).server == "https://10.0.0.1:443"
        assert context_namespace("", "") == "runners"
    for read in (own_configuration, process_configuration):
        assert asyncio.run(read(str(tmp_path / "config"))).server == "https://one:6443"
    assert context_namespace(str(tmp_path / "config"), "") == "team"
