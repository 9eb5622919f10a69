"""Finds every regular expression of the product, and text that makes a badly written one slow.

CPython's `re` backtracks: a pattern that looks harmless may take seconds for 64 KB of one letter, and holds the
interpreter's lock meanwhile. Nothing in Python says so, so the tests find all patterns and attack each of them.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import json
import pkgutil
import re
import time
from collections.abc import Iterator
from re import _constants as constants  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import ModuleType
from typing import Any

from tests.support.paths import CHECKOUT

PACKAGES = ("caphv", "commands", "operations", "packager", "reconciler", "webhooks")
# Modules that build patterns: of escaped text, or of schemas, whose patterns `find_all` reads itself. What an operator
# passes as a pattern for Fleet is only compiled.
BUILT_IN_FUNCTIONS = frozenset(
    {
        "caphv.api.conditions",
        "caphv.validation.schema",
        "packager.rendering.gitrepo",
        "packager.rendering.render_cache",
        "reconciler.machine.disks",
        "reconciler.machine.jinjamask",
    }
)
METHODS = frozenset({"search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"})
ANCHORED = frozenset({"match", "fullmatch"})


@dataclasses.dataclass(frozen=True)
class Regex:
    """A pattern, where it is, and whether it is only tried at the start of a text."""

    place: str
    pattern: re.Pattern[Any]
    anchored: bool

    def __str__(self) -> str:
        return self.place

    def consume(self, text: str) -> None:
        """Use the pattern as the product does, over the whole text."""
        subject: Any = text.encode() if isinstance(self.pattern.pattern, bytes) else text
        if self.anchored:
            self.pattern.match(subject)
            self.pattern.fullmatch(subject)
        else:
            for _ in self.pattern.finditer(subject):
                pass


def find_all() -> list[Regex]:
    """Return every pattern of the product.

    :raises AssertionError: for a pattern that is built within a function, which this search cannot see
    """
    trees = {module: ast.parse(_source(module)) for module in product_modules()}
    uses: dict[str, set[str]] = {}
    for module, tree in trees.items():
        _add_uses(uses, module.__name__, tree)

    regexes: list[Regex] = []
    for module, tree in trees.items():
        regexes += _global_patterns(module, uses)
        regexes += _inline_patterns(module, tree)
    return regexes + list(_schema_patterns())


def _schema_patterns() -> Iterator[Regex]:
    for file in sorted((CHECKOUT / "schemas").glob("*.json")):
        for pattern in sorted(set(_patterns_of(json.loads(file.read_text(encoding="utf-8"))))):
            yield Regex(f"{file.name}:{pattern}", re.compile(pattern), False)


def _patterns_of(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for value in schema.values():
            yield from _patterns_of(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _patterns_of(value)


def product_modules() -> Iterator[ModuleType]:
    """Yield every module of the product but those that run when they are imported."""
    for package in PACKAGES:
        root = importlib.import_module(package)
        yield root
        for info in pkgutil.walk_packages(root.__path__, f"{package}."):
            if not info.name.endswith("__main__"):
                yield importlib.import_module(info.name)


def _source(module: ModuleType) -> str:
    with open(module.__file__ or "", encoding="utf-8") as file:
        return file.read()


def _add_uses(uses: dict[str, set[str]], module: str, tree: ast.AST) -> None:
    """Add the methods that a module calls on each name, its own and imported ones: `module.NAME`."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            origins |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in METHODS and isinstance(node.value, ast.Name):
            name = node.value.id
            uses.setdefault(origins.get(name, f"{module}.{name}"), set()).add(node.attr)


def _global_patterns(module: ModuleType, uses: dict[str, set[str]]) -> Iterator[Regex]:
    for name, value in vars(module).items():
        if isinstance(value, re.Pattern):
            methods = uses.get(f"{module.__name__}.{name}", set())
            if not methods:
                continue  # imported, and found where it is defined
            yield Regex(f"{module.__name__}.{name}", value, bool(methods) and methods <= ANCHORED)
        elif not name.startswith("__"):
            for index, pattern in enumerate(_within(value, 0)):
                yield Regex(f"{module.__name__}.{name}[{index}]", pattern, False)


def _within(value: Any, depth: int) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif depth < 4 and isinstance(value, dict):
        for item in value.values():
            yield from _within(item, depth + 1)
    elif depth < 4 and isinstance(value, tuple | list | frozenset):
        for item in value:
            yield from _within(item, depth + 1)
    elif depth < 4 and dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _within(getattr(value, field.name, None), depth + 1)


