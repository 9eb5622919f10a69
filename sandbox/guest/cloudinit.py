"""Strict parsing of cloud-init user and network data, as a guest reads it.

cloud-init only warns about some mistakes and silently ignores others. Here they are errors, so that
a mistake of a provider is noticed.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import ipaddress
import re
import shlex
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jinja2
import yaml
from jinja2.sandbox import SandboxedEnvironment

from caphv.api.object import at

HEADER = "#cloud-config"
JINJA = "## template: jinja"
AGENT_PACKAGE = "qemu-guest-agent"

_LIST_KEYS = frozenset(
    {"bootcmd", "mounts", "packages", "runcmd", "ssh_authorized_keys", "users", "write_files"}
)
_KEYS = """
    apt bootcmd ca_certs chpasswd disable_root disk_setup final_message fqdn fs_setup groups
    growpart hostname keyboard locale manage_etc_hosts mounts ntp output package_reboot_if_required
    package_update package_upgrade packages password phone_home power_state preserve_hostname
    resize_rootfs rsyslog runcmd ssh ssh_authorized_keys ssh_deletekeys ssh_genkeytypes
    ssh_import_id ssh_keys ssh_pwauth swap timezone user users write_files yum_repos zypper
"""
_FILE_FIELDS = frozenset({"append", "content", "defer", "encoding", "owner", "path", "permissions"})
_MAC = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}")
_BASE64_ENCODINGS = ("b64", "base64", "gz+b64", "gz+base64", "gzip+b64", "gzip+base64")

# The environment is strict, because cloud-init only warns about an undefined variable and writes a
# mark in its place.
_TEMPLATES = SandboxedEnvironment(
    undefined=jinja2.StrictUndefined, trim_blocks=True, keep_trailing_newline=True
)


class GuestError(Exception):
    """A guest cannot use its data.

    The message names a field, but never its content, which may be secret.
    """


@dataclass(frozen=True, slots=True)
class File:
    """One entry of `write_files`."""

    path: str
    content: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class UserData:
    """The part of the user data that the simulated guest acts on."""

    packages: tuple[str, ...]
    files: Mapping[str, File]
    commands: tuple[str, ...] = field(default=(), repr=False)
    machine_config: str = field(default="", repr=False)
    """The machine configuration of Talos, in place of cloud-config."""

    @property
    def has_agent(self) -> bool:
        """Return whether the data installs the QEMU guest agent."""
        return AGENT_PACKAGE in self.packages


@dataclass(frozen=True, slots=True)
class Subnet:
    """A static address with its mask, and the gateway of the default route; empty for none.

    `routes` are further networks, each with the address of its router.
    """

    address: str
    mask: str
    gateway: str = ""
    routes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Nic:
    """Configuration of one interface: static if it has an address, otherwise by DHCP.

    `mac` finds the interface if it is set. `more` are its further subnets, and `routes` those of
    its first one. `mtu` is 0 for the default.
    """

    name: str
    address: str = ""
    mask: str = ""
    gateway: str = ""
    mac: str = ""
    more: tuple[Subnet, ...] = ()
    mtu: int = 0
    routes: tuple[tuple[str, str], ...] = ()

    @property
    def subnets(self) -> tuple[Subnet, ...]:
        """All static subnets."""
        first = Subnet(self.address, self.mask, self.gateway, self.routes)
        return (*([first] if self.address else ()), *self.more)


def parse_user_data(text: str, hostname: str) -> UserData:
    """Parse `#cloud-config` user data. A Jinja template may use `hostname`. Raises `GuestError`."""
    # A template has two header lines. Check them in the source, because the rendered text may have
    # any lines.
    lines = text.split("\n", 2)
    if lines[0].strip() == JINJA:
        text = _render(text, hostname)
        lines = lines[1:]
    if not lines or lines[0].rstrip() != HEADER:
        raise GuestError(f"userdata: the first line must be {HEADER}")

    config = _load(text, "userdata")
    unknown_keys = sorted(map(str, config.keys() - set(_KEYS.split())))
    if unknown_keys:
        raise GuestError(f"userdata: unknown keys {', '.join(unknown_keys)}")
    for name in sorted(_LIST_KEYS & config.keys()):
        if not isinstance(config[name], list):
            raise GuestError(f"userdata.{name}: must be a list")

    commands = _parse_commands(config)
    _check_authorized_keys(config.get("ssh_authorized_keys") or ())
    _check_users(config.get("users") or ())
    files = [
        _parse_file(entry, f"userdata.write_files[{n}]")
        for n, entry in enumerate(config.get("write_files") or ())
    ]
    packages = _package_names(config.get("packages") or ())
    return UserData(tuple(packages), {file.path: file for file in files}, tuple(commands))


def parse_network_data(text: str) -> list[Nic]:
    """Parse a network configuration of version 1, with static subnets or DHCP per interface.

    Raises `GuestError`.
    """
    config = _load(text, "networkdata")
    config = config.get("network", config)
    if config.get("version") != 1 or not isinstance(config.get("config"), list):
        raise GuestError("networkdata: must be a version 1 configuration")

    nics = []
    for n, entry in enumerate(config["config"]):
        where = f"networkdata.config[{n}]"
        match entry.get("type") if isinstance(entry, dict) else None:
            case "physical":
                nics.append(_parse_nic(entry, where))
            case "nameserver":
                addresses = entry.get("address") or ()
                _check_addresses(
                    [addresses] if isinstance(addresses, str) else addresses, f"{where}.address"
                )
            case other:
                raise GuestError(f"{where}.type: {other!r} must be physical or nameserver")
    return nics


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys; cloud-init's parser silently ignores one of them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        names = [key.value for key, _ in node.value]
        if len(names) != len(set(names)):
            raise GuestError(f"duplicate key in line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def _load(text: str, where: str) -> dict[str, Any]:
    try:
        config = yaml.load(text, _Loader)  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        # Name only the line, because the parser's message quotes the text, which may be secret.
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise GuestError(f"{where}: invalid YAML (line {line})") from None
    except yaml.YAMLError:
        raise GuestError(f"{where}: invalid YAML") from None
    except GuestError as error:
        raise GuestError(f"{where}: {error}") from None

    if not isinstance(config, dict):
        raise GuestError(f"{where}: must be a mapping")
    return config


def _render(text: str, hostname: str) -> str:
    # cloud-init offers these variables at the top, and also below `v1` and `ds`.
    names = {"hostname": hostname, "local_hostname": hostname}
    meta_data = {**names, "instance_id": hostname}
    values = {**names, "v1": names, "ds": {"meta_data": meta_data}}
    try:
        return _TEMPLATES.from_string(text).render(values)
    except jinja2.TemplateSyntaxError as error:
        raise GuestError(f"userdata: template line {error.lineno}: {error.message}") from None
    except jinja2.TemplateError as error:
        raise GuestError(f"userdata: template: {error.message}") from None


def _parse_commands(config: Mapping[str, Any]) -> list[str]:
    """Return the commands of the guest for a shell, in the order in which they run."""
    commands = []
    for name in ("bootcmd", "runcmd"):
        for n, command in enumerate(config.get(name) or ()):
            words = command if isinstance(command, list) else [command]
            if not words or not all(isinstance(word, str | int) for word in words):
                raise GuestError(f"userdata.{name}[{n}]: must be a command")
            # The shell gets a string unchanged. A list is executed without a shell.
            text = shlex.join(map(str, words)) if isinstance(command, list) else str(command)
            commands.append(text)
    return commands


def _check_authorized_keys(keys: Any) -> None:
    for n, key in enumerate(keys):
        if not isinstance(key, str) or len(key.split()) < 2:
            raise GuestError(f"userdata.ssh_authorized_keys[{n}]: must be a public key")


def _check_users(users: Any) -> None:
    for n, user in enumerate(users):
        # "default" and other plain names are also valid.
        if not isinstance(user, str) and not isinstance(at(user, "name"), str):
            raise GuestError(f"userdata.users[{n}]: must have a name")


def _package_names(packages: Any) -> list[str]:
    # A package is a name, or a list of name and version.
    names = [
        package[0] if isinstance(package, list) and package else package for package in packages
    ]
    if not all(isinstance(name, str) for name in names):
        raise GuestError("userdata.packages: must be a list of names")
    return names


def _parse_file(entry: Any, where: str) -> File:
    if not isinstance(entry, dict) or not str(entry.get("path", "")).startswith("/"):
        raise GuestError(f"{where}.path: must be an absolute path")
    unknown_fields = sorted(map(str, entry.keys() - _FILE_FIELDS))
    if unknown_fields:
        raise GuestError(f"{where}: unknown fields {', '.join(unknown_fields)}")

    # YAML reads an unquoted 0644 as the number 420.
    mode = entry.get("permissions", "0644")
    if not isinstance(mode, str) or not re.fullmatch(r"0?[0-7]{3,4}", mode):
        raise GuestError(f"{where}.permissions: must be a string with an octal number")

    content = entry.get("content", "")
    if not isinstance(content, str):
        raise GuestError(f"{where}.content: must be a string")
    encoding = str(entry.get("encoding", "text/plain")).lower()
    return File(entry["path"], _decode(content, encoding, where))


def _decode(content: str, encoding: str, where: str) -> str:
    if encoding == "text/plain":
        return content
    if encoding not in _BASE64_ENCODINGS:
        raise GuestError(f"{where}.encoding: unknown encoding {encoding}")
    try:
        data = base64.b64decode("".join(content.split()), validate=True)
        return (gzip.decompress(data) if encoding.startswith("gz") else data).decode()
    except (binascii.Error, OSError, EOFError, UnicodeDecodeError):
        raise GuestError(f"{where}.content: must be {encoding}") from None


def _parse_nic(entry: Mapping[str, Any], where: str) -> Nic:
    name = entry.get("name")
    subnets = entry.get("subnets")
    if not isinstance(name, str) or not isinstance(subnets, list) or not subnets:
        raise GuestError(f"{where}: must have a name and subnets")
    mac = str(entry.get("mac_address", ""))
    if mac and not _MAC.fullmatch(mac):
        raise GuestError(f"{where}.mac_address: must be a MAC address")

    mtu = entry.get("mtu", 0)
    if not isinstance(mtu, int) or (mtu and not 68 <= mtu <= 65535):
        raise GuestError(f"{where}.mtu: must be a number of bytes")

    if subnets[0].get("type") in ("dhcp", "dhcp4"):
        if len(subnets) > 1:
            raise GuestError(f"{where}: must have DHCP alone")
        if subnets[0].get("routes"):
            raise GuestError(f"{where}.subnets[0].routes: are ignored next to DHCP")
        return Nic(name, mac=mac, mtu=mtu)
    first, *more = (
        _parse_subnet(subnet, f"{where}.subnets[{n}]") for n, subnet in enumerate(subnets)
    )
    return Nic(
        name=name,
        address=first.address,
        mask=first.mask,
        gateway=first.gateway,
        mac=mac,
        more=tuple(more),
        mtu=mtu,
        routes=first.routes,
    )


def _parse_subnet(subnet: Mapping[str, Any], where: str) -> Subnet:
    version = {"static": 4, "static6": 6}.get(str(subnet.get("type")))
    if version is None:
        raise GuestError(f"{where}.type: must be static or dhcp, or static6 for IPv6")

    address, _, length = str(subnet.get("address", "")).partition("/")
    mask = length or str(subnet.get("netmask", ""))
    try:
        interface = ipaddress.ip_interface(f"{address}/{mask}")
        gateway = str(ipaddress.ip_address(subnet["gateway"])) if subnet.get("gateway") else ""
    except ValueError as error:
        raise GuestError(f"{where}: {error}") from None
    if interface.version != version:
        raise GuestError(f"{where}.address: must be an IPv{version} address")
    if gateway and ipaddress.ip_address(gateway).version != version:
        raise GuestError(f"{where}.gateway: must be an IPv{version} address")

    _check_addresses(subnet.get("dns_nameservers") or (), f"{where}.dns_nameservers")
    routes = [
        _parse_route(route, interface, f"{where}.routes[{n}]")
        for n, route in enumerate(subnet.get("routes") or ())
    ]
    return Subnet(address, str(interface.netmask), gateway, tuple(routes))


def _parse_route(
    route: Mapping[str, Any],
    interface: ipaddress.IPv4Interface | ipaddress.IPv6Interface,
    where: str,
) -> tuple[str, str]:
    """Return network and router of a route. Raises `GuestError`, as the kernel refuses it."""
    unknown_fields = sorted(route.keys() - {"destination", "gateway", "metric"})
    if unknown_fields:
        raise GuestError(f"{where}: unknown fields {', '.join(map(str, unknown_fields))}")
    try:
        network = ipaddress.ip_network(route.get("destination", ""))
        router = ipaddress.ip_address(route.get("gateway", ""))
    except ValueError as error:
        raise GuestError(f"{where}: {error}") from None
    if not isinstance(route.get("metric", 0), int):
        raise GuestError(f"{where}.metric: must be a number")
    if not network.version == router.version == interface.version:
        raise GuestError(f"{where}: must be of the family of {interface}")
    if router not in interface.network and not (router.version == 6 and router.is_link_local):
        raise GuestError(f"{where}: router {router} is outside the network {interface.network}")
    return str(network), str(router)


def _check_addresses(addresses: Any, where: str) -> None:
    for address in addresses:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise GuestError(f"{where}: {address!r} must be an IP address") from None
