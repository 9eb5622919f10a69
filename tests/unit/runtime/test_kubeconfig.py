"""A kubeconfig in a Secret is hostile until read: inline credentials only, and nothing secret in any error."""

import asyncio
import base64
import copy
import json
import ssl
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from caphv.api.object import SECRETS
from caphv.runtime.clientconfig import own_configuration
from caphv.runtime.connection import Connection
from caphv.runtime.errors import Unreachable
from caphv.runtime.kubeconfig import Kubeconfig, KubeconfigError, parse_kubeconfig
from tests.support.kubeconfigs import CA, CANARY, encoded, named, valid, with_cluster

pytestmark = pytest.mark.unit

PAIR = CA.client("user", ["people"])
ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n"


def with_user(**fields: Any) -> dict[str, Any]:
    config = valid()
    config["users"][0]["user"].update(named(fields))
    return config


def refusal(config: Any, **options: Any) -> str:
    text = config if isinstance(config, str | bytes) else yaml.safe_dump(config)
    with pytest.raises(KubeconfigError) as caught:
        parse_kubeconfig(text, **options)
    chain = repr(caught.value) + repr(caught.value.__cause__)
    assert CANARY not in str(caught.value) + chain
    assert len(str(caught.value)) < 2000
    return str(caught.value)


# What is accepted


def test_inline_token_with_ca() -> None:
    access = parse_kubeconfig(yaml.safe_dump(valid()).encode())
    assert access.server == "https://harvester.example.com:6443"
    assert access.namespace == "ns"
    assert access.token == CANARY
    assert access.ca == CA.certificate.decode()
    assert not access.insecure


def test_json_is_yaml() -> None:
    assert parse_kubeconfig(json.dumps(valid())).token == CANARY


def test_client_certificate_and_wrapped_base64() -> None:
    config = valid()
    wrapped = base64.encodebytes(PAIR.certificate).decode()
    config["users"][0]["user"] = {"client-certificate-data": wrapped, "client-key-data": encoded(PAIR.key)}
    access = parse_kubeconfig(yaml.safe_dump(config))
    assert access.client_certificate == PAIR.certificate.decode()
    assert access.client_key == PAIR.key.decode()
    access.client(name="test")


def test_token_with_a_new_line_at_its_end() -> None:
    assert parse_kubeconfig(yaml.safe_dump(with_user(token=f"{CANARY}\n"))).token == CANARY


def test_ampersands_and_stars_that_are_no_anchors() -> None:
    config = valid()
    config["preferences"] = {"note": "a: &b and *c", "# &d": "- *e"}
    assert parse_kubeconfig(yaml.safe_dump(config)).token == CANARY


def test_proxy_and_server_name() -> None:
    access = parse_kubeconfig(yaml.safe_dump(with_cluster(proxy_url="http://proxy:3128", tls_server_name="inside")))
    connection = access.connection()
    assert (connection.proxy, connection.server_name) == ("http://proxy:3128", "inside")


def test_insecure_only_when_allowed() -> None:
    config = with_cluster(insecure_skip_tls_verify=True)
    assert "insecure-skip-tls-verify: refused" in refusal(config)
    tls = parse_kubeconfig(yaml.safe_dump(config), allow_insecure=True).connection().tls
    assert (tls.verify_mode, tls.check_hostname) == (ssl.CERT_NONE, False)
    assert parse_kubeconfig(yaml.safe_dump(valid())).connection().tls.verify_mode == ssl.CERT_REQUIRED


