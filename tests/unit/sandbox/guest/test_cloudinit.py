"""What a guest reads from cloud-init data, and what it refuses."""

from __future__ import annotations

import base64
import gzip

import pytest
import yaml

from caphv.api.object import Obj
from sandbox.guest.cloudinit import GuestError, Nic, Subnet, parse_network_data, parse_user_data

pytestmark = pytest.mark.unit

PRODUCTION = ("127.10.0.0/17", "127.10.0.1")


def user_data(config: Obj, header: str = "#cloud-config\n") -> str:
    return header + yaml.safe_dump(config)


def network(**subnet: object) -> str:
    return yaml.safe_dump({"version": 1, "config": [{"type": "physical", "name": "eth0", "subnets": [subnet]}]})


def test_packages_and_files_are_read() -> None:
    plain = {"path": "/etc/plain", "content": "a", "permissions": "0600", "owner": "root:root"}
    encoded = {"path": "/etc/b64", "content": base64.b64encode(b"b").decode(), "encoding": "b64"}
    packed = {"path": "/etc/gz", "content": base64.b64encode(gzip.compress(b"c")).decode(), "encoding": "gz+b64"}
    data = parse_user_data(user_data({"packages": ["qemu-guest-agent"], "write_files": [plain, encoded, packed]}), "vm")
    assert data.has_agent
    assert {path: file.content for path, file in data.files.items()} == {
        "/etc/plain": "a",
        "/etc/b64": "b",
        "/etc/gz": "c",
    }


def test_without_the_package_there_is_no_agent() -> None:
    assert not parse_user_data(user_data({"packages": ["iptables"]}), "vm").has_agent


def test_jinja_header_is_kept_and_rendered() -> None:
    content = "x {{ ds.meta_data.local_hostname }}"
    text = f"## template: jinja\n#cloud-config\nwrite_files:\n- {{path: /name, content: '{content}'}}\n"
    assert parse_user_data(text, "vm-1").files["/name"].content == "x vm-1"
    without = text.partition("\n")[2]
    assert "{{" in parse_user_data(without, "vm-1").files["/name"].content


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("packages: []", "first line must be #cloud-config"),
        ("#!/bin/sh\n", "first line must be #cloud-config"),
        (
            "## template: jinja\n#cloud-config\nhostname: '{{ ds.other }}'",
            "template: 'dict object' has no attribute 'other'",
        ),
        ("## template: jinja\n#cloud-config\nruncmd: ['${#HOME}']", "Missing end of comment tag"),
        ("#cloud-config\n- packages", "must be a mapping"),
        ("#cloud-config\npackages: [a", "invalid YAML"),
        ("#cloud-config\npackages: [a]\npackages: [b]", "duplicate key in line 2"),
        ("#cloud-config\npackges: [a]", "unknown keys packges"),
        ("#cloud-config\nruncmd: reboot", "userdata.runcmd: must be a list"),
        ("#cloud-config\nruncmd: [{a: b}]", r"userdata.runcmd\[0\]: must be a command"),
        ("#cloud-config\nusers: [{groups: a}]", r"userdata.users\[0\]: must have a name"),
        ("#cloud-config\nssh_authorized_keys: ['']", r"ssh_authorized_keys\[0\]: must be a public key"),
        ("#cloud-config\nwrite_files: [{path: etc}]", r"write_files\[0\].path"),
        ("#cloud-config\nwrite_files: [{path: /a, mode: '1'}]", "unknown fields mode"),
        ("#cloud-config\nwrite_files: [{path: /a, mode: '1', 2: x}]", "unknown fields 2, mode"),
        ("#cloud-config\n{1: x, other: y}", "unknown keys 1, other"),
        ("#cloud-config\nwrite_files: [{path: /a, permissions: 600}]", "permissions: must be a string"),
        ("#cloud-config\nwrite_files: [{path: /a, encoding: b64, content: '*'}]", "content: must be b64"),
    ],
)
def test_broken_user_data_is_refused(text: str, message: str) -> None:
    with pytest.raises(GuestError, match=message):
        parse_user_data(text, "vm")


def test_errors_hold_no_content() -> None:
    with pytest.raises(GuestError) as caught:
        parse_user_data("#cloud-config\ntoken: [canary", "vm")
    assert "canary" not in str(caught.value)


