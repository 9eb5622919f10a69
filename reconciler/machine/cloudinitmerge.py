"""Insert cloud-config into bootstrap data as text, and prove that nothing else has changed.

The bootstrap data may be a Jinja template, so it is never serialised again. A copy without Jinja
has the same lines and columns, so the positions of its nodes are valid in the original text.
"""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from reconciler.machine import yamltext
from reconciler.machine.cloudinityaml import BOOTSTRAP, CloudInitError, compose, construct
from reconciler.machine.guest import JOINED, CloudConfig

_BLOCK_START = re.compile(r"\{%[-+]?\s*(?:if|for|macro|call|filter)\b")
_BLOCK_END = re.compile(r"\{%[-+]?\s*end(?:if|for|macro|call|filter)\b")
_DOCUMENT_START = re.compile(r"(?:(?:%[^\n]*|[ \t]*(?:#[^\n]*)?)\n)*---(?:[ \t][^\n]*)?\n")
# YAML 1.1 has several line breaks, and the line numbers of its parsers count all of them.
_LINE = re.compile("[^\n\r\x85\u2028\u2029]*(?:\r\n|[\n\r\x85\u2028\u2029]|\\Z)")


class _Edit(NamedTuple):
    """Replacement of columns `start` to `end` of a line by `text`. Edits do not overlap."""

    line: int
    start: int
    end: int
    text: str


def insert(body: str, masked: str, root: yaml.MappingNode | None, ours: CloudConfig) -> str:
    """Return the bootstrap data with `ours` inserted.

    Items are inserted at the head of existing lists, and keys that the bootstrap data lacks before
    all others. An existing key keeps its value, unless its lists are joined (`JOINED`).

    :param body: the bootstrap data without its header
    :param masked: `body` without Jinja, with the same lines and columns
    :param root: nodes of `masked`
    :param ours: cloud-config to insert
    """
    if root is None:
        return yamltext.block(ours, 0)
    present = {
        key.value: (key, value) for key, value in root.value if isinstance(key, yaml.ScalarNode)
    }
    # Our keys would silently override keys that the merge key adds.
    if "<<" in present:
        raise CloudInitError(
            "bootstrap data uses the YAML merge key << at its top: write the keys out"
        )

    # One edit adds all missing keys, and one more edit extends each list that both have.
    lines = _LINE.findall(masked)
    missing = {key: value for key, value in ours.items() if key not in present}
    edits = [_key_edit(missing, root, masked, lines)]
    for key, items in ours.items():
        if key not in present or key not in JOINED or not isinstance(items, list):
            continue
        key_node, node = present[key]
        # Inside a block, the items would be there only if the condition of the block holds.
        if _is_in_block(body, root if root.flow_style else key_node):
            raise CloudInitError(
                f"{key} of the bootstrap data is inside a Jinja block: move the block into the list"
            )
        is_flow = bool(root.flow_style)
        edits.append(_list_edit(key, items, key_node, node, lines=lines, is_flow=is_flow))

    body_lines = _LINE.findall(body)
    # Apply the edits from the end, so that no edit moves the place of another one.
    for edit in sorted(edits, reverse=True):
        line = body_lines[edit.line]
        body_lines[edit.line] = line[: edit.start] + edit.text + line[edit.end :]
    return "".join(body_lines)


def _key_edit(
    missing: CloudConfig, root: yaml.MappingNode, masked: str, lines: Sequence[str]
) -> _Edit:
    """Return the edit that puts keys which the bootstrap data lacks before all others."""
    if root.flow_style:
        line = root.start_mark.line
        column = lines[line].index("{", root.start_mark.column) + 1
        pairs = "".join(
            f"{json.dumps(key)}: {yamltext.flow(value)}, " for key, value in missing.items()
        )
        return _Edit(line, column, column, pairs)

    # Directives and the start marker of the document must stay the first lines.
    start = _DOCUMENT_START.match(masked)
    line = start[0].count("\n") if start else 0
    return _Edit(line, 0, 0, yamltext.block(missing, root.value[0][0].start_mark.column))


def _is_in_block(body: str, node: yaml.Node) -> bool:
    """Return whether `node` is inside a Jinja block."""
    text_before = "".join(_LINE.findall(body)[: node.start_mark.line])
    return len(_BLOCK_START.findall(text_before)) > len(_BLOCK_END.findall(text_before))


def _list_edit(
    key: str,
    items: list[Any],
    key_node: yaml.Node,
    node: yaml.Node,
    *,
    lines: Sequence[str],
    is_flow: bool,
) -> _Edit:
    """Return the edit that puts items at the head of a list.

    :param key: the key of the list
    :param items: the items to insert
    :param key_node: node of the key
    :param node: node of the list
    :param lines: lines of the bootstrap data without Jinja
    :param is_flow: whether the bootstrap data has the flow style, `{key: value}`
    """
    line, column = node.start_mark.line, node.start_mark.column
    # If the key has no value, the list replaces the null.
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null":
        end = node.end_mark.column
        if is_flow or not items:
            return _Edit(line, column, end, f" {yamltext.flow(items)}")
        block = yamltext.list_items(items, key_node.start_mark.column).removesuffix("\n")
        return _Edit(line, column, end, "\n" + block)

    if not isinstance(node, yaml.SequenceNode):
        raise CloudInitError(f"{key} of the bootstrap data is not a list: write it as one")
    if node.flow_style:
        after = lines[line].index("[", column) + 1
        return _Edit(line, after, after, "".join(f"{yamltext.flow(item)}, " for item in items))

    # Use the indent of the existing items, which may equal the indent of the key.
    first = lines[node.value[0].start_mark.line]
    indent = len(first) - len(first.lstrip(" "))
    return _Edit(key_node.start_mark.line + 1, 0, 0, yamltext.list_items(items, indent))


def verify(root: yaml.MappingNode | None, merged: str, ours: CloudConfig) -> None:
    """Raise `CloudInitError` unless the merged text means the bootstrap data plus `ours`.

    Anchors, tags and other forms of YAML can give inserted text another meaning.
    """
    bootstrap = construct(root, BOOTSTRAP)
    result = construct(compose(merged, BOOTSTRAP), BOOTSTRAP)
    expected = {**ours, **bootstrap}
    for key, items in ours.items():
        if key in JOINED and isinstance(items, list):
            expected[key] = items + (bootstrap.get(key) or [])

    if result == expected:
        return
    # Compare representations, too, because .nan is not equal to itself.
    if repr(sorted(result.items(), key=str)) == repr(sorted(expected.items(), key=str)):
        return
    raise CloudInitError(
        "bootstrap data is YAML of a form that cannot be extended safely (anchors or tags on "
        "its lists): write the lists plainly"
    )
