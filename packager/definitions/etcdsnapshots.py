"""Snapshots of etcd without a ClusterClass, in the same way as patches of the shipped classes.

All functions take `spec.etcdSnapshots` of a definition, which may be empty. Credentials of the S3
store are in a Secret that is only named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from caphv.api.object import Key, Obj
from packager.rendering import yaml

# K3s's provider has no field for snapshots, and RKE2's has none for the retention in the store.
FILES = {
    "rke2": "/etc/rancher/rke2/config.yaml.d/55-etcd-snapshots.yaml",
    "k3s": "/etc/rancher/k3s/config.yaml.d/55-etcd-snapshots.yaml",
}
_K3S_FOLDER = "/etc/rancher/k3s/etcd-s3"
_ACCESS_KEY = "aws_access_key_id"
_SECRET_KEY = "aws_secret_access_key"  # noqa: S105 - a name, not a secret
_CA = "ca.pem"
# A Secret becomes a file for each key, but K3s reads its configuration as YAML.
_K3S_CREDENTIALS = (
    f"(umask 077 && cd {_K3S_FOLDER} && for key in access secret; do "
    """printf "etcd-s3-$key-key: '%s'\\n" "$(sed "s/'/''/g" "$key-key")"; """
    "done > /etc/rancher/k3s/config.yaml.d/56-etcd-s3.yaml)"
)


def rke2_etcd(snapshots: Mapping[str, Any], cluster: Key) -> Obj:
    """Return `serverConfig.etcd` of an RKE2ControlPlane; empty without settings.

    :param snapshots: `spec.etcdSnapshots` of a definition
    :param cluster: the cluster, whose namespace has the Secrets
    """
    if not snapshots:
        return {}

    config: Obj = {}
    if "schedule" in snapshots:
        config["scheduleCron"] = snapshots["schedule"]
    if "retention" in snapshots:
        config["retention"] = str(snapshots["retention"])
    if s3 := snapshots.get("s3"):
        store = _store(s3)
        store["s3CredentialSecret"] = _reference(s3["credentialsSecretName"], cluster)
        if "caSecretName" in s3:
            store["endpointCAsecret"] = _reference(s3["caSecretName"], cluster)
        # Without the field, the provider accepts any certificate.
        store["enforceSslVerify"] = not s3.get("insecureSkipVerify", False)
        config["s3"] = store
    return {"backupConfig": config}


def server_files(distribution: str, snapshots: Mapping[str, Any]) -> Sequence[Obj]:
    """Return the files of servers; K3s reads all settings from files."""
    if not snapshots or distribution not in FILES:
        return []

    s3 = snapshots.get("s3") or {}
    config: Obj = {}
    if distribution == "k3s":
        config = _k3s_config(snapshots, s3)
    if s3:
        config["etcd-s3-retention"] = s3["retention"]

    files: list[Obj] = []
    if config:
        files.append({**_file(FILES[distribution]), "content": yaml.dump(config)})
    if distribution == "k3s" and s3:
        files += [
            _file_from("access-key", s3["credentialsSecretName"], _ACCESS_KEY),
            _file_from("secret-key", s3["credentialsSecretName"], _SECRET_KEY),
        ]
        if "caSecretName" in s3:
            files.append(_file_from(_CA, s3["caSecretName"], _CA))
    return files


def k3s_commands(snapshots: Mapping[str, Any]) -> Sequence[str]:
    """Return the commands that a server runs before K3s starts."""
    return [_K3S_CREDENTIALS] if snapshots.get("s3") else []


def _k3s_config(snapshots: Mapping[str, Any], s3: Mapping[str, Any]) -> Obj:
    config: Obj = {}
    if "schedule" in snapshots:
        config["etcd-snapshot-schedule-cron"] = snapshots["schedule"]
    if "retention" in snapshots:
        config["etcd-snapshot-retention"] = snapshots["retention"]
    if not s3:
        return config

    config["etcd-s3"] = True
    config |= {f"etcd-s3-{name}": value for name, value in _store(s3).items()}
    if "caSecretName" in s3:
        config["etcd-s3-endpoint-ca"] = f"{_K3S_FOLDER}/{_CA}"
    if s3.get("insecureSkipVerify"):
        config["etcd-s3-skip-ssl-verify"] = True
    return config


def _store(s3: Mapping[str, Any]) -> Obj:
    """Return the fields that have the same names in both distributions."""
    return {name: s3[name] for name in ("endpoint", "bucket", "folder", "region") if name in s3}


def _reference(name: str, cluster: Key) -> Obj:
    return {"name": name, "namespace": cluster.namespace}


def _file(path: str) -> Obj:
    return {"path": path, "owner": "root:root", "permissions": "0600"}


def _file_from(name: str, secret: str, key: str) -> Obj:
    return {
        **_file(f"{_K3S_FOLDER}/{name}"),
        "contentFrom": {"secret": {"name": secret, "key": key}},
    }
