"""The tree of one YAML document: values together with the places they come from."""

from dataclasses import dataclass, field
from typing import Any

from caphv.validation.yaml.yaml_rules import Position, TextFinding

FieldPath = tuple[str | int, ...]


class Node:
    """A value and its place. `keys` holds the places of a mapping's keys, `plain` the text of an unquoted scalar."""

    __slots__ = ("children", "keys", "plain", "position", "size", "value")

    def __init__(self, position: Position, value: Any, plain: str | None = None) -> None:
        self.position = position
        self.value = value
        self.plain = plain
        self.children: dict[str, Node] | list[Node] | None = None
        self.keys: dict[str, Position] = {}
        # How many values it stands for, with all aliases in it written out.
        self.size = 1

    def child(self, part: str | int) -> "Node | None":
        """The value below a key or index; None when there is none."""
        if isinstance(self.children, dict) and isinstance(part, str):
            return self.children.get(part)
        if isinstance(self.children, list) and isinstance(part, int) and 0 <= part < len(self.children):
            return self.children[part]
        return None


@dataclass(slots=True)
class Document:
    """One document of a stream: `root.value` is the plain value; `problems` are what was noticed on the way."""

    root: Node
    problems: list[TextFinding] = field(default_factory=list)

    @property
    def value(self) -> Any:
        """The document as JSON would hold it."""
        return self.root.value

    def position(self, path: FieldPath) -> Position:
        """Where a field stands; of one that is absent, where the nearest thing around it stands.

        That is the value when it begins on the line of its key, else the key.
        """
        node, at = self.root, self.root.position
        for part in path:
            below = node.child(part)
            if below is None:
                break
            at = below.position
            if isinstance(part, str):
                key = node.keys[part]
                at = key if below.children is not None or at.line != key.line else at
            node = below
        return at

    def key_position(self, path: FieldPath) -> Position:
        """Return the position of a field's key, for findings about the key itself."""
        parent = self.node(path[:-1])
        key = parent.keys.get(str(path[-1])) if parent and path else None
        return key or self.position(path)

    def node(self, path: FieldPath) -> Node | None:
        """The node of a field; None when there is none."""
        node: Node | None = self.root
        for part in path:
            node = node.child(part) if node else None
        return node
