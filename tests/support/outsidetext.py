"""Finds the functions and methods of the product that take text, and texts that make a careless one slow.

Not only regular expressions take quadratic time: so do `+=` in a loop, `in` a growing list, suggestions for a misspelt
word, and numbers of a million digits. Which of these functions read text of others changes with each commit, so all of
them are tried. What else they need gets a stand-in: an empty object, list or number. Methods are called on an object
that is made of stand-ins, too.
"""

from __future__ import annotations

import ast
import functools
import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from caphv.api.object import Key
from caphv.runtime.text import Limits
from tests.support.regexes import product_modules

TEXTS = frozenset({"str", "bytes", "bytearray"})
LISTS_OF_TEXTS = frozenset(
    f"{name}[{inner}]"
    for name in ("list", "Sequence", "Iterable", "Collection")
    for inner in ("str", "bytes", "Any", "object")
) | {"tuple[str, ...]"}
# What a parameter of another type gets; of a type that is not listed, a function is not called.
STAND_INS: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("Obj", "dict[str, Any]", "dict[Any, Any]", "Mapping[str, Any]", "Mapping[str, object]"), dict),
    **dict.fromkeys(("dict[str, str]", "Mapping[str, str]", "Mapping[str, bytes]", "dict[str, Obj]", "Tree"), dict),
    **dict.fromkeys(("list[Obj]", "Sequence[Obj]", "Iterable[Obj]", "FieldPath", "set[str]", "set[int]"), tuple),
    "Any": dict,
    "object": dict,
    "bool": bool,
    "int": lambda: 1,
    "float": lambda: 1.0,
    "datetime": lambda: datetime(2026, 1, 1, tzinfo=UTC),
    "Key": lambda: Key("a", "a"),
    "Limits": Limits,
    "None": lambda: None,
}
# Whose texts are those of process and operator: names of files and modules, patterns, templates, passphrases.
OWN_TEXTS = frozenset(
    {
        "caphv.data",
        "caphv.runtime.user_kubeconfig",
        "caphv.validation.schema._compile",
        # These walk the folders of the machine that runs the test.
        "caphv.validation.yaml.loader._each_once",
        "caphv.validation.yaml.loader.files",
        "caphv.validation.yaml.yaml_rules._rule",
        "operations.backup.sealing.Sealer.__init__",
        "packager.addons.services._rule",
        "packager.git.history",
        "packager.rendering.gitrepo._check_helm",
        "packager.rendering.templates._parse",
    }
)
# Parameters that name files of the process.
FILES = frozenset({"folder", "kubeconfig", "paths", "where", "file"})


@dataclass(frozen=True)
class TextFunction:
    """A function or method, how to make each required argument from a text, and which of them are made of the text.

    `owner` makes the object of a method.
    """

    place: str
    function: Callable[..., Any]
    arguments: tuple[Callable[[str], Any], ...]
    texts: tuple[int, ...]
    keywords: tuple[str, ...] = ()
    owner: Callable[[], Any] | None = None

    def __str__(self) -> str:
        return self.place

    def seconds_of(self, text: str) -> float:
        """Return the longest CPU time of this thread for a text, in each parameter in turn and in all of them.

        Errors are fine, except for those that no caller expects.
        """
        tries = [{place} for place in self.texts]
        if len(tries) > 1:
            tries.append(set(self.texts))
        return max(self._seconds(dict.fromkeys(places, text)) for places in tries)

    def _seconds(self, texts: dict[int, str]) -> float:
        made = [make(texts.get(place, "a")) for place, make in enumerate(self.arguments)]
        count = len(made) - len(self.keywords)
        first = [self.owner()] if self.owner else []
        started = time.thread_time()
        try:
            result = self.function(*first, *made[:count], **dict(zip(self.keywords, made[count:], strict=True)))
            if isinstance(result, Iterator):
                for _ in result:
                    pass
        except (RecursionError, MemoryError):
            raise
        except Exception:
            pass  # most texts are not what the function takes
        return time.thread_time() - started


def find_all() -> list[TextFunction]:
    """Return what takes text; commands are operators'."""
    modules = (module for module in product_modules() if not module.__name__.startswith("commands"))
    functions = (found for module in modules if module.__name__ not in OWN_TEXTS for found in _of_module(module))
    return [function for function in functions if function.place not in OWN_TEXTS]


