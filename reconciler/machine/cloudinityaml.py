"""Parse cloud-config into its format, its nodes with their positions, and its values.

No error of this module quotes bootstrap data, because it holds join tokens and keys.
"""

import re
from typing import Any, NamedTuple

import yaml

from caphv.runtime.text import Limits, TextError, compose_yaml, construct_yaml

MAX_SECRET_BYTES = 1024 * 1024
"""Kubernetes refuses a Secret if the sum of its values is larger."""

MAX_NODES = 100_000
"""Upper bound of YAML nodes after all aliases are followed.

A few lines of nested aliases can expand to billions of nodes.
"""
_LIMITS = Limits(size=2 * MAX_SECRET_BYTES, nodes=MAX_NODES)

_TEMPLATE = re.compile(r"##\s*template:\s*jinja\s*", re.IGNORECASE)


class Source(NamedTuple):
    """Name of a text for messages, and the remedy if it is not cloud-config."""

    name: str
    remedy: str


BOOTSTRAP = Source("bootstrap data", "set the bootstrap provider's format to cloud-config")
USER_DATA = Source("spec.guestConfig.userData", "write plain cloud-config, a YAML mapping")
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


class CloudInitError(ValueError):
    """Bootstrap data that a VM cannot use.

    The message says what to do and quotes nothing of the data.
    """


def split_header(text: str, source: Source) -> tuple[bool, str]:
    """Return whether the data is a template, and the data without its header lines.

    Raises `CloudInitError` for data in another format than cloud-config.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    first_line, _, following = text.partition("\n")
    is_template = _TEMPLATE.fullmatch(first_line) is not None
    body = following if is_template else text

    start = body.lstrip().lower()
    for mark, meaning in _FOREIGN_STARTS.items():
        if start.startswith(mark):
            raise CloudInitError(f"{source.name} is {meaning}, not cloud-config: {source.remedy}")
    if start.startswith("{") and re.search(r'"ignition"\s*:', start):
        raise CloudInitError(
            f"{source.name} is an Ignition configuration, not cloud-config: {source.remedy}"
        )
    return is_template, re.sub(r"\A\s*#cloud-config[ \t]*(?:\n|\Z)", "", body)


def compose(text: str, source: Source) -> yaml.MappingNode | None:
    """Parse a text to nodes with their positions. Return None for an empty document."""
    try:
        node = compose_yaml(text, _LIMITS)
    except TextError as error:
        raise _parse_error(error, source) from None
    if node is None or (isinstance(node, yaml.ScalarNode) and node.value in ("", "null", "~")):
        return None
    if not isinstance(node, yaml.MappingNode):
        raise CloudInitError(
            f"{source.name} is not a mapping of cloud-config keys: {source.remedy}"
        )
    return node


def _parse_error(error: TextError, source: Source) -> CloudInitError:
    place = ", counted after its header" if error.line else ""
    return CloudInitError(f"{source.name} {error}{place}: correct its files and commands")


def construct(root: yaml.MappingNode | None, source: Source) -> dict[Any, Any]:
    """Return the values of parsed nodes."""
    if root is None:
        return {}
    try:
        values: dict[Any, Any] = construct_yaml(root)
    except TextError as error:
        raise _parse_error(error, source) from None
    return values
