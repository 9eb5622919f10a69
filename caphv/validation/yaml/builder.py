"""Build the nodes of documents from the events of the YAML parser.

It does not recurse and never copies an alias, so that memory and depth are bounded for any text.
"""

import re
from typing import Any

import yaml

from caphv.validation.yaml import yaml11, yaml_rules
from caphv.validation.yaml.tree import Document, Node
from caphv.validation.yaml.yaml_rules import Position, TextFinding, text_finding

MAX_ALIASED = 100_000
MAX_DEPTH = 100
_TAGS = "tag:yaml.org,2002:"


class Broken(Exception):
    """A document cannot be read."""

    def __init__(self, problem: TextFinding) -> None:
        super().__init__(problem.finding.detail)
        self.problem = problem


class Builder:
    """Build the nodes of one document after the other from the events of the parser."""

    def __init__(self, first_line: int) -> None:
        self._first_line = first_line
        self._forget()

    def _forget(self) -> None:
        self._open: list[_Mapping | _Sequence] = []
        self._anchors: dict[str, Node] = {}
        self._root: Node | None = None
        self._aliased = 0
        self.problems: list[TextFinding] = []

    def take(self, event: yaml.Event) -> Document | None:
        """Take the next event, and return a document that ends with it, else None."""
        if isinstance(event, yaml.ScalarEvent):
            self._put(self._scalar(event))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end()
        elif isinstance(event, yaml.AliasEvent):
            self._put(self._alias(event))
        elif isinstance(event, yaml.DocumentEndEvent) and self._root:
            document = Document(self._root, self.problems)
            self._forget()
            return document
        return None

    def position(self, event: Any) -> Position:
        """Return where an event begins in the file."""
        return Position(self._first_line + event.start_mark.line + 1, event.start_mark.column + 1)

    def _start(self, event: Any) -> None:
        position = self.position(event)
        if len(self._open) >= MAX_DEPTH:
            message = f"more than {MAX_DEPTH} mappings and lists inside one another"
            remedy = "an object of Kubernetes is far less deep"
            raise Broken(text_finding(yaml_rules.DEPTH, position, message, remedy))

        is_mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", f"{_TAGS}map" if is_mapping else f"{_TAGS}seq"):
            raise Broken(_tag(position, event.tag))
        collection = _Mapping if is_mapping else _Sequence
        self._open.append(collection(position, event.anchor, self.problems))

    def _end(self) -> None:
        collection = self._open.pop()
        node = collection.to_node()
        if collection.anchor:
            self._anchors[collection.anchor] = node
        self._put(node)

    def _scalar(self, event: Any) -> Node:
        position = self.position(event)
        node = Node(position, event.value)

        # Resolve plain text without a tag, or with the tag of a type that the text has anyway.
        is_plain = event.tag is None and event.implicit[0]
        if is_plain or event.tag in _RESOLVED_TAGS:
            node.plain = event.value
            self._resolve(node)
        elif event.tag not in _TEXT_TAGS:
            raise Broken(_tag(position, event.tag))

        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _resolve(self, node: Node) -> None:
        """Replace the text of a plain scalar by the value that kubectl reads."""
        text: str = node.value
        try:
            node.value = yaml11.resolve(text)
        except ValueError as error:
            remedy = "write a number, or quote the text"
            problem = text_finding(yaml_rules.NUMBER, node.position, str(error), remedy)
            self.problems.append(problem)

        if yaml11.looks_octal(text) and isinstance(node.value, int):
            message = f"{text} is read as the octal number {node.value}"
            remedy = f'write {text.lstrip("0")}, or "{text}" if text is meant'
            self.problems.append(text_finding(yaml_rules.OCTAL, node.position, message, remedy))

    def _alias(self, event: Any) -> Node:
        position = self.position(event)
        if event.anchor not in self._anchors:
            message = f"alias *{event.anchor} names no anchor"
            remedy = f"write &{event.anchor} before the value it stands for"
            raise Broken(text_finding(yaml_rules.ALIAS, position, message, remedy))

        node = self._anchors[event.anchor]
        self._aliased += node.size
        if self._aliased > MAX_ALIASED:
            message = f"aliases stand for more than {MAX_ALIASED:,} values"
            remedy = "write the values out, in several documents"
            raise Broken(text_finding(yaml_rules.ALIAS, position, message, remedy))
        return node

    def _put(self, node: Node) -> None:
        if self._open:
            self._open[-1].put(node)
        else:
            self._root = node


