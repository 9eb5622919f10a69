"""Finds every function of the product that takes nothing but text, and texts that make a careless one slow.

Not only regular expressions take quadratic time: so do `+=` in a loop, `in` a growing list, suggestions for a misspelt
word, and numbers of a million digits. Which of these functions read text of others changes with each commit, so all of
them are tried.
"""

from __future__ import annotations

import ast
import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.regexes import product_modules

TEXTS = frozenset({"str", "bytes", "bytearray"})
# Whose texts are the process's own: names of files and modules, patterns of schemas, templates of operators.
OWN_TEXTS = frozenset(
    {
        "caphv.data",
        "caphv.runtime.kubernetespackage",
        "caphv.runtime.user_kubeconfig",
        "caphv.validation.schema._compiled",
        "packager.git.history",
        "packager.rendering.gitrepo._check_helm",
        "packager.rendering.templates._parsed",
    }
)
# Parameters that name files of the process.
FILES = frozenset({"folder", "kubeconfig", "where", "file"})


@dataclass(frozen=True)
class TextFunction:
    """A function, and which of its parameters take bytes instead of text."""

    place: str
    function: Callable[..., Any]
    takes_bytes: tuple[bool, ...]

    def __str__(self) -> str:
        return self.place

    def seconds_of(self, text: str) -> float:
        """Return the longest CPU time of this thread for a text, in each parameter in turn and in all of them.

        Errors are fine, except for those that no caller expects.
        """
        longest = 0.0
        count = len(self.takes_bytes)
        for place in range(count if count == 1 else count + 1):
            arguments = [
                (value.encode() if is_bytes else value)
                for number, is_bytes in enumerate(self.takes_bytes)
                for value in [text if place in (number, count) else "a"]
            ]
            started = time.thread_time()
            try:
                made = self.function(*arguments)
                if isinstance(made, Iterator):
                    for _ in made:
                        pass
            except (RecursionError, MemoryError):
                raise
            except Exception:
                pass  # most texts are not what the function takes
            longest = max(longest, time.thread_time() - started)
        return longest


def find_all() -> list[TextFunction]:
    """Return each function at the top of a module whose required parameters are all text; commands are operators'."""
    modules = (module for module in product_modules() if not module.__name__.startswith("commands"))
    functions = (found for module in modules if module.__name__ not in OWN_TEXTS for found in _of_module(module))
    return [function for function in functions if function.place not in OWN_TEXTS]


def _of_module(module: Any) -> Iterator[TextFunction]:
    with open(module.__file__ or "", encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        required = node.args.args[: len(node.args.args) - len(node.args.defaults)]
        if not required or any(default is None for default in node.args.kw_defaults):
            continue
        kinds = [_kinds(argument) for argument in required]
        if all(kinds) and not FILES & {argument.arg for argument in required}:
            function = inspect.unwrap(getattr(module, node.name))
            takes_bytes = tuple("str" not in names for names in kinds)
            yield TextFunction(f"{module.__name__}.{node.name}", function, takes_bytes)


def _kinds(argument: ast.arg) -> frozenset[str]:
    """Return the types of a parameter if all of them are text, else none."""
    named = frozenset(ast.unparse(argument.annotation).split(" | ")) if argument.annotation else frozenset()
    return named if named <= TEXTS else frozenset()


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
