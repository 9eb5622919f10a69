"""No secret leaves a cluster in a support bundle."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from operations.doctor.redact import REMOVED, redact, redact_text

JWT = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"Authorization: Bearer {JWT}", JWT),
        ("sent Bearer abcdef0123456789", "abcdef0123456789"),
        (f"key is {PEM} there", "MIIEow"),
        ("proxy http://user:hunter22@proxy:3128 used", "hunter22"),
        ("GET /x?token=abcdef123&watch=1", "abcdef123"),
        ("password: correct-horse", "correct-horse"),
        ("token kubeconfig-u-abc12:" + "x1" * 25, "x1" * 25),
        (f"join K10{'a' * 64}::server:s3cret", "s3cret"),
        ("remote https://glpat-abcdefghijklmnopqrst", "glpat-abcdefghijklmnopqrst"),
        ('{"auths":{"r":{"password":"hunter2hunter"}}}', "hunter2hunter"),
        ('{"auths":{"r":{"auth":"dXNlcjpwYXNz"}}}', "dXNlcjpwYXNz"),
        (r'"{\"password\": \"hunter 22\"}"', "22"),
        ("--etcd-s3-secret-key=wJalrXUtnFEMI", "wJalrXUtnFEMI"),
        ('password: "hunter2 hunter"', "hunter"),
        ("password: 'pw'", "pw"),
        (r'{"password":"hunter\"s hare"}', "hare"),
        ('"token": "abcdef123456"', "abcdef123456"),
        ('token="abcdefghi"', "abcdefghi"),
        ("kubeadm join --token abcdefghijkl", "abcdefghijkl"),
        ("set secret-key=abcdefgh", "abcdefgh"),
        ("apiKey=abcdefgh", "abcdefgh"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("""{'Authorization': 'Basic dXNlcjpwYXNz'}""", "dXNlcjpwYXNz"),
        ("joined with abcdef.0123456789abcdef.", "0123456789abcdef"),
        ("clone https://ABCDEFTOKEN@example.com/x", "ABCDEFTOKEN"),
        ("clone https://user:pa/ss@example.com/x", "pa/ss"),
        ("clone https://user:p@ss@word@example.com/x", "word"),
        ("password=Ab,9xkQ2mw7", "9xkQ2mw7"),
        ("password=abcdefg,hijkl", "hijkl"),
        ("pwd=admin", "admin"),
        ("password: admin", "admin"),
        ("helm install --password=a,bc", "a,bc"),
        ("helm install --password=ab}cdefgh", "}cdefgh"),
        *((f"{name}{'x' * 5000}secret-1", "secret-1") for name in ("token=", "token: ", "--token ")),
        ('args: ["--etcd-s3-secret-key", "wJ al"]', "wJ al"),
        (r'"{\"args\": [\"--token\", \"hunter 2\"]}"', "hunter 2"),
        ("- --token\n- 'hunter 2'\n- --v=2", "hunter 2"),
    ],
)
def test_texts_lose_what_looks_like_a_credential(text: str, secret: str) -> None:
    assert secret not in redact_text(text)
    assert REMOVED in redact_text(text)


@pytest.mark.parametrize(
    "value",
    [
        {"spec": {"guestConfig": {"userData": "secret-1"}}},
        {"spec": {"files": [{"path": "/etc/x", "content": "secret-1"}]}},
        {"env": [{"name": "GIT_PASSWORD", "value": "secret-1"}]},
        {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "secret-1"}}},
        {"metadata": {"managedFields": [{"x": "secret-1"}]}},
        {"users": [{"user": {"token": "secret-1"}}]},
        {"variables": [{"name": "preBootCommands", "value": ["echo secret-1"]}]},
        {"extraEnv": {"AWS_SECRET_ACCESS_KEY": "secret-1", "OIDC_CLIENT_SECRET": "secret-1"}},
        {"metadata": {"annotations": {"controlplane.cluster.x-k8s.io/kubeadm-cluster-configuration": "secret-1"}}},
        {"metadata": {"annotations": {"objectset.rio.cattle.io/applied": "secret-1"}}},
    ],
)
def test_fields_that_hold_credentials_are_removed(value: Any) -> None:
    assert "secret-1" not in str(redact(value))


@pytest.mark.parametrize(
    "variable",
    ["ab secret", {"value": "ab secret"}, {"name": 1, "value": "ab secret"}, {"name": "mine", "value": "ab secret"}],
)
def test_a_variable_that_is_not_known_keeps_no_text(variable: Any) -> None:
    assert "ab secret" not in str(redact({"variables": [variable]}))
    assert "ab secret" in str(redact({"conditions": [variable]}))


@pytest.mark.parametrize(
    "name",
    [
        *("access-key", "secret-key", "api-key", "encryption-key", "secretKey", "clientSecret", "passphrase"),
        *("basicAuth", "client-key-data", "etcd-s3-secret-key", "SECRET_KEY", "PASSPHRASE", "MY_PASS"),
        *("vmUserData", "nodeCloudInit", "extraCloudConfig"),
    ],
)
def test_a_name_that_ends_like_a_key_hides_its_value(name: str) -> None:
    assert redact({name: "secret-1"}) == {name: REMOVED}
    assert redact({"name": name, "value": "secret-1"}) == {"name": name, "value": REMOVED}
    reference = {name: {"name": "a", "key": "b"}, "variables": [{"name": name, "value": {"name": "a"}}]}
    assert redact(reference) == reference


@pytest.mark.parametrize(
    "text",
    [
        "Secret team/identity: not found; create it",
        "pull oci://registry:5000/charts/x@sha256:abcdef0123456789 from https://10.0.0.1:6443/api",
        "cannot clone ssh://git@example.com/team/repo",
        "bypass: disabled; compass=northern",
        "spec.secretName: reference-a, tokenSecretRef: reference-b",
        "the token: not set; use --token --wait",
    ],
)
def test_texts_without_credentials_stay(text: str) -> None:
    assert redact_text(text) == text


def test_a_credential_is_replaced_once_and_its_name_stays() -> None:
    once = redact_text('url https://a:b@h token=abcdefgh "password": "x y", Authorization: Basic dXNlcjpwYXNz')
    assert once == ('url https://(removed)@h token=(removed) "password": "(removed)", Authorization: Basic (removed)')
    assert redact_text(once) == once


KUBEADM = {
    "preKubeadmCommands": ["curl -u admin:secret-1 https://example.com"],
    "postKubeadmCommands": ["echo secret-1"],
    "bootCommands": ["echo secret-1"],
    "files": [{"path": "/etc/x", "content": "secret-1"}],
    "users": [{"name": "admin", "passwd": "secret-1"}],
    "ignition": {"containerLinuxConfig": {"additionalConfig": "secret-1"}},
    "initConfiguration": {"bootstrapTokens": [{"token": "secret-1"}], "certificateKey": "secret-1"},
    "joinConfiguration": {"discovery": {"tlsBootstrapToken": "secret-1"}},
}
RKE2 = {
    "preRKE2Commands": ["echo secret-1"],
    "postRKE2Commands": ["echo secret-1"],
    "agentConfig": {"additionalUserData": {"config": "runcmd: [secret-1]", "data": {"runcmd": "secret-1"}}},
    "privateRegistriesConfig": {"configs": {"example.com": {"auth": {"username": "u", "password": "secret-1"}}}},
    "serverConfig": {"kubeAPIServer": {"extraEnv": {"API_TOKEN": "secret-1"}}},
}
K3S = {
    "preK3sCommands": ["echo secret-1"],
    "postK3sCommands": ["echo secret-1"],
    "files": [{"path": "/etc/rancher/k3s/registries.yaml", "content": "secret-1"}],
    "agentConfig": {"agentToken": "secret-1"},
}
TALOS = {
    "init": {"generateType": "none", "data": "secret-1"},
    "controlplane": {
        "configPatches": [{"op": "add", "path": "/machine/files", "value": "secret-1"}],
        "strategicPatches": ["machine: {registries: secret-1}"],
    },
}


RANCHER = {
    "machineGlobalConfig": {"etcd-s3-thing": "secret-1"},
    "machineSelectorConfig": [{"config": {"kubelet-arg": ["secret-1"]}}],
    "chartValues": {"rke2-cilium": {"x": "secret-1"}},
    "additionalManifest": "---\nkind: Secret\nstringData:\n  smtp: secret-1\n",
}


@pytest.mark.parametrize(
    "spec",
    [{"kubeadmConfigSpec": KUBEADM}, RKE2, {"kthreesConfigSpec": K3S}, {"controlPlaneConfig": TALOS}, RANCHER],
    ids=["kubeadm", "rke2", "k3s", "talos", "rancher"],
)
def test_node_configuration_of_each_distribution_loses_its_secrets(spec: Any) -> None:
    whole = {"spec": {"replicas": 3, **spec}, "status": {"talosConfig": "secret-1"}}
    assert "secret-1" not in str(redact(whole))
    assert redact(whole)["spec"]["replicas"] == 3


def test_what_helps_stays() -> None:
    value = {
        "metadata": {"name": "shop", "annotations": {"caphv.io/owner": "HarvesterMachine/team/m"}},
        "spec": {
            "identitySecret": {"name": "identity", "namespace": "team"},
            "variables": [{"name": "identitySecretName", "value": "identity"}, {"name": "sshKeyPair", "value": "a/b"}],
            "cloudInitNoCloud": {"secretRef": {"name": "m-cloud-init"}},
            "content": {"name": "reference"},
            "auth": {"secretRef": {"name": "registry"}},
            "cloudConfig": {"secretName": "c", "secretKey": "config"},
            "env": [{"name": "SECRET_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}}],
            "files": [{"path": "/etc/x", "contentFrom": {"secret": {"name": "file", "key": "content"}}}],
            "users": [{"name": "admin", "lockPassword": True, "passwdFrom": {"secret": {"name": "u", "key": "p"}}}],
            "agentConfig": {"nodeLabels": ["a=b"]},
        },
        "status": {"conditions": [{"message": "identity Secret team/identity: not found; create it"}]},
    }
    assert redact(value) == value


@pytest.mark.parametrize(
    "value",
    [
        {"password": "", "token": None, "auth": {}},
        {"metadata": {"annotations": None}},
        {"annotations": ["a", "b"]},
        {"variables": {"replicas": "many words"}},
        {"variables": ["true", {"name": 1, "value": "v1.36.2"}]},
        {"agentConfig": {"mode": "enabled", "mtu": "1450", "ports": ["80", "443"]}},
    ],
)
def test_what_cannot_be_a_secret_stays(value: Any) -> None:
    assert redact(value) == value


@pytest.mark.parametrize("name", ["dbPassword", "runcmd"])
def test_a_variable_with_the_name_of_a_secret_loses_even_a_number(name: str) -> None:
    assert redact({"variables": [{"name": name, "value": "1234"}]}) == {"variables": [{"name": name, "value": REMOVED}]}
    assert redact({"variables": [{"name": name, "value": ""}]}) == {"variables": [{"name": name, "value": ""}]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("--v=2", "--v=2"),
        ("--cipher=TLS_A", f"--cipher={REMOVED}"),
        ("cipher=TLS_A", REMOVED),
        ("--a b=TLS_A", REMOVED),
        (f"--{'a' * 200}=TLS_A", REMOVED),
        ("TLS_A", REMOVED),
    ],
)
def test_of_an_argument_of_a_node_the_name_stays(value: str, expected: str) -> None:
    assert redact({"agentConfig": {"arguments": value}}) == {"agentConfig": {"arguments": expected}}


def test_texts_and_names_of_unusual_length_are_removed() -> None:
    longest = "a " * (64 * 1024)
    assert redact({"message": longest}) == {"message": longest}
    assert redact({"message": f"{longest}a"}) == {"message": REMOVED}
    assert redact({"a" * 512: 1}) == {"a" * 512: 1}
    assert redact({"a" * 513: 1}) == {REMOVED: 1}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"data": {"a": "many words"}, "x": 1}', '{"data": "(removed)", "x": 1}'),
        ('  [{"runcmd": ["many words"]}]', '[{"runcmd": "(removed)"}]'),
        ("kind: Secret\ndata:\n  a: many words\n", "kind: Secret\ndata: (removed)\n"),
        ("---\nkind: Secret\ndata:\n  a: many words\n", "kind: Secret\ndata: (removed)\n"),
        ("a: 1\n---\nkind: Secret\ndata:\n  a: many words\n", "a: 1\n---\nkind: Secret\ndata: (removed)\n"),
    ],
)
def test_text_that_is_data_is_reduced_as_data(text: str, expected: str) -> None:
    assert redact({"message": text}) == {"message": expected}


def test_only_annotations_of_known_domains_keep_their_values() -> None:
    annotations = {"caphv.io/park": "true", "example.com/x": "many words", "evilcaphv.io/x": "many words"}
    expected = {"caphv.io/park": "true", "example.com/x": REMOVED, "evilcaphv.io/x": REMOVED}
    assert redact({"annotations": annotations}) == {"annotations": expected}


def test_scripts_of_nodes_are_removed_wherever_they_are() -> None:
    for text in ("#cloud-config\nhostname: a", "## template: jinja\nhostname: a", "#!/bin/sh\nhostname a"):
        assert redact({"message": text}) == {"message": REMOVED}


@pytest.mark.parametrize(
    "text", ["state: ready", "first line\nsecond line", '{"zone": "Zürich"}', "zone: Zürich\nb: 1\n"]
)
def test_texts_without_secrets_stay_as_they_are_written(text: str) -> None:
    assert redact({"message": text}) == {"message": text}


def test_a_name_of_any_length_hides_its_value() -> None:
    name = f"{'a' * 300}-password"
    assert "secret-1" not in str(redact({name: "secret-1"}))
    assert redact([{"name": name, "value": "secret-1"}]) == [{"name": name, "value": REMOVED}]


@pytest.mark.parametrize("items", [[1, "a"], ["--token", 5], ["--token", None], [None, "a"], [f"--{'a' * 200}", "a"]])
def test_items_that_are_no_argument_with_a_text_stay(items: list[Any]) -> None:
    assert redact({"command": items}) == {"command": items}


BEGIN, END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"
LINES = "\nMIIEowIBAAKCAQEA\nMIIEowIBAAKCAQEB"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"a {BEGIN}{END} b", f"a {REMOVED} b"),
        (f"{END} a {BEGIN}x{END} b", f"{END} a {REMOVED} b"),
        (f"a {BEGIN}{LINES} b", f"a {REMOVED} b"),
        (f"a {BEGIN}{LINES} b {BEGIN}x y{END} c", f"a {REMOVED} b {REMOVED} c"),
        (f"a {BEGIN} b", f"a {REMOVED} b"),
        (f"a {BEGIN}x{END} b {BEGIN}y{END} c", f"a {REMOVED} b {REMOVED} c"),
    ],
)
def test_a_private_key_is_removed_up_to_its_end_or_its_last_line(text: str, expected: str) -> None:
    assert redact_text(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"kind": "Secret", "type": "a", "data": {"name": "b"}}, {"kind": "Secret", "type": "a", "data": REMOVED}),
        ({"kind": "ConfigMap", "data": {"name": "b"}}, None),
        ({"token": {"name": "a", "namespace": "b", "key": "c"}}, None),
        ({"token": {"name": "a", "value": "b"}}, {"token": REMOVED}),
        ({"token": {"namespace": "a"}}, {"token": REMOVED}),
        ({"auth": {"secretName": "a"}}, None),
        ({"auth": {"secretName": "a", "secretRef": "b", "secretKeyRef": "c", "remoteRef": "d"}}, None),
        ({"env": [{"name": "runcmd", "value": "b"}]}, {"env": [{"name": "runcmd", "value": REMOVED}]}),
        ({"auth": {"secretName": "a", "token": "b"}}, {"auth": REMOVED}),
        ({"secretName": "a", "secretKey": "b"}, None),
        ({"secretKey": "b"}, {"secretKey": REMOVED}),
        ({"secretRef": "a", "apiKey": "b"}, {"secretRef": "a", "apiKey": REMOVED}),
        ({"name": 1, "value": "b"}, None),
        ({"myPassword": 5, "other": 5}, None),
        ({"token": 5}, {"token": REMOVED}),
    ],
)
def test_a_reference_to_a_secret_stays_and_a_secret_does_not(value: Any, expected: Any) -> None:
    assert redact(value) == (value if expected is None else expected)


def test_yaml_with_aliases_is_searched_as_text() -> None:
    text = "first: &x\n  password: hunter22\nsecond: *x\n"
    assert redact({"message": text}) == {"message": text.replace("hunter22", REMOVED)}


def test_a_certificate_hides_the_key_next_to_it() -> None:
    assert redact({"key": "secret-1", "crt": "c"}) == {"key": REMOVED, "crt": "c"}
    assert redact({"key": "a", "effect": "NoSchedule"}) == {"key": "a", "effect": "NoSchedule"}


# A secret that nothing but its place gives away.
SECRETS = st.text("GHJKLMNPQRSTVWXYZ ", min_size=4, max_size=30).map(lambda text: f"Q{text}Q")
KEYS = st.sampled_from(["password", "token", "apiKey", "etcd-s3-secret-key", "CLIENT_SECRET", "passphrase"])


@given(KEYS, SECRETS, st.lists(st.sampled_from(["run", "--v=2", "--tls-min-version", "1.3"]), max_size=3))
def test_value_after_its_argument_is_removed(key: str, secret: str, others: list[str]) -> None:
    command = [*others, f"--{key}", secret, *others]
    expected = [*others, f"--{key}", REMOVED, *others]
    assert redact({"command": command}) == {"command": expected}
    for text in (json.dumps(command), repr(command), yaml.safe_dump(command, width=200)):
        assert secret not in redact_text(text)
        assert yaml.safe_load(redact_text(text)) == expected


def test_argument_without_a_value_hides_no_other() -> None:
    command = ["--rotate-token", "--v=2", "--token-ttl", "24h", "token", "list"]
    assert redact(command) == command
    assert redact_text(json.dumps(command)) == json.dumps(command)
    assert redact_text(yaml.safe_dump(command)) == yaml.safe_dump(command)


@given(
    KEYS | st.sampled_from(["userData", "content", "preKubeadmCommands"]),
    st.lists(SECRETS | st.just(""), min_size=1, max_size=4),
    st.sampled_from(["|", "|-", ">", ">-", "|+", "|  # why"]),
    st.sampled_from(["", "  ", "- ", "  - "]),
    st.integers(1, 6),
)
def test_block_scalar_of_a_secret_is_removed_and_what_follows_stays(
    key: str, lines: list[str], style: str, prefix: str, deeper: int
) -> None:
    column = len(prefix)
    block = "".join(f"{' ' * (column + deeper)}{line}\n" if line else "\n" for line in lines)
    text = f"{prefix}{key}: {style}\n{block}{' ' * column}replicas: 3\n"
    once = redact_text(text)
    assert not any(line in once for line in lines if line)
    found = yaml.safe_load(once)
    fields = found[0] if isinstance(found, list) else found
    assert fields["replicas"] == 3
    assert fields[key].strip() == REMOVED
    assert redact_text(once) == once


def test_other_block_scalars_stay() -> None:
    text = "message: |\n  first\n\n  second\ntokenFile: >\n  /etc/x\nsteps | token: |\n"
    assert redact_text(text) == text