# What is refused, and by which name


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (with_user(exec={"command": "rm"}), "users[u].user.exec: refused, it would run a program"),
        (with_user(auth_provider={"name": "gcp"}), "users[u].user.auth-provider: refused"),
        (with_user(tokenFile="/etc/passwd"), "users[u].user.tokenFile: refused, it names a file"),
        (with_user(client_certificate="/etc/passwd"), "users[u].user.client-certificate: refused, it names a file"),
        (with_user(client_key="/etc/passwd"), "users[u].user.client-key: refused, it names a file"),
        (with_cluster(certificate_authority="/ca"), "clusters[c].cluster.certificate-authority: refused"),
        (with_user(username="root", password=CANARY), "users[u].user.password: API servers no longer take passwords"),
        (with_cluster(server="http://harvester"), "clusters[c].cluster.server: must be an https:// URL"),
        (with_cluster(server=f"https://u:{CANARY}@h"), "clusters[c].cluster.server: must be an https:// URL"),
        (with_cluster(server=f"https://h/?token={CANARY}"), "clusters[c].cluster.server: must be"),
        (with_cluster(server="https://h/#fragment"), "clusters[c].cluster.server: must be"),
        (with_cluster(server="https://[::1"), "clusters[c].cluster.server: must be"),
        (with_cluster(server="https://h:port"), "clusters[c].cluster.server: must be"),
        (with_cluster(server="https://h:99999"), "clusters[c].cluster.server: must be"),
        (with_cluster(server="https://"), "clusters[c].cluster.server: must be"),
        (with_cluster(server="file:///etc/passwd"), "clusters[c].cluster.server: must be"),
        (with_cluster(server=["https://h"]), "clusters[c].cluster.server: must be plain text"),
        (with_cluster(proxy_url="socks5://p"), "clusters[c].cluster.proxy-url: must be an http:// or https:// URL"),
        (with_cluster(proxy_url="http://["), "clusters[c].cluster.proxy-url: must be"),
        (with_cluster(tls_server_name={"a": 1}), "clusters[c].cluster.tls-server-name: must be plain text"),
        (with_user(token=4711), "users[u].user.token: must be plain text"),
        (with_user(token=[CANARY]), "users[u].user.token: must be plain text"),
        (with_user(token=f"{CANARY}\r\nX-Evil: 1"), "users[u].user.token: must be plain text on one line"),
        (with_user(token=f"{CANARY}\u00e4"), "users[u].user.token: must be plain text"),
        (with_user(token=""), "users[u].user: has no credentials"),
        (with_user(token=" "), "users[u].user: has no credentials"),
        (with_user(client_key_data=encoded(PAIR.key)), "client-certificate-data and client-key-data belong together"),
        (with_cluster(certificate_authority_data="%%%"), "certificate-authority-data: is not base64 of PEM text"),
        (with_cluster(certificate_authority_data=encoded(b"\xff\x00")), "certificate-authority-data: is not base64"),
        (with_cluster(certificate_authority_data=encoded(b"text")), "certificate-authority-data: is not base64 of PEM"),
        (with_cluster(certificate_authority_data=b"\xff"), "certificate-authority-data: must be plain text"),
        (
            with_user(client_certificate_data=encoded(PAIR.certificate), client_key_data=encoded(ENCRYPTED)),
            "client-key-data: is encrypted",
        ),
        (valid() | {"current-context": ""}, "current-context: required"),
        (valid() | {"current-context": {"token": CANARY}}, "contexts: the current context must name one"),
        (valid() | {"current-context": "elsewhere"}, "contexts: has no entry named 'elsewhere'"),
        (valid() | {"current-context": "x" * 100_000}, "contexts: has no entry named 'xxx"),
        (valid() | {"contexts": {}}, "contexts: has no entry named 'here'"),
        (valid() | {"contexts": [None, 1, "here"]}, "contexts: has no entry named 'here'"),
        (valid() | {"contexts": [{"name": "here"}]}, "contexts[here].context: must be an object with fields"),
        (valid() | {"contexts": [{"name": "here", "context": {}}]}, "clusters: the current context must name one"),
        (valid() | {"clusters": None}, "clusters: has no entry named 'c'"),
        (valid() | {"users": []}, "users: has no entry named 'u'"),
        (valid() | {"users": [{"name": "u", "user": [CANARY]}]}, "users[u].user: must be an object with fields"),
        ([valid()], "kubeconfig: must be a kubeconfig file"),
        ("", "kubeconfig: must be a kubeconfig file"),
        (CANARY, "kubeconfig: must be a kubeconfig file"),
        (b"\x00\xff\xfe" + CANARY.encode(), "kubeconfig: is not valid YAML"),
        (f"token: [{CANARY}", "kubeconfig: is not valid YAML"),
        (f"token: !!python/object/apply:os.system ['{CANARY}']", "kubeconfig: is not valid YAML"),
        (f"token: !!float {CANARY}", "kubeconfig: is not valid YAML"),
        (f"? [{CANARY}]\n: 1", "kubeconfig: is not valid YAML"),
        ("date: 2026-99-99", "kubeconfig: is not valid YAML"),
        ("number: " + "9" * 100_000, "kubeconfig: is not valid YAML"),
        ("[" * 100_000, "kubeconfig: is nested more than 30 levels deep"),
        ("a: " * 100_000, "kubeconfig: is not valid YAML"),
        ("a" * (1024 * 1024 + 1), "kubeconfig: larger than 1 MiB"),
    ],
)
def test_refusal_names_the_field_and_never_the_secret(config: Any, text: str) -> None:
    assert text in refusal(config)


