"""Commands in the documentation, as words: what `sh` blocks call, without the shell around it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.paths import CHECKOUT

PAGES = sorted(
    [
        *(CHECKOUT / name for name in ("README.md", "clusterclass/README.md", "examples/README.md")),
        *(CHECKOUT / "docs").rglob("*.md"),
    ]
)
_KEYWORDS = {"do", "then", "else", "{", "}", "(", "!", "sudo"}


def blocks(page: Path) -> list[str]:
    """The `sh` blocks of a page, with `<name>` and the like as words."""
    found = re.findall(r"^ *```(?:sh|shell|bash|console)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.S | re.M)
    return [re.sub(r"<([a-z][a-z-]*)>", r"\1", block) for block in found]


def commands(block: str) -> Iterator[list[str]]:
    """Words of each command that a block calls, also inside of `$(…)`; here documents and comments are left out."""
    block = re.sub(r"<<'?(\w+)'?([^\n]*)\n.*?\n\1(?=\n|$)", r"\2", block, flags=re.DOTALL)
    block = re.sub(r"(?:^|(?<=\s))#[^\n]*", "", block, flags=re.MULTILINE).replace("\\\n", " ")
    for text in (re.sub(r"\$\([^()]*\)", "substituted", block), *re.findall(r"\$\(([^()]*)\)", block)):
        lexer = shlex.shlex(text, posix=True, punctuation_chars=";()&|\n")
        lexer.whitespace_split, lexer.whitespace, lexer.commenters = True, " \t", ""
        command: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";()&|\n"):
                if command:
                    yield command
                command = []
            elif command or not (word in _KEYWORDS or re.match(r"\w+=", word)):
                command.append(word)


def patch_of(name: str, resource: str) -> Any:
    """The first patch that a page of docs/ has for a resource. Raises AssertionError when it has none."""
    for block in blocks(CHECKOUT / "docs" / name):
        for words in commands(block):
            if words[:3] == ["kubectl", "patch", resource]:
                return json.loads(words[words.index("-p") + 1])
    raise AssertionError(f"docs/{name} has no patch of {resource}")
