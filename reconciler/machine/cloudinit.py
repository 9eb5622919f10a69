"""The cloud-init data of a VM: what the provider needs in the guest, merged into the bootstrap data.

The bootstrap data is never parsed and serialised again. Its text is kept byte for byte and ours is inserted, because it
may be a Jinja template: `{{ … }}` is not YAML, quotes and block scalars around it matter after rendering, and `{% %}`
lines have no place in a parsed document. A copy without Jinja shows where to insert, and proves afterwards that nothing
else has changed.

Bootstrap data holds join tokens and keys: no error of this module quotes it.
"""

import base64
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from caphv.api.object import Obj
from caphv.runtime.text import Limits, TextError, compose_yaml, construct_yaml
from reconciler.harvester.ownership import Owner, record
from reconciler.machine import dhclient, jinjamask
from reconciler.machine.guest import JOINED, STANDARD, GuestConfig, base, joined, plain
from reconciler.machine.network import StaticAddress

MAX_SECRET_BYTES = 1024 * 1024
"""Kubernetes refuses Secrets whose values together are larger."""

CLOUD_CONFIG_FILES = ("/etc/kubernetes/cloud-config", "/etc/kubernetes/cloud-provider-config")
"""The same content twice: the cloud provider's chart takes any file, the CSI driver's one of this name in a folder."""

MAX_NODES = 100_000
"""Upper bound of YAML nodes after all aliases are followed: a few lines of nested aliases can mean billions."""
_LIMITS = Limits(size=2 * MAX_SECRET_BYTES, nodes=MAX_NODES)

_TEMPLATE = re.compile(r"##\s*template:\s*jinja\s*", re.IGNORECASE)
_BLOCK_START = re.compile(r"\{%[-+]?\s*(?:if|for|macro|call|filter)\b")
_BLOCK_END = re.compile(r"\{%[-+]?\s*end(?:if|for|macro|call|filter)\b")
_DOCUMENT_START = re.compile(r"(?:(?:%[^\n]*|[ \t]*(?:#[^\n]*)?)\n)*---(?:[ \t][^\n]*)?\n")
# YAML 1.1 knows more line breaks than one; line numbers of its parsers count them all.
_LINE = re.compile("[^\n\r\x85\u2028\u2029]*(?:\r\n|[\n\r\x85\u2028\u2029]|\\Z)")

# What a block scalar holds as it is, and Jinja leaves alone: whole lines, the first one not indented.
_LITERAL = re.compile(r"(?!.*\{[{%#])[^\s][\t\n -~]*[^\n]\n", re.DOTALL)
_TOP_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class _Source(NamedTuple):
    """Where a text comes from, for messages, and what to do when it is no cloud-config."""

    name: str
    remedy: str


_BOOTSTRAP = _Source("bootstrap data", "set the bootstrap provider's format to cloud-config")
_EXTRA = _Source("spec.guestConfig.userData", "write plain cloud-config, a YAML mapping")
_FOREIGN_STARTS = {
    "#!": "a shell script",
    "#include": "a list of URLs",
    "#cloud-boothook": "a boothook",
    "#cloud-config-archive": "a cloud-config archive",
    "#cloud-config-jsonp": "a JSON patch",
    "#part-handler": "a part handler",
    "content-type:": "a MIME message",
    "mime-version:": "a MIME message",
    "variant:": "a Butane configuration",
    "\x1f": "compressed data",
}

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class CloudInitError(ValueError):
    """Bootstrap data that cannot be given to a VM; the message says what to do and quotes nothing of the data."""


