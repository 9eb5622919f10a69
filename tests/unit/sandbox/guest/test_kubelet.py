"""The simulated etcd: members stay until they are removed, and etcdctl wants to be called as in RKE2."""

import json

import pytest

from sandbox.guest.etcd import EtcdError
from sandbox.guest.kubelet import Etcd

pytestmark = pytest.mark.unit

TLS = "/var/lib/rancher/rke2/server/tls/etcd"
OPTIONS = [
    "--endpoints=https://127.0.0.1:2379",
    f"--cacert={TLS}/server-ca.crt",
    f"--cert={TLS}/server-client.crt",
    f"--key={TLS}/server-client.key",
]
LIST = [*OPTIONS, "member", "list", "-w", "json"]


def test_restarted_guest_is_the_same_member() -> None:
    etcd = Etcd()
    etcd.join("disk-1", "a")
    before = dict(etcd.members)
    etcd.join("disk-1", "a")
    assert etcd.members == before
    etcd.join("disk-2", "a")
    assert len(etcd.members) == 2


async def test_member_is_removed_by_its_number_in_hexadecimal() -> None:
    etcd = Etcd()
    etcd.join("disk-1", "a")
    (member,) = json.loads(await etcd.etcdctl(LIST))["members"]
    assert member["name"].startswith("a-")
    await etcd.etcdctl([*OPTIONS, "member", "remove", f"{member['ID']:x}"])
    assert json.loads(await etcd.etcdctl(LIST))["members"] == []
    with pytest.raises(EtcdError, match="not found"):
        await etcd.etcdctl([*OPTIONS, "member", "remove", f"{member['ID']:x}"])


@pytest.mark.parametrize("arguments", [LIST[1:], LIST[:3], OPTIONS, [*OPTIONS, "member", "remove", "no number"]])
async def test_other_calls_are_refused(arguments: list[str]) -> None:
    with pytest.raises(EtcdError):
        await Etcd().etcdctl(arguments)