def _inline_patterns(module: ModuleType, tree: ast.Module) -> Iterator[Regex]:
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
                continue
            if node.func.attr not in METHODS | {"compile"}:
                continue

            place = f"{module.__name__}:{node.lineno}"
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                yield Regex(place, re.compile(argument.value), node.func.attr in ANCHORED)
            elif place.rpartition(":")[0] not in BUILT_IN_FUNCTIONS:
                raise AssertionError(f"{place}: compile the pattern at the top of the module, where tests find it")


def attacks(regex: Regex, size: int) -> Iterator[str]:
    """Yield texts of `size` characters that repeat what the pattern repeats, and end in what it does not expect."""
    tree = parser.parse(regex.pattern.pattern, regex.pattern.flags & ~re.DEBUG)
    samples = list(dict.fromkeys(_pumps(tree, "")))
    whole = _sample(tree)
    pumps = [pump for _, pump in samples if pump]
    mixed = ["".join(pair) for pair in itertools.pairwise(pumps)]
    for prefix, pump in [*samples, *(("", pump) for pump in (whole, *mixed, *pumps)), ("", f"{whole}\n")]:
        if pump:
            body = pump * max(1, (size - len(prefix)) // len(pump))
            yield f"{prefix}{body}\x00"
    for prefix, pump in samples:
        # Many starts, each with a run that leads nowhere.
        block = f"{prefix}{pump * 8}"
        if block:
            yield block * max(1, size // len(block))


def seconds_of(regex: Regex, text: str) -> float:
    """Return the CPU time that the pattern takes for a text."""
    start = time.thread_time()
    regex.consume(text)
    return time.thread_time() - start


def _sample(tree: Any) -> str:
    """Return a short text that the tree matches, as far as one can tell."""
    text = ""
    for code, value in tree:
        text += _sample_of(code, value)
    return text


def _sample_of(code: Any, value: Any) -> str:
    if code is constants.LITERAL:
        return chr(value)
    if code is constants.NOT_LITERAL:
        return "a" if value != ord("a") else "b"
    if code is constants.ANY:
        return "a"
    if code is constants.IN:
        return _member(value)
    if code is constants.BRANCH:
        return _sample(value[1][0])
    if code is constants.SUBPATTERN:
        return _sample(value[-1])
    if code in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
        least, _, inner = value
        return _sample(inner) * max(1 if least else 0, min(least, 64))
    if code is constants.ATOMIC_GROUP:
        return _sample(value)
    return ""


def _member(items: Any) -> str:
    """Return a character of a class."""
    pattern = _class_pattern(items)
    for character in "a1A-_ .:/@=\"'\n\t%$#{}~":
        if pattern(character):
            return character
    return ""


def _class_pattern(items: Any) -> Any:
    negated = bool(items) and items[0][0] is constants.NEGATE

    def matches(character: str) -> bool:
        inside = any(_item_matches(code, value, character) for code, value in items)
        return inside != negated

    return matches


def _item_matches(code: Any, value: Any, character: str) -> bool:
    if code is constants.LITERAL:
        return chr(value) == character
    if code is constants.RANGE:
        return value[0] <= ord(character) <= value[1]
    if code is constants.CATEGORY:
        category = {
            constants.CATEGORY_DIGIT: r"\d",
            constants.CATEGORY_NOT_DIGIT: r"\D",
            constants.CATEGORY_SPACE: r"\s",
            constants.CATEGORY_NOT_SPACE: r"\S",
            constants.CATEGORY_WORD: r"\w",
            constants.CATEGORY_NOT_WORD: r"\W",
        }[value]
        return re.match(category, character) is not None
    return False


def _pumps(tree: Any, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield what comes before each repetition, and what is repeated: each character of a class on its own."""
    for code, value in tree:
        if code in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
            _, most, inner = value
            if most is constants.MAXREPEAT or most > 32:
                for pump in _members(inner):
                    yield prefix, pump
            yield from _pumps(inner, prefix)
        elif code is constants.BRANCH:
            for branch in value[1]:
                yield from _pumps(branch, prefix)
        elif code is constants.SUBPATTERN:
            yield from _pumps(value[-1], prefix)
        elif code is constants.ATOMIC_GROUP:
            yield from _pumps(value, prefix)
        prefix += _sample_of(code, value)


def _members(tree: Any) -> list[str]:
    if len(tree) == 1 and tree[0][0] is constants.IN:
        matches = _class_pattern(tree[0][1])
        return [character for character in "aA1-_ .:/@\n=" if matches(character)]
    return [_sample(tree)]