def userdata(
    bootstrap: str,
    *,
    ssh_public_key: str = "",
    dhcp_interfaces: Sequence[str] = (),
    files: Sequence[Obj] = (),
    guest: GuestConfig = STANDARD,
) -> str:
    """Return the user data of a VM, in cloud-init's `#cloud-config` format.

    `bootstrap` is the value of the bootstrap Secret; a `## template: jinja` first line of it is kept.
    `dhcp_interfaces` are the guest's interfaces (`eth0`, …) that need an address by DHCP, `files` entries for
    `write_files`. What `guest` adds ranks below the bootstrap data.
    Raises CloudInitError for other formats than cloud-config, invalid YAML and data beyond a Secret's size.
    """
    is_template, body = _split_header(bootstrap, _BOOTSTRAP)
    ours = joined(_base(guest, ssh_public_key.strip(), dhcp_interfaces, files), _extra(guest.user_data))
    if is_template and (unclosed := jinjamask.unclosed(body)):
        line, mark = unclosed
        raise CloudInitError(
            f"bootstrap data is a Jinja template, and {mark} in line {line}, counted after its header, has no end: "
            f"write {{{{ '{mark}' }}}} in files and commands where the text is meant"
        )
    mask = jinjamask.masked if is_template else str
    root = _compose(mask(body), _BOOTSTRAP)
    merged = _insert(body, mask(body), root, ours)
    _verify(root, mask(merged), ours)
    header = "## template: jinja\n#cloud-config\n" if is_template else "#cloud-config\n"
    result = header + merged
    _check_size(len(result.encode()))
    return result


def networkdata(address: StaticAddress, nic_count: int) -> str:
    """Return network data (version 1): `address` on eth0, DHCP on the other NICs, name servers and search domains."""
    static = {"type": "static", "address": address.address, "netmask": address.mask, "gateway": address.gateway}
    config: list[Obj] = [
        {"type": "physical", "name": f"eth{index}", "subnets": [{"type": "dhcp"} if index else static]}
        for index in range(nic_count)
    ]
    if address.dns_servers or address.dns_search:
        nameserver: Obj = {"type": "nameserver", "address": list(address.dns_servers)}
        if address.dns_search:
            nameserver["search"] = list(address.dns_search)
        config.append(nameserver)
    return str(yaml.dump({"version": 1, "config": config}, Dumper=_Dumper, sort_keys=False))


def kubeconfig_file(content: str) -> list[Obj]:
    """Entries of `write_files` with the kubeconfig for Harvester's cloud provider, where its documentation has it."""
    return [
        {"path": path, "permissions": "0600", "owner": "root:root", "content": content} for path in CLOUD_CONFIG_FILES
    ]


def secret_name(vm_name: str) -> str:
    """Return the name of the Secret with the cloud-init data of a VM."""
    return f"{vm_name}-cloud-init"


def cloud_init_secret(*, vm_name: str, namespace: str, owner: Owner, user_data: str, network_data: str = "") -> Obj:
    """Return the Secret the VM reads its cloud-init data from; raises CloudInitError when it is too large."""
    values = {"userdata": user_data} | ({"networkdata": network_data} if network_data else {})
    encoded = {key: value.encode() for key, value in values.items()}
    _check_size(sum(map(len, encoded.values())))
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(vm_name), "namespace": namespace, "annotations": record(owner)},
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in encoded.items()},
    }


def _check_size(size: int) -> None:
    if size > MAX_SECRET_BYTES:
        raise CloudInitError(
            f"cloud-init data of {size} bytes is larger than a Secret can be ({MAX_SECRET_BYTES} bytes): "
            "move large files out of the bootstrap configuration into the image"
        )


