"""Snapshots of etcd as CAPRKE2 configures servers, read in its v0.25.0 `pkg/rke2/config.go`."""

from __future__ import annotations

import pytest

from caphv.api.object import Obj
from sandbox.capi.nodeconfig import Node, Role, UnusableConfigError, etcd_snapshots, rke2_config, snapshot_secrets

pytestmark = pytest.mark.unit

CREDENTIALS = {"aws_access_key_id": b"AKIA1", "aws_secret_access_key": b"secret"}
SECRETS = {"team/s3": CREDENTIALS, "team/ca": {"ca.pem": b"PEM"}}


def server(**s3: object) -> Obj:
    store = {"endpoint": "s3.example.com", "bucket": "etcd", "s3CredentialSecret": {"name": "s3", "namespace": "team"}}
    return {"etcd": {"backupConfig": {"retention": "3", "scheduleCron": "@daily", "s3": {**store, **s3}}}}


def test_servers_get_the_values_of_the_secrets_and_agents_do_not() -> None:
    spec = server(endpointCAsecret={"name": "ca", "namespace": "team"}, enforceSslVerify=True)
    assert snapshot_secrets(spec) == [("team", "s3"), ("team", "ca")]
    snapshots, (file,) = etcd_snapshots(spec, SECRETS)
    assert file == {"path": "/etc/rancher/rke2/etcd-s3-ca.crt", "content": "PEM"}

    def config(role: Role) -> Obj:
        found = rke2_config(Node(role, "v1.36.2+rke2r1", "e:6443", server=spec, snapshots=snapshots))
        return {name: value for name, value in found.items() if name.startswith("etcd")}

    assert config(Role.SERVER) == {
        "etcd-snapshot-retention": "3",
        "etcd-snapshot-schedule-cron": "@daily",
        "etcd-s3": True,
        "etcd-s3-bucket": "etcd",
        "etcd-s3-endpoint": "s3.example.com",
        "etcd-s3-access-key": "AKIA1",
        "etcd-s3-secret-key": "secret",
        "etcd-s3-endpoint-ca": file["path"],
    }
    assert config(Role.WORKER) == {}


def test_a_certificate_is_verified_on_request_only() -> None:
    assert etcd_snapshots(server(), SECRETS)[0]["etcd-s3-skip-ssl-verify"] is True
    assert not any(etcd_snapshots({}, {})[0].values())


@pytest.mark.parametrize("data", [None, {}, {"aws_access_key_id": b"AKIA1"}])
def test_there_is_no_data_without_credentials(data: dict[str, bytes] | None) -> None:
    with pytest.raises(UnusableConfigError):
        etcd_snapshots(server(), {} if data is None else {"team/s3": data})
