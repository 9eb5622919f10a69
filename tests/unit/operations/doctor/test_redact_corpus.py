"""Two hundred secrets, planted in all shapes that users have put into clusters: none leaves in a support bundle."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from operations.doctor.redact import redact, redact_text

pytestmark = pytest.mark.unit

SECRET = "Zq8vK2mXw7RtLp4NcHd9"
PEM_BODY = "MIIEowIBAAKCAQEA" + SECRET
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{PEM_BODY}\n-----END RSA PRIVATE KEY-----"
CUT_PEM = f"-----BEGIN EC PRIVATE KEY-----\n{PEM_BODY}"
ENCODED_PEM = base64.b64encode(PEM.encode()).decode()

NAMES = (
    *("password", "passwd", "pwd", "token", "clientSecret", "client_secret", "signingSecret", "webhook-secret"),
    *("preSharedKey", "pre-shared-key", "psk", "PGPASS", "PGPASSWORD", "passwordHash", "apiKey", "api_key"),
    *("secretKey", "accessKey", "AWS_SECRET_ACCESS_KEY", "encryptionKey", "passphrase", "basicAuth", "cookie"),
    *("privateKey", "certificateKey", "etcd-s3-secret-key", "sharedKey", "accountKey", "hostKey", "masterKey"),
)
COMMANDS = (
    f"curl -u admin:{SECRET} https://example.com",
    f"curl --user admin:{SECRET} https://example.com",
    f"curl -H 'Authorization: Bearer {SECRET}' https://example.com",
    f"curl -H 'Authorization: Basic {SECRET}' https://example.com",
    f"curl -b 'Cookie: session={SECRET}' https://example.com",
    f"wget https://admin:{SECRET}@example.com/x",
    f"az copy https://store.example.com/x?sv=2026&sig={SECRET}",
    f"get https://s3.example.com/x?X-Amz-Signature={SECRET}&y=1",
    f"sshpass -p {SECRET} ssh node",
    f"sshpass -p '{SECRET} {SECRET}' ssh node",
    f"kubeadm join --token {SECRET}",
    f"helm --password={SECRET} install",
    f"export DB_PASSWORD={SECRET}",
    f"usermod -p $6${SECRET}${SECRET} root",
    f"K10{'a' * 64}::server:{SECRET}",
    f"wg set wg0 private-key {base64.b64encode((SECRET * 2)[:32].encode()).decode()}",
    PEM,
    CUT_PEM,
    f"echo {ENCODED_PEM} | base64 -d",
)


def in_objects() -> Iterator[tuple[str, Any]]:
    for name in NAMES:
        yield f"field-{name}", {"spec": {"x": {name: SECRET}}}
        yield f"environment-{name}", {"spec": {"env": [{"name": name, "value": SECRET}]}}
        yield f"json-{name}", {"spec": {"config": json.dumps({"a": [{name: SECRET}]})}}
        yield f"yaml-{name}", {"spec": {"config": yaml.safe_dump({"a": {"b": [{name: f"{SECRET} x"}]}, "c": 1})}}

    for name in ("custom", "registryLogin", "addons"):
        yield f"variable-{name}", {"topology": {"variables": [{"name": name, "value": SECRET}]}}
        yield f"nested-variable-{name}", {"topology": {"variables": [{"name": name, "value": {"a": [SECRET]}}]}}
        overrides = {"variables": {"overrides": [{"name": name, "value": SECRET}]}}
        yield f"overridden-variable-{name}", {"topology": {"workers": {"machineDeployments": [overrides]}}}

    secret = {"apiVersion": "v1", "kind": "Secret", "data": {"x": SECRET}, "stringData": {"y": SECRET}}
    for name in ("example.com/saved", "caphv.io/saved"):
        annotations = {name: json.dumps(secret)}
        yield f"secret-in-annotation-{name}", {"metadata": {"annotations": annotations}}
        yield f"yaml-in-annotation-{name}", {"metadata": {"annotations": {name: yaml.safe_dump(secret)}}}
    yield "annotation-of-others", {"metadata": {"annotations": {"example.com/note": SECRET}}}

    pair = {"crt": "LS0t", "key": base64.b64encode(SECRET.encode()).decode()}
    for name in ("ca", "aggregatorCA", "etcd"):
        yield f"talos-{name}", {"spec": {"x": {name: {**pair, "key": SECRET}}}}

    for field in ("ssh_keys", "chpasswd", "write_files", "runcmd", "users"):
        value = {"rsa_private": SECRET, "list": f"root:{SECRET}", "content": SECRET, "passwd": SECRET}
        yield f"cloud-init-{field}", {"userData": yaml.safe_dump({field: value})}
        yield f"cloud-init-in-a-text-{field}", {"x": "#cloud-config\n" + yaml.safe_dump({field: value})}

    settings = {
        "extraArgs": [f"--x-{SECRET}", f"--oidc-thing={SECRET}", SECRET],
        "extraEnv": {"ANYTHING": SECRET},
        "extraMounts": {"a": SECRET},
        "unknownField": SECRET,
    }
    for field in ("kubeadmConfigSpec", "agentConfig", "serverConfig", "kthreesConfigSpec", "controlPlaneConfig"):
        yield f"settings-{field}", {"spec": {field: {"x": settings, **settings}}}

    for number, command in enumerate(COMMANDS):
        yield f"message-{number}", {"status": {"conditions": [{"message": command}]}}
        yield f"command-{number}", {"spec": {"x": {"preKubeadmCommands": [command]}}}
        yield f"known-annotation-{number}", {"metadata": {"annotations": {"caphv.io/x": command}}}

    for argument in ("--token", "--password", "-u", "--user", "--etcd-s3-secret-key", "--client-secret"):
        yield f"argument{argument}", {"command": ["run", argument, f"admin:{SECRET}", "--v=2"]}


def in_texts() -> Iterator[tuple[str, str]]:
    for name in NAMES:
        yield f"log-{name}", f"2026-11-24 level=info {name}={SECRET} other=1"
        yield f"json-log-{name}", json.dumps({"level": "info", "message": f'{{"{name}": "{SECRET}"}}'})
    for number, command in enumerate(COMMANDS):
        yield f"log-{number}", f"running: {command}"


OBJECTS, TEXTS = list(in_objects()), list(in_texts())


@pytest.mark.parametrize("value", [value for _, value in OBJECTS], ids=[name for name, _ in OBJECTS])
def test_objects_lose_it(value: Any) -> None:
    reduced = json.dumps(redact(value))
    assert SECRET not in reduced
    assert base64.b64encode(SECRET.encode()).decode().rstrip("=")[:-2] not in reduced


@pytest.mark.parametrize("text", [text for _, text in TEXTS], ids=[name for name, _ in TEXTS])
def test_texts_lose_it(text: str) -> None:
    reduced = redact_text(text)
    assert SECRET not in reduced
    assert ENCODED_PEM[-30:] not in reduced


def test_the_corpus_has_two_hundred_secrets() -> None:
    assert len(OBJECTS) + len(TEXTS) >= 200


def test_what_support_needs_stays() -> None:
    value = {
        "metadata": {
            "name": "shop",
            "annotations": {
                "caphv.io/owner": "HarvesterMachine/team/m",
                "harvesterhci.io/volumeClaimTemplates": json.dumps([{"metadata": {"name": "m-disk-0"}}]),
            },
        },
        "spec": {
            "topology": {
                "variables": [
                    {"name": "image", "value": "default/sles-15"},
                    {"name": "custom", "value": {"replicas": 3, "enabled": True, "version": "v1.36.2"}},
                ]
            },
            "agentConfig": {"nodeLabels": ["zone=a"], "kubelet": {"extraArgs": ["--v=2", "--max-pods=110"]}},
            "files": [{"path": "/etc/x", "permissions": "0600", "contentFrom": {"secret": {"name": "a", "key": "b"}}}],
        },
        "status": {"conditions": [{"type": "Ready", "message": "pull registry:5000/x@sha256:0123456789abcdef failed"}]},
    }
    assert redact(value) == value


@pytest.mark.parametrize("unit", ["password: ", "a", "://", "-----BEGIN RSA PRIVATE KEY-----\n", "--", "\\", "- \n"])
def test_long_texts_take_linear_time(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))
    started = time.thread_time()
    redact_text(text)
    assert time.thread_time() - started < 8