def _split_header(text: str, source: _Source) -> tuple[bool, str]:
    """Return whether the data is a template, and return it without its header lines."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    first, _, rest = text.partition("\n")
    is_template = _TEMPLATE.fullmatch(first) is not None
    body = rest if is_template else text
    start = body.lstrip().lower()
    for mark, meaning in _FOREIGN_STARTS.items():
        if start.startswith(mark):
            raise CloudInitError(f"{source.name} is {meaning}, not cloud-config: {source.remedy}")
    if start.startswith("{") and re.search(r'"ignition"\s*:', start):
        raise CloudInitError(f"{source.name} is an Ignition configuration, not cloud-config: {source.remedy}")
    return is_template, re.sub(r"\A\s*#cloud-config[ \t]*(?:\n|\Z)", "", body)


def _base(
    guest: GuestConfig, ssh_public_key: str, dhcp_interfaces: Sequence[str], files: Sequence[Obj]
) -> dict[str, Any]:
    if not ssh_public_key.isprintable():
        raise CloudInitError("the SSH public key of the KeyPair is not one line of text: correct its spec.publicKey")
    result = base(guest)
    if ssh_public_key:
        result["ssh_authorized_keys"] = [ssh_public_key]
    if dhcp_interfaces:
        result["bootcmd"] = dhclient.boot_commands(dhcp_interfaces)
    if files:
        result["write_files"] = [*files]
    return result


def _extra(text: str) -> dict[str, Any]:
    """Cloud-config of the machine's spec; no template, because what it means must not depend on the bootstrap data."""
    if not text:
        return {}
    is_template, body = _split_header(text, _EXTRA)
    if is_template:
        raise CloudInitError(f"{_EXTRA.name} is a Jinja template: {_EXTRA.remedy}")
    try:
        found: dict[str, Any] = plain(_construct(_compose(body, _EXTRA), _EXTRA))
    except ValueError as error:
        if isinstance(error, CloudInitError):
            raise
        raise CloudInitError(f"{_EXTRA.name} has {error}: {_EXTRA.remedy}") from None
    for key, value in found.items():
        if not isinstance(key, str) or not _TOP_KEY.fullmatch(key):
            raise CloudInitError(f"{_EXTRA.name} has a key that is not valid in cloud-config: {_EXTRA.remedy}")
        if key in JOINED and not isinstance(value, list | None):
            raise CloudInitError(f"{key} of {_EXTRA.name} is not a list: write it as one")
    return {key: value for key, value in found.items() if key not in JOINED or value is not None}


