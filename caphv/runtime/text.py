"""Parse YAML and JSON that others wrote. All such text enters here and is bounded first.

libyaml's composer recurses on the C stack: 30,000 brackets end the process, and no `except` sees
it. Aliases expand a few lines to gigabytes, and a number of a million digits blocks for minutes.
This module first counts the parser's events, which needs neither recursion nor memory, and composes
only text within its limits. A lint forbids every other parser for text that is not our own
(`pyproject.toml`, TID251).

No error of this module quotes the text, because it may be a Secret.
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

# The C parser is an optional part of PyYAML. Without it, everything takes twenty times as long.
_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Nothing calculates with longer numbers, and converting them takes quadratic time.
_MAX_NUMBER_LENGTH = 400
_EVENTS_BETWEEN_CLOCK_CHECKS = 1024
# Everything up to the beginning of the next value, which is a bracket or comma outside of strings.
# The expression never backtracks, so its time is linear.
_JSON_VALUE = re.compile(
    rb'(?:[^"\[{,]++|"(?:[^"\\]++|\\.)*+"?|[\[{]\s*+[\]}])*+(?:[\[{,]|\Z)',
    re.DOTALL,
)
# Shorter texts may be read on the event loop, because YAML takes 5 to 20 microseconds a value, and
# a value has two characters or more.
_MAX_ON_LOOP_LENGTH = 4 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one text.

    `nodes` counts values with all aliases expanded. The bounds below it are for YAML only.
    """

    size: int = 1024 * 1024
    depth: int = 100
    nodes: int = 100_000
    seconds: float = 10.0
    aliases: bool = True
    anchors: bool = True


DEFAULT = Limits()


class TextError(ValueError):
    """A text cannot be read.

    The message is a phrase such as `is not valid YAML (line 3, column 1)`.
    """

    def __init__(self, problem: str, line: int = 0, column: int = 0) -> None:
        self.problem = problem
        self.line = line
        self.column = column
        super().__init__(f"{problem} (line {line}, column {column})" if line else problem)


class TooManyValues(TextError):
    """The text has more values than the limits allow."""


class AliasError(TextError):
    """A YAML alias is where it must not be."""


class _Loader(_PARSER):  # type: ignore[misc]
    """The safe loader of PyYAML, with numbers of bounded length."""


class _Constructor(yaml.constructor.SafeConstructor):
    """The constructor of `_Loader` for nodes that are parsed already."""


def _number(constructor: Any, node: yaml.ScalarNode) -> Any:
    if len(str(node.value)) > _MAX_NUMBER_LENGTH:
        raise yaml.constructor.ConstructorError(
            None, None, "a number that is too long", node.start_mark
        )
    if node.tag == "tag:yaml.org,2002:int":
        return constructor.construct_yaml_int(node)
    return constructor.construct_yaml_float(node)


for _class in (_Loader, _Constructor):
    for _tag in ("int", "float"):
        _class.add_constructor(f"tag:yaml.org,2002:{_tag}", _number)


def load_yaml(text: str | bytes, limits: Limits = DEFAULT) -> Any:
    """Return the value of a text with one YAML document; None for an empty one.

    Raises `TextError` if the text is not YAML or exceeds the limits.
    """

    def load(checked: str) -> Any:
        return yaml.load(checked, Loader=_Loader)  # noqa: S506, TID251 - bounded

    return _build(text, limits, load)


def load_yaml_all(text: str | bytes, limits: Limits = DEFAULT) -> list[Any]:
    """Return the values of all documents of a YAML stream. Raises `TextError`."""

    def load(checked: str) -> list[Any]:
        return list(yaml.load_all(checked, Loader=_Loader))  # noqa: TID251 - bounded

    return _build(text, limits, load)


def compose_yaml(text: str, limits: Limits = DEFAULT) -> yaml.Node | None:
    """Return the nodes of a text with one YAML document, with their positions.

    Raises `TextError`.
    """

    def compose(checked: str) -> yaml.Node | None:
        return yaml.compose(checked, Loader=_Loader)  # noqa: TID251 - bounded

    return _build(text, limits, compose)


def construct_yaml(root: yaml.Node) -> Any:
    """Return the value of nodes of `compose_yaml`. Raises `TextError`."""
    return _translate_errors(lambda: _Constructor().construct_document(root))


