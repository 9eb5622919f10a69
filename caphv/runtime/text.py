"""The single entry point for YAML and JSON that others wrote: bounded before anything is built from it.

libyaml's composer recurses on the C stack: 30,000 brackets end the process, and no `except` sees it. Aliases make
gigabytes of a few lines, and a number of a million digits blocks for minutes. So the parser's events are counted first,
which needs neither recursion nor memory, and only text within its limits is composed. A lint forbids every other
parser for text that is not our own (`pyproject.toml`, TID251).

No error of this module quotes the text: it may be a Secret.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
import yaml

Value = TypeVar("Value")

# The C parser is an optional part of PyYAML; without it, everything takes twenty times as long.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Nothing calculates with longer numbers, and converting them takes quadratic time.
_LONGEST_NUMBER = 400
_EVENTS_BETWEEN_CLOCK_CHECKS = 1024
# All up to the beginning of the next value: a bracket or comma outside of strings. It never steps back: its time is
# linear.
_JSON_VALUE = re.compile(
    rb'(?:[^"\[{,]++|"(?:[^"\\]++|\\.)*+"?|[\[{]\s*+[\]}])*+(?:[\[{,]|\Z)',
    re.DOTALL,
)
# What stays below may be read on the event loop: YAML takes 5 to 20 microseconds a value, of two characters or more.
_SMALL = 4 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one text. `nodes` counts values with all aliases written out; the bounds below it are for YAML only."""

    size: int = 1024 * 1024
    depth: int = 100
    nodes: int = 100_000
    seconds: float = 10.0
    aliases: bool = True
    anchors: bool = True


DEFAULT = Limits()


class TextError(ValueError):
    """Text that cannot be read; the message is a phrase such as `is not valid YAML (line 3, column 1)`."""

    def __init__(self, problem: str, line: int = 0, column: int = 0) -> None:
        self.problem, self.line, self.column = problem, line, column
        super().__init__(f"{problem} (line {line}, column {column})" if line else problem)


class AliasError(TextError):
    """A YAML alias is where it must not be."""


class _Loader(_PARSER):  # type: ignore[misc]
    """The safe loader of PyYAML, with numbers of bounded length."""


class _Constructor(yaml.constructor.SafeConstructor):
    """The same for nodes that are parsed already."""


def _number(constructor: Any, node: yaml.ScalarNode) -> Any:
    if len(str(node.value)) > _LONGEST_NUMBER:
        raise yaml.constructor.ConstructorError(None, None, "a number that is too long", node.start_mark)
    is_int = node.tag == "tag:yaml.org,2002:int"
    return constructor.construct_yaml_int(node) if is_int else constructor.construct_yaml_float(node)


for _class in (_Loader, _Constructor):
    for _tag in ("int", "float"):
        _class.add_constructor(f"tag:yaml.org,2002:{_tag}", _number)


def load_yaml(text: str | bytes, limits: Limits = DEFAULT) -> Any:
    """Return the value of a text with one YAML document; None for an empty one.

    Raises:
        TextError: the text is not YAML, or exceeds the limits.
    """
    return _built(text, limits, lambda checked: yaml.load(checked, Loader=_Loader))  # noqa: S506, TID251 - bounded


def load_yaml_all(text: str | bytes, limits: Limits = DEFAULT) -> list[Any]:
    """Return the values of all documents of a YAML stream. Raises TextError."""
    return _built(text, limits, lambda checked: list(yaml.load_all(checked, Loader=_Loader)))  # noqa: TID251 - bounded


def compose_yaml(text: str, limits: Limits = DEFAULT) -> yaml.Node | None:
    """Return the nodes of a text with one YAML document, which know their places. Raises TextError."""
    return _built(text, limits, lambda checked: yaml.compose(checked, Loader=_Loader))  # noqa: TID251 - bounded


def construct_yaml(root: yaml.Node) -> Any:
    """Return the value of nodes of `compose_yaml`. Raises TextError."""
    return _translated(lambda: _Constructor().construct_document(root))


def load_json(text: str | bytes | bytearray, limits: Limits = DEFAULT) -> Any:
    """Return the value of a JSON text. Raises TextError."""
    if len(text) > limits.size:
        raise TextError(_too_large(limits))
    content = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    # Both are upper bounds: most texts need no closer look.
    brackets = content.count(b"{") + content.count(b"[")
    if brackets + content.count(b",") >= limits.nodes and _has_more_values(content, limits.nodes):
        raise TextError(f"has more than {limits.nodes:,} values: make it smaller")
    try:
        value = orjson.loads(content)  # noqa: TID251 - bounded
    except orjson.JSONDecodeError as error:
        raise TextError("is not valid JSON", error.lineno, error.colno) from None
    if brackets > limits.depth and _deeper_than(value, limits.depth):
        raise TextError(_too_deep(limits))
    return value