def _compose(text: str, source: _Source) -> yaml.MappingNode | None:
    """Parse to nodes, which know their place in the text; None for an empty document."""
    try:
        node = compose_yaml(text, _LIMITS)
    except TextError as error:
        raise _refused(error, source) from None
    if node is None or (isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~")):
        return None
    if not isinstance(node, yaml.MappingNode):
        raise CloudInitError(f"{source.name} is not a mapping of cloud-config keys: {source.remedy}")
    return node


def _refused(error: TextError, source: _Source) -> CloudInitError:
    where = ", counted after its header" if error.line else ""
    return CloudInitError(f"{source.name} {error}{where}: correct its files and commands")


class _Edit(NamedTuple):
    """Replace columns `start` to `end` of a line by `text`; edits of one text do not overlap."""

    line: int
    start: int
    end: int
    text: str


def _insert(body: str, masked: str, root: yaml.MappingNode | None, ours: dict[str, Any]) -> str:
    """Insert `ours` into the text: items at the head of lists that exist, other keys before all others."""
    if root is None:
        return _block(ours, 0)
    found = {key.value: (key, value) for key, value in root.value if isinstance(key, yaml.ScalarNode)}
    if "<<" in found:
        raise CloudInitError("bootstrap data uses the YAML merge key << at its top: write the keys out")
    lines = _LINE.findall(masked)
    missing = {key: value for key, value in ours.items() if key not in found}
    edits = []
    if root.flow_style:
        brace = root.start_mark.line, lines[root.start_mark.line].index("{", root.start_mark.column) + 1
        pairs = "".join(f"{json.dumps(key)}: {_flow(value)}, " for key, value in missing.items())
        edits.append(_Edit(*brace, brace[1], pairs))
    else:
        start = _DOCUMENT_START.match(masked)
        line = start[0].count("\n") if start else 0
        edits.append(_Edit(line, 0, 0, _block(missing, root.value[0][0].start_mark.column)))
    for key, items in ours.items():
        if key in found and key in JOINED and isinstance(items, list):
            if _in_block(body, root if root.flow_style else found[key][0]):
                raise CloudInitError(
                    f"{key} of the bootstrap data is inside a Jinja block: move the block into the list"
                )
            edits.append(_list_edit(key, items, *found[key], lines=lines, flow=bool(root.flow_style)))
    return _apply(edits, _LINE.findall(body))


def _in_block(body: str, node: yaml.Node) -> bool:
    """Return whether `node` is inside a Jinja block."""
    before = "".join(_LINE.findall(body)[: node.start_mark.line])
    return len(_BLOCK_START.findall(before)) > len(_BLOCK_END.findall(before))


def _list_edit(
    key: str, items: list[Any], key_node: yaml.Node, node: yaml.Node, *, lines: Sequence[str], flow: bool
) -> _Edit:
    """Say where and how `items` go to the head of the list `node`."""
    line, column = node.start_mark.line, node.start_mark.column
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        end = node.end_mark.column
        if flow or not items:
            return _Edit(line, column, end, f" {_flow(items)}")
        return _Edit(line, column, end, "\n" + _items(items, key_node.start_mark.column).removesuffix("\n"))
    if not isinstance(node, yaml.SequenceNode):
        raise CloudInitError(f"{key} of the bootstrap data is not a list: write it as one")
    if node.flow_style:
        after = lines[line].index("[", column) + 1
        return _Edit(line, after, after, "".join(f"{_flow(item)}, " for item in items))
    first = lines[node.value[0].start_mark.line]
    return _Edit(key_node.start_mark.line + 1, 0, 0, _items(items, len(first) - len(first.lstrip(" "))))


def _apply(edits: Sequence[_Edit], lines: list[str]) -> str:
    for edit in sorted(edits, reverse=True):
        text = lines[edit.line]
        lines[edit.line] = text[: edit.start] + edit.text + text[edit.end :]
    return "".join(lines)


def _block(values: dict[str, Any], indent: int) -> str:
    return "".join(
        f"{' ' * indent}{key}:\n{_items(value, indent)}"
        if isinstance(value, list) and value
        else f"{' ' * indent}{key}: {_flow(value)}\n"
        for key, value in values.items()
    )


def _items(items: Sequence[Any], indent: int) -> str:
    space = " " * indent
    return "".join(
        f"{space}- |\n" + "".join(f"{space}  {line}\n" if line else "\n" for line in item.splitlines())
        if isinstance(item, str) and _LITERAL.fullmatch(item)
        else f"{space}- {_flow(item)}\n"
        for item in items
    )


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(name)}: {_flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    # In a template, a brace of ours must not look like the start of an expression.
    return json.dumps(value, ensure_ascii=False).replace("{", "\\u007b")


def _verify(root: yaml.MappingNode | None, merged: str, ours: dict[str, Any]) -> None:
    """Prove that the merged text means the bootstrap data plus `ours`, and nothing else."""
    before, after = _construct(root, _BOOTSTRAP), _construct(_compose(merged, _BOOTSTRAP), _BOOTSTRAP)
    expected = {**ours, **before}
    for key, items in ours.items():
        if key in JOINED and isinstance(items, list):
            expected[key] = items + (before.get(key) or [])
    # The second comparison is for values that are not equal to themselves (.nan).
    if after != expected and repr(sorted(after.items(), key=str)) != repr(sorted(expected.items(), key=str)):
        raise CloudInitError(
            "bootstrap data is YAML of a form that cannot be extended safely (anchors or tags on its lists): "
            "write the lists plainly"
        )


def _construct(root: yaml.MappingNode | None, source: _Source) -> dict[Any, Any]:
    if root is None:
        return {}
    try:
        values: dict[Any, Any] = construct_yaml(root)
    except TextError as error:
        raise _refused(error, source) from None
    return values
