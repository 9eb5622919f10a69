"""Guests and machines read the data of the real bootstrap provider of kubeadm."""

from __future__ import annotations

import re

import pytest
import yaml

from reconciler.machine.cloudinit import userdata
from sandbox.guest.cloudinit import parse_user_data
from sandbox.guest.kubeadm import CONTROL_PLANE_TAINT, PKI, hash_of, kubeadm_of
from sandbox.processes.pki import CA
from tests.support.observed import Record, records

pytestmark = pytest.mark.unit

RECORDS = records("kubernetes-sigs-cluster-api/kubeadm-userdata.yaml")
AUTHORITIES = {name: CA.create(name) for name in ("ca", "etcd/ca", "front-proxy-ca")}
CONTENTS = {
    f"{PKI}/{name}.{end}": content.decode()
    for name, ca in AUTHORITIES.items()
    for end, content in (("crt", ca.certificate), ("key", ca.pair.key))
}
HASH, TOKEN = hash_of(AUTHORITIES["ca"].certificate), "abcdef.0123456789abcdef"
SECRET = re.compile(r"path: (?P<path>\S+)\n(?P<between>(?:.*\n){3})(?P<indent> +)PEM$", re.MULTILINE)


def user_data(record: Record) -> str:
    """Write the data again, with authorities of the test where the record leaves out secrets."""

    def with_content(match: re.Match[str]) -> str:
        content = CONTENTS.get(match["path"], "a key of service accounts")
        lines = "\n".join(match["indent"] + line for line in content.splitlines())
        return f"path: {match['path']}\n{match['between']}{lines}"

    text = SECRET.sub(with_content, record.outcome["text"])
    assert "PEM" not in text.replace("BEGIN", "")
    return text.replace("HASH", HASH).replace("token: TOKEN", f"token: {TOKEN}").replace("ENDPOINT", "10.0.0.1")


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_a_guest_runs_kubeadm_by_the_data_of_the_real_provider(record: Record) -> None:
    run = kubeadm_of(parse_user_data(user_data(record), "one"))
    assert run is not None

    role = record.input["role"]
    assert (run.host, run.port) == ("10.0.0.1", 6443)
    assert (run.authority, run.etcd) == (
        (None, None) if role == "worker" else (AUTHORITIES["ca"], AUTHORITIES["etcd/ca"])
    )
    assert (run.cluster or {}).get("kubernetesVersion") == (record.input["version"] if role == "first" else None)
    assert run.hashes == (() if role == "first" else (HASH,))
    assert run.node.name == "one"
    uninitialized = {"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}
    assert run.node.taints == ((uninitialized,) if role == "worker" else (CONTROL_PLANE_TAINT,))


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_a_machine_adds_to_the_data_of_the_real_provider_and_changes_nothing(record: Record) -> None:
    given = user_data(record)
    added = userdata(given, ssh_public_key="ssh-ed25519 AAAA admin", dhcp_interfaces=("eth0",))
    assert added.startswith("## template: jinja\n#cloud-config\n")
    before, after = (yaml.safe_load(text) for text in (given, added))
    # Jinja's marks stay for cloud-init, which knows the name of the host.
    assert ("{{ ds.meta_data.local_hostname }}" in added) == ("{{ ds.meta_data.local_hostname }}" in given)
    assert [file for file in after["write_files"] if file in before["write_files"]] == before["write_files"]
    assert after["runcmd"][-1:] == before["runcmd"]
    assert after["ssh_authorized_keys"] == ["ssh-ed25519 AAAA admin"]