_RESOLVED_TAGS = frozenset(_TAGS + name for name in ("null", "bool", "int", "float"))
_TEXT_TAGS = frozenset({None, "!", *(_TAGS + name for name in ("str", "binary", "timestamp"))})


class _Sequence:
    """A list whose end has not been read yet."""

    def __init__(
        self, position: Position, anchor: str | None, _problems: list[TextFinding]
    ) -> None:
        self.anchor = anchor
        self._position = position
        self._items: list[Node] = []

    def put(self, node: Node) -> None:
        self._items.append(node)

    def to_node(self) -> Node:
        node = Node(self._position, [item.value for item in self._items])
        node.children = self._items
        node.size += sum(item.size for item in self._items)
        return node


class _Mapping:
    """A mapping whose end has not been read yet."""

    def __init__(self, position: Position, anchor: str | None, problems: list[TextFinding]) -> None:
        self.anchor = anchor
        self._position = position
        self._problems = problems
        self._items: dict[str, Node] = {}
        self._keys: dict[str, Position] = {}
        self._merged: list[Node] = []
        self._key: Node | None = None

    def put(self, node: Node) -> None:
        if self._key is None:
            self._key = node
            return
        key = self._key
        self._key = None
        if key.plain == "<<":
            self._merge(key, node)
        else:
            self._set(self._name(key), key.position, node)

    def to_node(self) -> Node:
        # Keys of the mapping itself take precedence over merged keys, and keys that are merged
        # first over keys that are merged later.
        for merged in self._merged:
            if isinstance(merged.children, dict):
                for name, child in merged.children.items():
                    self._items.setdefault(name, child)
                    self._keys.setdefault(name, merged.keys[name])

        node = Node(self._position, {name: item.value for name, item in self._items.items()})
        node.children = self._items
        node.keys = self._keys
        node.size += sum(item.size for item in self._items.values())
        return node

    def _set(self, name: str, position: Position, node: Node) -> None:
        if name in self._keys:
            shown = name if re.fullmatch(r"[\w./-]{1,80}", name) else repr(name[:80])
            message = f"key {shown} is already in this mapping, at line {self._keys[name].line}"
            problem = text_finding(yaml_rules.DUPLICATE_KEY, position, message, "keep one of them")
            self._problems.append(problem)
        self._items[name] = node
        self._keys[name] = position

    def _name(self, key: Node) -> str:
        """Return a key as text. Raises `Broken` unless it can be text."""
        if isinstance(key.value, str):
            return key.value

        if key.children is not None or key.value is None:
            message = "a key that is not text" if key.children is not None else "an empty key"
            remedy = "write a plain word before the colon"
            raise Broken(text_finding(yaml_rules.KEY, key.position, message, remedy))

        # kubectl writes such keys in this form when it converts YAML to JSON.
        name = str(key.value).lower() if isinstance(key.value, bool) else str(key.value)
        if name != key.plain:
            message = f"key {key.plain} is read as {name}"
            remedy = f'write "{key.plain}": with quotes'
            self._problems.append(text_finding(yaml_rules.KEY, key.position, message, remedy))
        return name

    def _merge(self, key: Node, node: Node) -> None:
        mappings = node.children if isinstance(node.children, list) else [node]
        if not all(isinstance(mapping.children, dict) for mapping in mappings):
            message = "<< merges mappings only"
            remedy = "give it an alias of a mapping"
            raise Broken(text_finding(yaml_rules.KEY, key.position, message, remedy))
        self._merged += mappings


def _tag(position: Position, tag: str) -> TextFinding:
    message = f"tag {tag} has no meaning in an object of Kubernetes"
    return text_finding(yaml_rules.TAG, position, message, "remove the tag")