async def off_loop(size: int, work: Callable[[], Value]) -> Value:
    """Return what `work` returns on a text of this size; run it in a thread where it would hold up the event loop."""
    return work() if size <= _SMALL else await asyncio.to_thread(work)


def events(text: str, limits: Limits = DEFAULT) -> Iterator[yaml.Event]:
    """Yield the events of a YAML stream within the limits.

    Raises:
        TextError: the text exceeds the limits.
        yaml.YAMLError: the text is not YAML.
    """
    if len(text) > limits.size:
        raise TextError(_too_large(limits))
    bounds = _Bounds(limits)
    for number, event in enumerate(yaml.parse(text, Loader=_PARSER)):  # noqa: TID251 - bounded
        bounds.count(event)
        if number % _EVENTS_BETWEEN_CLOCK_CHECKS == 0:
            bounds.check_clock()
        yield event


class _Bounds:
    """Counts what a text would become, without building it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._deadline = time.monotonic() + limits.seconds
        # Nodes of the whole stream, then of each open collection, with its anchor.
        self._open: list[tuple[int, str | None]] = [(0, None)]
        self._anchors: dict[str, int | None] = {}
        self._parsed = 0

    def count(self, event: yaml.Event) -> None:
        """Take the next event. Raises TextError."""
        if not self._limits.anchors and getattr(event, "anchor", None):
            raise _at(event, "must not use YAML anchors and aliases: write the values out")
        if isinstance(event, yaml.ScalarEvent):
            self._note(event.anchor, 1, event)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) > self._limits.depth:
                raise _at(event, _too_deep(self._limits))
            if event.anchor:
                # Until its end is reached: an alias to it in there would never end.
                self._anchors[event.anchor] = None
            self._open.append((1, event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = self._open.pop()
            self._note(anchor, size, event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._anchors.clear()
            self._note(None, 1, event)

    def check_clock(self) -> None:
        """Raise TextError when reading takes too long."""
        if time.monotonic() > self._deadline:
            raise TextError(f"takes more than {self._limits.seconds:g} s to read: make it smaller")

    def _alias(self, event: yaml.AliasEvent) -> None:
        if not self._limits.aliases:
            raise _at(event, "must not use YAML aliases: write the value out", AliasError)
        size = self._anchors.get(event.anchor or "", 1)
        if size is None:
            detail = "must not use YAML aliases inside the values they stand for: write the value out"
            raise _at(event, detail, AliasError)
        self._note(None, size, event)

    def _note(self, anchor: str | None, size: int, event: yaml.Event) -> None:
        """Add a finished value to the collection around it."""
        if anchor:
            self._anchors[anchor] = size
        total, name = self._open[-1]
        self._open[-1] = (total + size, name)
        self._parsed += 1
        if total + size > self._limits.nodes or self._parsed > self._limits.nodes:
            detail = f"has more than {self._limits.nodes:,} values, with YAML aliases written out: make it smaller"
            raise _at(event, detail)


def _built(text: str | bytes, limits: Limits, build: Callable[[str], Value]) -> Value:
    def build_checked() -> Value:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        for _ in events(decoded, limits):
            pass
        return build(decoded)

    if len(text) > limits.size:
        raise TextError(_too_large(limits))
    return _translated(build_checked)


def _translated(build: Callable[[], Value]) -> Value:
    """Run a function of PyYAML; whatever it raises becomes a TextError that quotes nothing."""
    try:
        return build()
    except TextError:
        raise
    except yaml.YAMLError as error:
        # Its text quotes a line.
        mark = getattr(error, "problem_mark", None)
        raise TextError("is not valid YAML", *((mark.line + 1, mark.column + 1) if mark else ())) from None
    except UnicodeError:
        raise TextError("is not UTF-8 text") from None
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
        # PyYAML's constructors raise all of these for values that do not fit their tags.
        raise TextError("is not valid YAML: a value does not fit its type") from None


def _has_more_values(text: bytes | bytearray, count: int) -> bool:
    """Whether a JSON text has more values, found without building them."""
    return next(itertools.islice(_JSON_VALUE.finditer(text), count, None), None) is not None


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            child
            for one in level
            if isinstance(one, dict | list)
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _at(event: yaml.Event, problem: str, kind: type[TextError] = TextError) -> TextError:
    mark: Any = event.start_mark
    return kind(problem, mark.line + 1, mark.column + 1)


def _too_large(limits: Limits) -> str:
    return f"is larger than {limits.size // 1024:,} KiB: make it smaller"


def _too_deep(limits: Limits) -> str:
    return f"is nested more than {limits.depth} levels deep: make it flatter"