def load_json(text: str | bytes | bytearray, limits: Limits = DEFAULT) -> Any:
    """Return the value of a JSON text. Raises `TextError`."""
    if len(text) > limits.size:
        raise TextError(_too_large(limits))
    content = text.encode(errors="surrogatepass") if isinstance(text, str) else text

    # Brackets and commas are an upper bound of values, so most texts need no exact count, which is
    # slower.
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
    """Return the result of `work` on a text of this size.

    Work on a large text runs in a thread, because it would block the event loop.
    """
    return work() if size <= _MAX_ON_LOOP_LENGTH else await asyncio.to_thread(work)


def events(text: str, limits: Limits) -> Iterator[yaml.Event]:
    """Yield the events of a YAML stream within the limits.

    Raises `TextError` if the text exceeds the limits, and `yaml.YAMLError` if it is not YAML.
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
    """Count the values that a text would become, without building them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._deadline = time.monotonic() + limits.seconds
        # Nodes of the whole stream, then of each open collection, with its anchor.
        self._open: list[tuple[int, str | None]] = [(0, None)]
        self._anchors: dict[str, int | None] = {}
        self._parsed = 0

    def count(self, event: yaml.Event) -> None:
        """Count the next event. Raises `TextError`."""
        if not self._limits.anchors and getattr(event, "anchor", None):
            raise _at(event, "must not use YAML anchors and aliases: write the values out")

        if isinstance(event, yaml.ScalarEvent):
            self._add_value(event.anchor, 1, event)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(self._open) > self._limits.depth:
                raise _at(event, _too_deep(self._limits))
            if event.anchor:
                # The size is None until the collection ends, because an alias to a collection
                # inside of it would never end.
                self._anchors[event.anchor] = None
            self._open.append((1, event.anchor))
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = self._open.pop()
            self._add_value(anchor, size, event)
        elif isinstance(event, yaml.AliasEvent):
            self._add_alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._anchors.clear()
            self._add_value(None, 1, event)

    def check_clock(self) -> None:
        """Raise `TextError` when reading takes too long."""
        if time.monotonic() > self._deadline:
            raise TextError(f"takes more than {self._limits.seconds:g} s to read: make it smaller")

    def _add_alias(self, event: yaml.AliasEvent) -> None:
        """Count the value that an alias refers to."""
        if not self._limits.aliases:
            raise _at(event, "must not use YAML aliases: write the value out", AliasError)
        size = self._anchors.get(event.anchor or "", 1)
        if size is None:
            detail = (
                "must not use YAML aliases inside the values they stand for: write the value out"
            )
            raise _at(event, detail, AliasError)
        self._add_value(None, size, event)

    def _add_value(self, anchor: str | None, size: int, event: yaml.Event) -> None:
        """Add a complete value to the collection around it."""
        if anchor:
            self._anchors[anchor] = size
        total, name = self._open[-1]
        self._open[-1] = (total + size, name)
        self._parsed += 1

        if total + size > self._limits.nodes or self._parsed > self._limits.nodes:
            detail = (
                f"has more than {self._limits.nodes:,} values, with YAML aliases written out: make "
                "it smaller"
            )
            raise _at(event, detail, TooManyValues)


def _build(text: str | bytes, limits: Limits, build: Callable[[str], Value]) -> Value:
    """Return the result of `build` for a text within the limits. Raises `TextError`."""

    def check_and_build() -> Value:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        for _ in events(decoded, limits):
            pass
        return build(decoded)

    if len(text) > limits.size:
        raise TextError(_too_large(limits))
    return _translate_errors(check_and_build)


def _translate_errors(build: Callable[[], Value]) -> Value:
    """Run a function of PyYAML, and turn all its errors into a `TextError` that quotes nothing."""
    try:
        return build()
    except TextError:
        raise
    except yaml.YAMLError as error:
        # Keep only the position, because the text of the error quotes a line.
        mark = getattr(error, "problem_mark", None)
        place = (mark.line + 1, mark.column + 1) if mark else ()
        raise TextError("is not valid YAML", *place) from None
    except UnicodeError:
        raise TextError("is not UTF-8 text") from None
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
        # PyYAML's constructors raise all of these for values that do not fit their tags.
        raise TextError("is not valid YAML: a value does not fit its type") from None


def _has_more_values(text: bytes | bytearray, count: int) -> bool:
    """Return whether a JSON text has more values, without building them."""
    return next(itertools.islice(_JSON_VALUE.finditer(text), count, None), None) is not None


def _deeper_than(value: Any, depth: int) -> bool:
    """Return whether lists and objects are nested deeper, without recursion."""
    level = [value]
    for _ in range(depth):
        children: list[Any] = []
        for parent in level:
            if isinstance(parent, dict):
                children += parent.values()
            elif isinstance(parent, list):
                children += parent
        level = [child for child in children if isinstance(child, dict | list)]
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
