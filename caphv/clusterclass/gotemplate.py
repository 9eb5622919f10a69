"""The part of Go's text/template that patches of ClusterClasses use: if, range, variables and a few functions.

Everything else raises `UnsupportedError`: a prediction that may be wrong is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

_TOKEN = re.compile(r'\(|\)|\||"(?:[^"\\]|\\.)*+"?|[^\s()|"]+')
_LONGEST, _LONGEST_ACTION, _MOST_STEPS, _DEEPEST = 256 * 1024, 4096, 100_000, 50


class UnsupportedError(ValueError):
    """A template uses what is not evaluated here."""


def render(template: str, variables: dict[str, Any]) -> str:
    """Return the text of a template over variables. Raises `UnsupportedError`."""
    if len(template) > _LONGEST:
        raise UnsupportedError("the template is too long")
    # Last piece first: taking one off the end moves no others.
    nodes, rest = _parse(list(_pieces(template))[::-1], 0, ())
    if rest is not None:
        raise UnsupportedError(f"{{{{ {rest} }}}} has no beginning")
    return "".join(_Renderer(variables).run(nodes, variables))


def is_true(value: Any) -> bool:
    """Whether Go counts a value as true: neither zero nor empty."""
    return bool(value)


def is_known_builtin(value: Any) -> bool:
    """Whether the value of a builtin can be relied on. Of a group of builtins, only some are known."""
    return value is not None and not isinstance(value, dict)


class _Renderer:
    def __init__(self, root: dict[str, Any]) -> None:
        self._variables: dict[str, Any] = {"$": root}
        self._steps = 0

    def run(self, nodes: Sequence[Any], dot: Any) -> Iterator[str]:
        for node in nodes:
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise UnsupportedError("the template takes too long")
            if isinstance(node, str):
                yield node
            elif node[0] == "if":
                yield from self.run(next((body for test, body in node[1] if self._holds(test, dot)), ()), dot)
            elif node[0] == "range":
                items = self._value(node[1], dot) or ()
                if not isinstance(items, list):
                    items = [items[key] for key in sorted(items)] if isinstance(items, dict) else ()
                for item in items:
                    yield from self.run(node[2], item)
            else:
                yield from self._action(node[1], dot)

    def _holds(self, test: str, dot: Any) -> bool:
        return test == "" or is_true(self._value(test, dot))

    def _action(self, text: str, dot: Any) -> Iterator[str]:
        if match := re.fullmatch(r"(\$\w+)\s*:?=\s*(.*)", text, re.DOTALL):
            self._variables[match[1]] = self._value(match[2], dot)
            return
        yield _text(self._value(text, dot))

    def _value(self, text: str, dot: Any) -> Any:
        tokens = _TOKEN.findall(text)
        if tokens.count("(") > _DEEPEST:
            raise UnsupportedError("an action has too many brackets")
        value, rest = self._pipeline(tokens, dot)
        if rest:
            raise UnsupportedError(f"{{{{ {text} }}}} is not understood")
        return value

    def _pipeline(self, tokens: list[str], dot: Any) -> tuple[Any, list[str]]:
        value, tokens = self._command(tokens, dot, [])
        while tokens and tokens[0] == "|":
            value, tokens = self._command(tokens[1:], dot, [value])
        return value, tokens

    def _command(self, tokens: list[str], dot: Any, last: list[Any]) -> tuple[Any, list[str]]:
        operands: list[Any] = []
        name = tokens[0] if tokens and tokens[0] in _FUNCTIONS else ""
        tokens = tokens[1:] if name else tokens
        while tokens and tokens[0] not in (")", "|"):
            value, tokens = self._operand(tokens, dot)
            operands.append(value)
        operands += last
        if name:
            try:
                return _FUNCTIONS[name](*operands), tokens
            except TypeError:
                raise UnsupportedError(f"{name} has {len(operands)} arguments") from None
        if len(operands) != 1:
            raise UnsupportedError("a call of a function that is not known")
        return operands[0], tokens

    def _operand(self, tokens: list[str], dot: Any) -> tuple[Any, list[str]]:
        word, rest = tokens[0], tokens[1:]
        if word == "(":
            value, rest = self._pipeline(rest, dot)
            if not rest:
                raise UnsupportedError("a bracket is not closed")
            return value, rest[1:]
        if word.startswith('"'):
            if len(word) == 1 or not word.endswith('"'):
                raise UnsupportedError("a text is not closed")
            return word[1:-1].replace('\\"', '"'), rest
        if re.fullmatch(r"-?[0-9]+", word):
            return int(word), rest
        if word in ("true", "false"):
            return word == "true", rest
        head, _, path = word.partition(".")
        if head and head not in self._variables:
            raise UnsupportedError(f"{word} is not known")
        root = value = self._variables[head] if head else dot
        for name in filter(None, path.split(".")):
            value = value.get(name) if isinstance(value, dict) else None
        # Cluster API knows more builtins than are known here: one that is absent here may have a value there.
        if root is self._variables["$"] and path.split(".", maxsplit=1)[0] == "builtin" and not is_known_builtin(value):
            raise UnsupportedError(f"{word} is not known")
        return value, rest


def _and(*values: Any) -> Any:
    return next((value for value in values if not is_true(value)), values[-1] if values else None)


def _or(*values: Any) -> Any:
    return next((value for value in values if is_true(value)), values[-1] if values else None)


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
    """Yield texts and actions, with the white space trimmed that `{{-` and `-}}` ask for."""
    position, trims = 0, False

    while (start := template.find("{{", position)) >= 0 and (end := template.find("}}", start + 2)) >= 0:
        text = template[position:start]
        text = text.lstrip() if trims else text

        inner = template[start + 2 : end]
        if len(inner) > _LONGEST_ACTION:
            raise UnsupportedError("an action is too long")

        trims_before = inner[:1] == "-" and inner[1:2].isspace()
        yield "text", text.rstrip() if trims_before else text

        inner = inner[1:] if trims_before else inner
        position, trims = end + 2, inner[-1:] == "-" and inner[-2:-1].isspace()
        action = (inner[:-1] if trims else inner).strip()
        if not action.startswith("/*"):
            yield "action", action

    rest = template[position:]
    yield "text", rest.lstrip() if trims else rest


def _parse(pieces: list[tuple[str, str]], depth: int, ends: tuple[str, ...]) -> tuple[list[Any], str | None]:
    """Take nodes off the end of the pieces until one of the words in `ends`.

    Return them, and the action that ended them.
    """
    if depth > _DEEPEST:
        raise UnsupportedError("blocks are nested too deeply")
    nodes: list[Any] = []
    while pieces:
        kind, text = pieces.pop()
        word = text.split(None, 1)[0] if kind == "action" and text else ""
        if kind == "text":
            nodes.append(text)
        elif word in ends:
            return nodes, text
        elif word == "if":
            nodes.append(("if", _branches(pieces, depth, text.removeprefix("if").strip())))
        elif word == "range":
            test = text.removeprefix("range").strip()
            if ":=" in test:
                raise UnsupportedError("range with variables")
            body, _ = _parse(pieces, depth + 1, ("end",))
            nodes.append(("range", test, body))
        elif word in ("else", "end", "with", "define", "template", "block", "break", "continue"):
            raise UnsupportedError(f"{{{{ {text} }}}}")
        else:
            nodes.append(("action", text))
    if ends:
        raise UnsupportedError("a block is not closed")
    return nodes, None


def _branches(pieces: list[tuple[str, str]], depth: int, test: str) -> list[tuple[str, list[Any]]]:
    branches = []
    while True:
        body, ended = _parse(pieces, depth + 1, ("else", "end"))
        branches.append((test, body))
        if ended == "end":
            return branches
        test = str(ended).removeprefix("else").strip().removeprefix("if").strip()
