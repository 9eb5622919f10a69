"""Guests join by the data of the real providers of RKE2 and K3s."""

import pytest
import yaml

from caphv.api.object import Obj
from sandbox.guest.cloudinit import GuestError, parse_user_data
from sandbox.guest.join import CONTROL_PLANE, WORKER
from sandbox.guest.rancher import join_of_rancher
from sandbox.processes import pki
from tests.support import observed

pytestmark = pytest.mark.unit

RECORDS = [
    record
    for path in ("rancher-cluster-api-provider-rke2/userdata.yaml", "k3s-io-cluster-api-k3s/userdata.yaml")
    for record in observed.records(path)
    if "role" in record.input
]
AUTHORITY = pki.CA.create("first")


def user_data(outcome: Obj) -> str:
    """Write the data again, with a CA of the test where the record leaves out keys."""
    contents = {".crt": AUTHORITY.certificate.decode(), ".key": AUTHORITY.pair.key.decode()}
    files = []
    for file in outcome["files"]:
        path = file["path"]
        config = yaml.safe_dump(outcome["config"]) if path.endswith(("k3s/config.yaml", "rke2/config.yaml")) else ""
        files.append({"content": config or contents.get(path[-4:], ""), **file})
    content = {"write_files": files, "runcmd": outcome["commands"], "packages": ["qemu-guest-agent"]}
    return f"{outcome['header']}\n#cloud-config\n{yaml.safe_dump(content)}"


@pytest.mark.parametrize("record", RECORDS, ids=str)
def test_a_guest_joins_by_the_data_of_the_real_provider(record: observed.Record) -> None:
    join = join_of_rancher(parse_user_data(user_data(record.outcome), "first-cp"))
    assert join is not None

    role, first = record.input["role"], record.input["role"] == "first"
    assert (join.role, join.token, join.version) == (
        WORKER if role == "worker" else CONTROL_PLANE,
        "TOKEN",
        record.input["version"],
    )
    assert join.server == f"https://ENDPOINT:{9345 if 'rke2' in join.version else 6443}"
    assert join.sans == (() if role == "worker" else ("ENDPOINT",))
    # Only the first server has the CAs; the others ask it.
    assert bool(join.authority) is bool(join.clients) is bool(join.ca) is first


def test_a_guest_without_token_or_ca_says_what_is_absent() -> None:
    record = next(record for record in RECORDS if record.input["role"] == "first")
    without_token = {**record.outcome, "config": {**record.outcome["config"], "token": None}}
    with pytest.raises(GuestError, match="token is required"):
        join_of_rancher(parse_user_data(user_data(without_token), "first-cp"))

    files = [file for file in record.outcome["files"] if not file["path"].endswith("server-ca.key")]
    with pytest.raises(GuestError, match=r"server-ca\.crt and its key are required"):
        join_of_rancher(parse_user_data(user_data({**record.outcome, "files": files}), "first-cp"))


@pytest.mark.parametrize(
    ("settings", "serves", "stores"),
    [
        ({}, True, True),
        ({"disable-apiserver": True}, False, True),
        ({"disable-etcd": True}, True, False),
    ],
)
def test_a_server_may_have_etcd_alone_or_no_etcd(settings: Obj, serves: bool, stores: bool) -> None:
    record = next(
        record for record in RECORDS if record.input["role"] == "first" and "+rke2" in record.input["version"]
    )
    data = {**record.outcome, "config": {**record.outcome["config"], **settings}}
    join = join_of_rancher(parse_user_data(user_data(data), "first-cp"))
    assert join is not None
    assert (join.role, join.serves, join.stores) == (CONTROL_PLANE, serves, stores)