@pytest.mark.parametrize("name", ["as", "as-uid", "as-groups", "as-user-extra"])
def test_impersonation_is_refused(name: str) -> None:
    config = valid()
    config["users"][0]["user"][name] = "root"
    assert f"users[u].user.{name}: impersonation is not supported" in refusal(config)


def test_all_problems_are_named_at_once() -> None:
    config = with_user(exec={}, tokenFile="/t")
    config["clusters"][0]["cluster"]["server"] = "http://h"
    text = refusal(config)
    assert all(name in text for name in ("server", "exec", "tokenFile"))


def anchored(text: str) -> str:
    return f"{text}\n{yaml.safe_dump(valid())}"


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1]\nb: *a",
        '"quoted": &a [1]',
        "b: [&a [1], *a]",
        "? &a x\n: 1",
        "a: 'x' # note\nb: &b 'x'",
        "a: !!seq &x [1]",
        "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n" + "\n".join(f"k{n}: *c" for n in range(100)),
    ],
)
def test_anchors_are_refused_wherever_they_stand(text: str) -> None:
    assert "anchors and aliases" in refusal(anchored(text))


def test_alias_bomb_is_refused_before_it_is_deleted_off() -> None:
    lines = ["l0: &l0 [x]"] + [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert "anchors and aliases" in refusal("\n".join([*lines, "current-context: *l29"]))


def test_names_from_the_kubeconfig_cannot_forge_lines_in_a_log() -> None:
    config = valid()
    for section in ("clusters", "users"):
        config[section][0]["name"] = "x\nlevel=error forged" + "y" * 10_000
    config["contexts"][0]["context"] = {"cluster": config["clusters"][0]["name"], "user": config["users"][0]["name"]}
    config["clusters"][0]["cluster"]["server"] = "http://h"
    assert "\n" not in refusal(config)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in items for place in places(child, (*path, key)))]


def replaced(config: Any, path: tuple[Any, ...], junk: Any) -> Any:
    if not path:
        return junk
    changed = copy.copy(config)
    changed[path[0]] = replaced(config[path[0]], path[1:], junk)
    return changed


@given(st.sampled_from(places(valid())), JUNK)
def test_anything_anywhere_is_accepted_or_a_kubeconfig_error(path: tuple[Any, ...], junk: Any) -> None:
    attempt(yaml.safe_dump(replaced(valid(), path, junk)))


@given(st.text() | st.binary())
@example("!!int ''")
@example("&")
def test_any_text_is_accepted_or_a_kubeconfig_error(raw: str | bytes) -> None:
    attempt(raw)


@given(
    st.sampled_from(["server", "tls-server-name", "proxy-url", "certificate-authority-data"]),
    st.text() | st.from_regex(r"https://[^/]{0,70}(/.*)?", fullmatch=True),
)
def test_what_was_accepted_makes_a_client_or_a_kubeconfig_error(name: str, value: str) -> None:
    attempt(yaml.safe_dump(with_cluster(**{name: value})))


def attempt(raw: str | bytes) -> None:
    try:
        access = parse_kubeconfig(raw)
        assert access.server.startswith("https://")
        client = access.client(name="test")
        assert access.server in repr(client)
    except KubeconfigError as error:
        text = str(error)
    else:
        text = repr(access)
    assert CANARY not in text


# What happens to it


def test_neither_access_nor_client_show_credentials() -> None:
    access = parse_kubeconfig(yaml.safe_dump(with_cluster(proxy_url=f"http://u:{CANARY}@proxy")))
    client = access.client(name="harvester")
    for text in (repr(access), str(access), repr(client), access.fingerprint):
        assert CANARY not in text
        assert "BEGIN" not in text
    assert "harvester.example.com" in repr(client)


async def test_unreachable_server_behind_a_proxy_with_a_password_is_reported_without_it() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    access = Kubeconfig(server="https://h:6443", token=CANARY, proxy_url=f"http://u:{CANARY}@127.0.0.1:{port}")
    client = access.client(name="harvester")
    with pytest.raises(Unreachable, match="407") as caught:
        await client.get(SECRETS, "s", "ns")
    assert CANARY not in repr(caught.value)
    await client.close()
    server.close()


@pytest.mark.parametrize("field", ["server", "ca", "token", "client_certificate", "client_key", "tls_server_name"])
def test_fingerprint_changes_with_every_credential(field: str) -> None:
    plain = Kubeconfig(server="https://h")
    assert Kubeconfig(**{"server": "https://h", field: "other"}).fingerprint != plain.fingerprint
    assert Kubeconfig(server="https://h", namespace="other").fingerprint == plain.fingerprint


