"""What Python files of the checkout define, without importing them."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache

from tests.support.paths import CHECKOUT


@cache
def functions(path: str, *, nested: bool = False) -> frozenset[str]:
    """Name the functions of a file: those of the module, or also those in classes and functions."""
    tree = ast.parse((CHECKOUT / path).read_text(encoding="utf-8"))
    nodes: Iterable[ast.AST] = ast.walk(tree) if nested else tree.body
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
