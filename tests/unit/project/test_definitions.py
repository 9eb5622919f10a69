"""What all packages share is defined once: kinds, and the alias of plain objects."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

PACKAGES = ("caphv", "commands", "reconciler", "webhooks", "packager", "operations", "sandbox", "tools")
# The kinds of a bootstrap provider are a column of its table, and a benchmark has one of its own.
TABLES = {"sandbox/capi/distribution.py", "sandbox/capi/talos/kinds.py", "tools/bench/transport.py"}
# Only files with one of them are parsed; the code is formatted.
WRITTEN_OUT = re.compile(r"\bResource\(|\bObj = ")


def definitions(path: Path) -> Iterator[str]:
    """Find kinds that are written out, and aliases named Obj."""
    text = path.read_text(encoding="utf-8")
    if not WRITTEN_OUT.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Resource":
            if len(node.args) >= 4 and isinstance(node.args[3], ast.Constant):
                yield f"line {node.lineno}: Resource of {node.args[3].value}"
        elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["Obj"]:
            yield f"line {node.lineno}: Obj"


def test_kinds_and_aliases_are_defined_in_the_api_only() -> None:
    paths = [path for package in PACKAGES for path in sorted((CHECKOUT / package).rglob("*.py"))]
    names = {path: path.relative_to(CHECKOUT).as_posix() for path in paths}
    found = [
        f"{names[path]}, {found}: import it from caphv.api"
        for path in paths
        if not names[path].startswith("caphv/api/") and names[path] not in TABLES
        for found in definitions(path)
    ]
    assert found == []


def test_the_check_finds_them(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text('PODS = Resource("", "v1", "pods", "Pod")\nObj = dict[str, Any]\nother = Resource(*pod)\n')
    assert sorted(definitions(path)) == ["line 1: Resource of Pod", "line 2: Obj"]
