"""The tree of one YAML document, with values and their places in the text."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from caphv.api.object import Obj, at
from caphv.validation.yaml.yaml_rules import Position, TextFinding

FieldPath = tuple[str | int, ...]


class Node:
    """A value and its place.

    `keys` holds the places of a mapping's keys, `plain` the text of an unquoted scalar.
    """

    __slots__ = ("children", "keys", "plain", "position", "size", "value")

    def __init__(self, position: Position, value: Any, plain: str | None = None) -> None:
        self.position = position
        self.value = value
        self.plain = plain
        self.children: dict[str, Node] | list[Node] | None = None
        self.keys: dict[str, Position] = {}
        # Number of values in this node with all aliases expanded.
        self.size = 1

    def child(self, part: str | int) -> "Node | None":
        """Return the value below a key or index, None when there is none."""
        if isinstance(self.children, dict) and isinstance(part, str):
            return self.children.get(part)
        if isinstance(self.children, list) and isinstance(part, int):
            return self.children[part] if 0 <= part < len(self.children) else None
        return None


@dataclass(slots=True)
class Document:
    """A document of a stream. `root.value` is its plain value, `problems` arose in parsing."""

    root: Node
    problems: list[TextFinding] = field(default_factory=list)

    @property
    def value(self) -> Any:
        """The document as JSON would hold it."""
        return self.root.value

    def objects(self) -> Iterator[tuple[Obj, FieldPath]]:
        """Yield the object of the document, or each object of a List, with its path."""
        items = at(self.value, "items")
        if isinstance(items, list) and str(at(self.value, "kind")).endswith("List"):
            for index, item in enumerate(items):
                if isinstance(item, dict):
                    yield item, ("items", index)
        elif isinstance(self.value, dict):
            yield self.value, ()

    def position(self, path: FieldPath) -> Position:
        """Return the place of a field, or of the nearest value around an absent field.

        This is the place of the value if it begins on the line of its key, else the place of the
        key.
        """
        node = self.root
        position = self.root.position
        for part in path:
            below = node.child(part)
            if below is None:
                break

            position = below.position
            if isinstance(part, str):
                key_position = node.keys[part]
                if below.children is not None or position.line != key_position.line:
                    position = key_position
            node = below
        return position

    def key_position(self, path: FieldPath) -> Position:
        """Return the position of a field's key, for findings about the key itself."""
        parent = self.node(path[:-1])
        key = parent.keys.get(str(path[-1])) if parent and path else None
        return key or self.position(path)

    def node(self, path: FieldPath) -> Node | None:
        """Return the node of a field, None when there is none."""
        node: Node | None = self.root
        for part in path:
            node = node.child(part) if node else None
        return node