def test_static_and_dhcp_interfaces() -> None:
    static = {"type": "static", "address": "127.10.9.1", "netmask": "255.255.128.0", "gateway": "127.10.0.1"}
    text = yaml.safe_dump(
        {
            "version": 1,
            "config": [
                {"type": "physical", "name": "eth0", "subnets": [static]},
                {"type": "physical", "name": "eth1", "subnets": [{"type": "dhcp"}]},
                {"type": "nameserver", "address": ["9.9.9.9"], "search": ["example.com"]},
            ],
        }
    )
    assert parse_network_data(text) == [Nic("eth0", "127.10.9.1", "255.255.128.0", "127.10.0.1"), Nic("eth1")]


def test_prefix_length_and_network_wrapper() -> None:
    inner = yaml.safe_load(network(type="static", address="127.10.9.1/17"))
    assert parse_network_data(yaml.safe_dump({"network": inner})) == [Nic("eth0", "127.10.9.1", "255.255.128.0")]


def test_interface_by_mac_address_with_both_families() -> None:
    v4 = {"type": "static", "address": "127.10.9.1/17", "gateway": "127.10.0.1"}
    v6 = {"type": "static6", "address": "fd00::5/64"}
    entry = {"type": "physical", "name": "eth0", "mac_address": "02:00:00:00:00:01", "subnets": [v4, v6]}
    (nic,) = parse_network_data(yaml.safe_dump({"version": 1, "config": [entry]}))
    assert nic.mac == "02:00:00:00:00:01"
    assert nic.subnets == (
        Subnet("127.10.9.1", "255.255.128.0", "127.10.0.1"),
        Subnet("fd00::5", "ffff:ffff:ffff:ffff::"),
    )


def test_mtu_and_routes_of_an_interface() -> None:
    route = {"destination": "10.9.0.0/16", "gateway": "127.10.0.2", "metric": 5}
    subnet = {"type": "static", "address": "127.10.9.1/17", "routes": [route]}
    entry = {"type": "physical", "name": "eth0", "mtu": 9000, "subnets": [subnet]}
    (nic,) = parse_network_data(yaml.safe_dump({"version": 1, "config": [entry]}))
    assert nic.mtu == 9000
    assert nic.subnets == (Subnet("127.10.9.1", "255.255.128.0", "", (("10.9.0.0/16", "127.10.0.2"),)),)


def routed(**route: object) -> str:
    return network(type="static", address="127.10.9.1/17", routes=[route])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (routed(destination="10.9.0.1/16", gateway="127.10.0.2"), "has host bits set"),
        (routed(destination="10.9.0.0/16", gateway="router"), "routes"),
        (routed(destination="10.9.0.0/16", gateway="127.11.0.2"), "outside the network 127.10.0.0/17"),
        (routed(destination="fd00::/64", gateway="fe80::1"), "must be of the family of 127.10.9.1/17"),
        (routed(destination="10.9.0.0/16", gateway="127.10.0.2", metric="x"), "metric: must be a number"),
        (routed(to="10.9.0.0/16", via="127.10.0.2"), "unknown fields to, via"),
        (network(type="dhcp", routes=[{}]), "are ignored next to DHCP"),
        ("version: 1\nconfig: [{type: physical, name: eth0, mtu: x, subnets: [{type: dhcp}]}]", "must be a number"),
        (network(type="static", address="fd00::5/64"), "must be an IPv4 address"),
        (network(type="static6", address="127.10.9.1/17"), "must be an IPv6 address"),
        (network(type="static", address="127.10.9.1/17", gateway="fd00::1"), "gateway: must be an IPv4 address"),
        (
            "version: 1\nconfig: [{type: physical, name: eth0, mac_address: nic, subnets: [{type: dhcp}]}]",
            "must be a MAC address",
        ),
        (
            "version: 1\nconfig: [{type: physical, name: eth0, subnets: [{type: dhcp}, {type: dhcp}]}]",
            "must have DHCP alone",
        ),
        ("version: 2\nethernets: {}", "must be a version 1 configuration"),
        (network(type="static", address="127.10.9.1"), "subnets"),
        (network(type="static", address="127.10.9.256", netmask="255.255.0.0"), "subnets"),
        (network(type="manual"), "must be static or dhcp"),
        ("version: 1\nconfig: [{type: bond}]", "'bond' must be physical or nameserver"),
        ("version: 1\nconfig: [{type: nameserver, address: dns}]", "'dns' must be an IP address"),
    ],
)
def test_broken_network_data_is_refused(text: str, message: str) -> None:
    with pytest.raises(GuestError, match=message):
        parse_network_data(text)