def _of_module(module: Any) -> Iterator[TextFunction]:
    with open(module.__file__ or "", encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield from _text_function(f"{module.__name__}.{node.name}", getattr(module, node.name), node.args)
        elif isinstance(node, ast.ClassDef):
            yield from _methods(f"{module.__name__}.{node.name}", getattr(module, node.name), node)


def _methods(place: str, owner: Any, node: ast.ClassDef) -> Iterator[TextFunction]:
    """Yield the methods of a class; those of an instance only if stand-ins can make one."""
    instance: Callable[[], Any] | None = functools.partial(_instance, owner)
    try:
        _instance(owner)
    except Exception:
        instance = None
    for member in node.body:
        if not isinstance(member, ast.FunctionDef):
            continue
        static = {"staticmethod", "classmethod"} & {ast.unparse(decorator) for decorator in member.decorator_list}
        if static:
            skipped = 1 if "classmethod" in static else 0
            yield from _text_function(f"{place}.{member.name}", getattr(owner, member.name), member.args, skipped)
        elif instance:
            function = owner.__dict__[member.name]
            yield from _text_function(f"{place}.{member.name}", function, member.args, 1, instance)


def _instance(owner: Any) -> Any:
    """Return an object of a class, made of stand-ins. Raises for one that needs more."""
    parameters = inspect.signature(owner).parameters.values()
    required = [one for one in parameters if one.default is one.empty and one.kind.name not in ("VAR_KEYWORD",)]
    named = {one.name: _maker(str(one.annotation)) for one in required}
    positional = [named[one.name]("a") for one in required if one.kind is not one.KEYWORD_ONLY]  # type: ignore[misc]
    keywords = {one.name: named[one.name]("a") for one in required if one.kind is one.KEYWORD_ONLY}  # type: ignore[misc]
    return owner(*positional, **keywords)


def _text_function(
    place: str, function: Any, arguments: ast.arguments, skipped: int = 0, owner: Callable[[], Any] | None = None
) -> Iterator[TextFunction]:
    positional = [*arguments.posonlyargs, *arguments.args]
    required = positional[: len(positional) - len(arguments.defaults)][skipped:]
    keywords = [
        each for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    required += keywords
    if not required or FILES & {argument.arg for argument in required}:
        return
    annotations = [ast.unparse(each.annotation) if each.annotation else "" for each in required]
    makers = [_maker(annotation) for annotation in annotations]
    texts = tuple(number for number, annotation in enumerate(annotations) if _is_text(annotation))
    if texts and all(makers):
        made = tuple(maker for maker in makers if maker)
        yield TextFunction(place, inspect.unwrap(function), made, texts, tuple(each.arg for each in keywords), owner)


def _is_text(annotation: str) -> bool:
    return bool(TEXTS & set(annotation.split(" | "))) or annotation in LISTS_OF_TEXTS


def _maker(annotation: str) -> Callable[[str], Any] | None:
    """Return what makes an argument of a type from a text; None for a type without a stand-in."""
    kinds = annotation.split(" | ")
    if "str" in kinds:
        return str
    if TEXTS & set(kinds):
        return str.encode if "bytes" in kinds else lambda text: bytearray(text.encode())
    if annotation in LISTS_OF_TEXTS:
        kind = tuple if annotation.startswith("tuple") else list
        return lambda text: kind([text.encode() if "bytes" in annotation else text] * 2)
    stand_in = next((STAND_INS[kind] for kind in kinds if kind in STAND_INS), None)
    return (lambda _: stand_in()) if stand_in else None


_PUMPS = (
    *"a9 \n\t/.:,-=\"'{[(<%&*#@|\\~\0é",
    *("a: b\n", "- a\n", "---\n", "a,", "a=b,", "10.0.0.0/8,", "aaa.", "a/b/", "'a' ", "\\n", "{{ a }}", "{% a %}"),
    *("{%", "[]", "{}", "[[", '{"a":', "QUFB", "QUFB\n", "-----BEGIN CERTIFICATE-----\n", "&a ", "a b: ", "? a\n"),
    *("1e9", "0x9", "\r", "\u2028", "%61", "::", "1.", "a@", "\ud7ff", "kind: Secret\n", "## template: jinja\n"),
)
_WHOLE = (
    lambda size: "x" + " " * size + "x",
    lambda size: "a: &a [" + "b," * (size // 2) + "]",
    lambda size: "a: &a b\nc: [" + "*a," * (size // 3) + "]",
    lambda size: "a: " + "9" * size,
    lambda size: "a: 1e" + "9" * size,
    lambda size: "[" * (size // 2) + "]" * (size // 2),
    lambda size: "{" + ",".join(f'"k{number}":{number}' for number in range(size // 12)) + "}",
    lambda size: "\n".join(f"k{number}: {number}" for number in range(size // 12)),
    lambda size: "\n".join(f"{' ' * (number % 90)}a:" for number in range(size // 48)),
    lambda size: "## template: jinja\n" + "{% if a %}\n" * (size // 11),
    lambda size: "#cloud-config\nwrite_files:\n" + "- path: /a\n" * (size // 11),
    lambda size: "v1." + "9" * size,
    lambda size: "a" * size + "/" + "b" * size,
)


def attacks(size: int) -> Iterator[str]:
    """Yield texts of about `size` characters that repeat what parsers look for, with and without an end."""
    for pump in _PUMPS:
        body = pump * max(1, size // len(pump))
        yield body
        yield f"{body}\x01"
    for make in _WHOLE:
        yield make(size)
