"""Render the subset of Go's text/template that patches of ClusterClasses use.

It supports if, range, variables and a few functions. Everything else raises `UnsupportedError`,
because a prediction that may be wrong is worse than none.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from caphv.api.object import Obj, at

_TOKEN = re.compile(r'\(|\)|\||"(?:[^"\\]|\\.)*+"?|[^\s()|"]+')
_MAX_TEXT_LENGTH = 256 * 1024
_MAX_ACTION_LENGTH = 4096
_MAX_STEPS = 100_000
_MAX_DEPTH = 50


class UnsupportedError(ValueError):
    """A template uses a feature that is not supported here."""


@dataclass(frozen=True, slots=True)
class _Action:
    """An assignment, or a value to write."""

    text: str


@dataclass(frozen=True, slots=True)
class _Branch:
    """One branch of an `if`; the test of `else` is empty."""

    test: str
    body: Sequence[_Node]


@dataclass(frozen=True, slots=True)
class _If:
    branches: Sequence[_Branch]


@dataclass(frozen=True, slots=True)
class _Range:
    items: str
    body: Sequence[_Node]


# Plain text is a node as well.
_Node = str | _Action | _If | _Range


def render(template: str, variables: Obj) -> str:
    """Render a template with variables. Raises `UnsupportedError`."""
    if len(template) > _MAX_TEXT_LENGTH:
        raise UnsupportedError("the template is too long")

    # The pieces are in reverse order, because removing one from the end of a list moves no others.
    pieces = list(_pieces(template))[::-1]
    nodes = _parse(pieces, 0, ()).nodes
    return "".join(_Renderer(variables).run(nodes, variables))


def is_true(value: Any) -> bool:
    """Return whether Go counts a value as true, because it is neither zero nor empty."""
    return bool(value)


def is_known_builtin(value: Any) -> bool:
    """Return whether the value of a builtin is complete. Groups of builtins are incomplete."""
    return value is not None and not isinstance(value, dict)


class _Renderer:
    def __init__(self, root: Obj) -> None:
        self._variables: dict[str, Any] = {"$": root}
        self._steps = 0

    def run(self, nodes: Sequence[_Node], dot: Any) -> Iterator[str]:
        """Yield the texts of nodes.

        :param dot: the value of `.` in Go's templates
        """
        for node in nodes:
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise UnsupportedError("the template takes too long")

            match node:
                case str():
                    yield node
                case _If():
                    yield from self._run_if(node, dot)
                case _Range():
                    yield from self._run_range(node, dot)
                case _Action():
                    yield from self._run_action(node.text, dot)

    def _run_if(self, node: _If, dot: Any) -> Iterator[str]:
        """Yield the texts of the first branch whose test holds."""
        for branch in node.branches:
            if branch.test == "" or is_true(self._value(branch.test, dot)):
                yield from self.run(branch.body, dot)
                return

    def _run_range(self, node: _Range, dot: Any) -> Iterator[str]:
        items = self._value(node.items, dot) or ()
        if isinstance(items, dict):
            items = [items[key] for key in sorted(items)]
        elif not isinstance(items, list):
            items = ()
        for item in items:
            yield from self.run(node.body, item)

    def _run_action(self, text: str, dot: Any) -> Iterator[str]:
        """Assign a variable, or yield the text of a value."""
        if match := re.fullmatch(r"(\$\w+)\s*:?=\s*(.*)", text, re.DOTALL):
            self._variables[match[1]] = self._value(match[2], dot)
        else:
            yield _text(self._value(text, dot))

    def _value(self, text: str, dot: Any) -> Any:
        tokens = deque(_TOKEN.findall(text))
        if tokens.count("(") > _MAX_DEPTH:
            raise UnsupportedError("an action has too many brackets")
        value = self._pipeline(tokens, dot)
        if tokens:
            raise UnsupportedError(f"{{{{ {text} }}}} is not understood")
        return value

    # Each of these methods removes the tokens that it evaluates from the beginning.

    def _pipeline(self, tokens: deque[str], dot: Any) -> Any:
        value = self._command(tokens, dot, [])
        while tokens and tokens[0] == "|":
            tokens.popleft()
            value = self._command(tokens, dot, [value])
        return value

    def _command(self, tokens: deque[str], dot: Any, last: list[Any]) -> Any:
        """Return the value of a command of a pipeline.

        :param last: the value of the previous command, which becomes the last operand
        """
        name = tokens.popleft() if tokens and tokens[0] in _FUNCTIONS else ""
        operands: list[Any] = []
        while tokens and tokens[0] not in (")", "|"):
            operands.append(self._operand(tokens, dot))
        operands += last

        if name:
            try:
                return _FUNCTIONS[name](*operands)
            except TypeError:
                raise UnsupportedError(f"{name} has {len(operands)} arguments") from None
        if len(operands) != 1:
            raise UnsupportedError("a call of a function that is not known")
        return operands[0]

    def _operand(self, tokens: deque[str], dot: Any) -> Any:
        word = tokens.popleft()
        if word == "(":
            value = self._pipeline(tokens, dot)
            if not tokens:
                raise UnsupportedError("a bracket is not closed")
            tokens.popleft()
            return value

        if word.startswith('"'):
            if len(word) == 1 or not word.endswith('"'):
                raise UnsupportedError("a text is not closed")
            return word[1:-1].replace('\\"', '"')
        if re.fullmatch(r"-?[0-9]+", word):
            return int(word)
        if word in ("true", "false"):
            return word == "true"
        return self._field(word, dot)

    def _field(self, word: str, dot: Any) -> Any:
        """Return the value of `.field`, `$variable` or `$variable.field`."""
        head, _, path = word.partition(".")
        if head and head not in self._variables:
            raise UnsupportedError(f"{word} is not known")

        names = path.split(".")
        root = self._variables[head] if head else dot
        value = at(root, *filter(None, names))

        # Cluster API knows more builtins, so a builtin without a value here may have one there.
        is_builtin = root is self._variables["$"] and names[0] == "builtin"
        if is_builtin and not is_known_builtin(value):
            raise UnsupportedError(f"{word} is not known")
        return value


def _and(*values: Any) -> Any:
    """Return the first value that is false, else the last value."""
    for value in values:
        if not is_true(value):
            return value
    return values[-1] if values else None


def _or(*values: Any) -> Any:
    """Return the first value that is true, else the last value."""
    for value in values:
        if is_true(value):
            return value
    return values[-1] if values else None


def _default(other: Any, value: Any = None) -> Any:
    return value if is_true(value) else other


def _to_json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


_FUNCTIONS: dict[str, Any] = {
    "and": _and,
    "or": _or,
    "not": lambda value: not is_true(value),
    "eq": lambda first, *others: first in others,
    "ne": lambda first, second: first != second,
    "toJson": _to_json,
    "quote": lambda value: _to_json(_text(value)),
    "default": _default,
    "len": lambda value: len(value or ()),
    "hasKey": lambda mapping, key: isinstance(mapping, dict) and key in mapping,
}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int)):
        return str(value)
    if value is None:
        return "<no value>"
    raise UnsupportedError("a value that is neither text nor number is written without toJson")


def _pieces(template: str) -> Iterator[tuple[str, str]]:
    """Yield texts and actions. Trim the white space before `{{-` and after `-}}`."""
    position = 0
    trims = False
    while True:
        start = template.find("{{", position)
        end = template.find("}}", start + 2) if start >= 0 else -1
        if end < 0:
            break
        text = template[position:start]
        text = text.lstrip() if trims else text

        inner = template[start + 2 : end]
        if len(inner) > _MAX_ACTION_LENGTH:
            raise UnsupportedError("an action is too long")

        trims_before = inner[:1] == "-" and inner[1:2].isspace()
        yield "text", text.rstrip() if trims_before else text

        inner = inner[1:] if trims_before else inner
        position = end + 2
        trims = inner[-1:] == "-" and inner[-2:-1].isspace()
        action = (inner[:-1] if trims else inner).strip()
        if not action.startswith("/*"):
            yield "action", action

    tail = template[position:]
    yield "text", tail.lstrip() if trims else tail


class _Block(NamedTuple):
    """Parsed nodes, and the action that ended them, empty at the end of the template."""

    nodes: list[_Node]
    end: str


def _parse(pieces: list[tuple[str, str]], depth: int, ends: tuple[str, ...]) -> _Block:
    """Parse pieces from the end of the list to nodes, until one of the words in `ends`."""
    if depth > _MAX_DEPTH:
        raise UnsupportedError("blocks are nested too deeply")

    nodes: list[_Node] = []
    while pieces:
        kind, text = pieces.pop()
        if kind == "text":
            nodes.append(text)
            continue

        word = text.split(None, 1)[0] if text else ""
        if word in ends:
            return _Block(nodes, text)
        nodes.append(_parse_action(pieces, depth, word, text))

    if ends:
        raise UnsupportedError("a block is not closed")
    return _Block(nodes, "")


def _parse_action(pieces: list[tuple[str, str]], depth: int, word: str, text: str) -> _Node:
    """Return the node of an action, including its block.

    :param pieces: the pieces that follow the action, last piece first
    :param depth: depth of the block around the action
    :param word: first word of the action
    :param text: text of the action
    """
    if word == "if":
        test = text.removeprefix("if").strip()
        if not test:
            raise UnsupportedError("an if has no condition")
        return _If(_branches(pieces, depth, test))
    if word == "range":
        test = text.removeprefix("range").strip()
        if ":=" in test:
            raise UnsupportedError("range with variables")
        return _Range(test, _parse(pieces, depth + 1, ("end",)).nodes)

    if word in ("else", "end", "with", "define", "template", "block", "break", "continue"):
        raise UnsupportedError(f"{{{{ {text} }}}}")
    return _Action(text)


def _branches(pieces: list[tuple[str, str]], depth: int, test: str) -> list[_Branch]:
    """Return the tests and bodies of an `if` with its `else if` and `else`, whose test is empty."""
    branches = []
    branch_test = test
    while True:
        block = _parse(pieces, depth + 1, ("else", "end"))
        branches.append(_Branch(branch_test, block.nodes))
        if block.end == "end":
            return branches
        branch_test = block.end.removeprefix("else").strip().removeprefix("if").strip()
