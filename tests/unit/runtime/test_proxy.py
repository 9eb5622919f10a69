"""Which proxy the environment names for a server."""

import pytest
import yaml

from caphv.runtime.kubeconfig import parse_kubeconfig
from caphv.runtime.proxy import environment_proxy
from tests.support.kubeconfigs import valid, with_cluster

pytestmark = pytest.mark.unit

PROXY = "http://proxy.example.com:3128"


def proxied(server: str, exceptions: str) -> bool:
    found = environment_proxy(server, {"HTTPS_PROXY": PROXY, "NO_PROXY": exceptions})
    assert found in (PROXY, "")
    return bool(found)


@pytest.mark.parametrize(
    ("server", "exceptions"),
    [
        ("https://harvester.example.com:6443", ""),
        ("https://harvester.example.com", "other.example.com,10.0.0.0/8"),
        ("https://harvester.example.com:6443", "harvester.example.com:443"),
        ("https://notexample.com", "example.com"),
        ("https://example.com", ".example.com"),
        ("https://192.0.2.1:6443", "192.0.2.2,192.0.3.0/24,example.com"),
        ("https://[2001:db8::1]:6443", "2001:db8:1::/48"),
    ],
)
def test_through_the_proxy(server: str, exceptions: str) -> None:
    assert proxied(server, exceptions)


@pytest.mark.parametrize(
    ("server", "exceptions"),
    [
        ("https://harvester.example.com", "*"),
        ("https://harvester.example.com", "example.com"),
        ("https://harvester.example.com", ".example.com"),
        ("https://harvester.example.com", "*.example.com"),
        ("https://Harvester.Example.com", "other, HARVESTER.example.com"),
        ("https://harvester.example.com:6443", "harvester.example.com:6443"),
        ("https://harvester.example.com", "harvester.example.com:443"),
        ("https://10.43.0.1:443", "10.42.0.0/16,10.43.0.0/16"),
        ("https://192.0.2.1:6443", "192.0.2.1"),
        ("https://[2001:db8::1]:6443", "2001:db8::/32"),
        ("https://[2001:db8::1]:6443", "[2001:db8::1]:6443"),
        ("https://localhost:6443", ""),
        ("https://127.11.0.1:6443", ""),
        ("https://[::1]:6443", ""),
    ],
)
def test_past_the_proxy(server: str, exceptions: str) -> None:
    assert not proxied(server, exceptions)


def test_without_a_proxy() -> None:
    assert environment_proxy("https://harvester.example.com", {"NO_PROXY": "example.com"}) == ""


def test_spellings() -> None:
    assert environment_proxy("https://192.0.2.1", {"https_proxy": "proxy:3128"}) == "http://proxy:3128"
    assert environment_proxy("https://192.0.2.1", {"https_proxy": "proxy:3128", "no_proxy": "192.0.2.1"}) == ""


def test_a_kubeconfig_has_its_own_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert parse_kubeconfig(yaml.safe_dump(valid())).proxy_url == PROXY
    assert parse_kubeconfig(yaml.safe_dump(with_cluster(proxy_url="http://own:1"))).proxy_url == "http://own:1"