def test_fingerprint_does_not_depend_on_how_the_kubeconfig_is_written() -> None:
    first = parse_kubeconfig(yaml.safe_dump(valid()))
    second = parse_kubeconfig("# note\n" + json.dumps(valid(), indent=3))
    assert first.fingerprint == second.fingerprint


def test_bad_certificates_are_a_kubeconfig_error_without_them() -> None:
    broken = f"-----BEGIN CERTIFICATE-----\n{CANARY}\n-----END CERTIFICATE-----\n"
    other_key = CA.client("other", []).key.decode()
    certificate = PAIR.certificate.decode()
    for access in (
        Kubeconfig(server="https://h", ca=broken),
        Kubeconfig(server="https://h", client_certificate=broken, client_key=PAIR.key.decode()),
        Kubeconfig(server="https://h", client_certificate=certificate, client_key=other_key),
    ):
        with pytest.raises(KubeconfigError, match="certificate data of https://h cannot be used") as caught:
            access.client(name="test")
        assert CANARY not in repr(caught.value)


def test_client_key_is_on_disk_only_while_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    real = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, *arguments: Any, **options: Any) -> None:
        modes.extend(folder.stat().st_mode & 0o777 for folder in tmp_path.iterdir())
        real(self, *arguments, **options)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    certificate, key = PAIR.certificate.decode(), PAIR.key.decode()
    Kubeconfig(server="https://h", client_certificate=certificate, client_key=key).client(name="test")
    assert modes == [0o700]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "context", "text"),
    [
        (None, "", "the file does not exist"),
        ("{ no yaml", "", "is not valid YAML"),
        ("", "", "must be a kubeconfig file"),
        ("contexts: [{name: here}]", "", "no current-context"),
        ("{contexts: 5, current-context: a}", "", "no context 'a'; its contexts are: none"),
        (yaml.safe_dump(valid()), "there", "no context 'there'; its contexts are: here"),
    ],
)
def test_own_kubeconfig_that_cannot_be_used_says_why(
    content: str | None, context: str, text: str, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    with pytest.raises(KubeconfigError, match=text) as caught:
        asyncio.run(own_configuration(str(file), context))
    assert str(file) in str(caught.value)
    assert CANARY not in str(caught.value)


def test_own_kubeconfig_may_name_files_and_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "token").write_text("from-a-file")
    config = valid()
    config["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")}
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    connection = asyncio.run(own_configuration(str(tmp_path / "config")))
    assert connection.server.startswith("https://harvester.example.com:6443")
    assert asyncio.run(authorization(connection)) == "Bearer from-a-file"
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert asyncio.run(own_configuration(str(tmp_path / "config"))).proxy == "http://proxy:3128"


def test_own_kubeconfig_with_inline_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    (tmp_path / "config").write_text(yaml.safe_dump(valid()))
    connection = asyncio.run(own_configuration(""))
    assert asyncio.run(authorization(connection)) == f"Bearer {CANARY}"
    assert CANARY not in repr(connection)


def test_service_account_of_the_pod_with_a_renewed_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caphv.runtime.clientconfig._SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "ca.crt").write_text(CA.certificate.decode())
    (tmp_path / "token").write_text("first\n")
    connection = asyncio.run(own_configuration(""))
    assert connection.server == "https://[fd00::1]:443"
    assert asyncio.run(authorization(connection)) == "Bearer first"
    (tmp_path / "token").write_text("second\n")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert asyncio.run(authorization(connection)) == "Bearer second"


def test_pod_without_its_service_account_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caphv.runtime.clientconfig._SERVICE_ACCOUNT", tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(KubeconfigError, match=r"service account.*ca\.crt"):
        asyncio.run(own_configuration(""))


async def authorization(connection: Connection) -> str:
    """The header that a client would send."""
    return await connection.authorization()


@pytest.mark.parametrize("item", ["- a\n", "? a\n", "a,\n"])
def test_many_values_are_refused_early(item: str) -> None:
    """100,000 values take two seconds; the number of events that is read bounds them, whatever the size."""
    text = ("a: [" if "," in item else "") + item * 200_000
    started = time.thread_time()
    with pytest.raises(KubeconfigError, match="more than 10,000 values"):
        parse_kubeconfig(text)
    assert time.thread_time() - started < 1


def test_certificates_are_bounded() -> None:
    with pytest.raises(KubeconfigError, match="has more than 256 KiB"):
        parse_kubeconfig(yaml.safe_dump(with_cluster(certificate_authority_data=encoded(b"-----BEGIN x\n" * 30_000))))
