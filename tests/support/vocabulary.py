"""Finds words of `tests/vocabulary.txt` in the repository. `python -m tests.support.vocabulary PATH…` lists them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.paths import CHECKOUT

WORDS = CHECKOUT / "tests" / "vocabulary.txt"
PENDING = CHECKOUT / "tests" / "vocabulary-pending.txt"
TEXT = {
    "",
    ".py",
    ".md",
    ".yaml",
    ".yml",
    ".json",
    ".toml",
    ".txt",
    ".j2",
    ".tpl",
    ".css",
    ".html",
    ".js",
    ".svg",
    ".sh",
    ".ts",
    ".tsx",
}
# Text of others, and the files of this check.
FOREIGN = (
    "LICENSE",
    "headlamp/dist/",
    "headlamp/node_modules/",
    "headlamp/package-lock.json",
    "requirements.lock",
    "sandbox/crds/",
    "tests/support/rancher-crds.yaml",
    "tests/vocabulary",
    "tests/support/vocabulary.py",
    "tests/unit/project/test_vocabulary.py",
)
NO_SOURCES = {"out", "dist", "build"}
# The history of released versions stays as it was written.
HISTORY = re.compile(r"^## \[\d.*", re.MULTILINE | re.DOTALL)


class Rule(NamedTuple):
    """`word` is in every match, in lower case: most rules need not search most files."""

    word: str
    pattern: re.Pattern[str]
    replacement: str
    python_only: bool


class Match(NamedTuple):
    path: str
    line: int
    text: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: write {self.replacement}"


def rules(text: str) -> list[Rule]:
    """The rules of a vocabulary file. Raises ValueError for a line without a replacement or outside a section."""
    found: list[Rule] = []
    section = ""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = line.strip("[]").partition(":")[0]
            continue
        pattern, arrow, replacement = line.partition(" => ")
        if not arrow or section not in ("phrases", "identifiers"):
            raise ValueError(f"tests/vocabulary.txt: not a rule: {line}")
        phrase = section == "phrases"
        body = re.sub(r" (?![^(]*\(\?<)", r"[\\s_#\"]+", pattern) if phrase else pattern
        edge = "A-Za-z0-9" if phrase else r"\w"
        compiled = re.compile(rf"(?<![{edge}])(?:{body})(?![{edge}])", re.IGNORECASE if phrase else 0)
        found.append(Rule(_word(pattern), compiled, replacement, python_only=not phrase))
    return found


def _word(pattern: str) -> str:
    """The longest run of letters that every match of a pattern has, in lower case; empty if none is certain."""
    certain = pattern.lower()
    while (outer := re.sub(r"\([^()]+\)", "\0", certain)) != certain:
        certain = outer
    runs = [] if re.search(r"[|\[]", certain) else re.findall(r"(?<!\\)[a-z_]+(?![?*{])", certain)
    return max(runs, key=len, default="")


def matches(path: str, text: str, vocabulary: list[Rule]) -> Iterator[Match]:
    if path == "CHANGELOG.md":
        text = HISTORY.sub("", text)
    lower = text.lower()
    for rule in vocabulary:
        if rule.word not in lower:
            continue
        if rule.python_only and not path.endswith(".py"):
            continue
        for found in rule.pattern.finditer(text):
            yield Match(path, text.count("\n", 0, found.start()) + 1, found[0], rule.replacement)


def sources() -> Iterator[tuple[str, str]]:
    """Path and content of every text file of the repository."""
    for top in sorted(CHECKOUT.iterdir()):
        hidden = top.name.startswith(".") and top.name not in (".ci", ".github")
        if top.name in NO_SOURCES or (hidden and not top.is_file()):
            continue
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            name = path.relative_to(CHECKOUT).as_posix()
            if path.suffix not in TEXT or name.startswith(FOREIGN) or "__pycache__" in name or not path.is_file():
                continue
            yield name, path.read_text(encoding="utf-8")


def pending() -> tuple[str, ...]:
    """Paths whose text has not been edited yet."""
    if not PENDING.exists():
        return ()
    lines = PENDING.read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


def findings(under: tuple[str, ...] = ("",), without: tuple[str, ...] = ()) -> list[Match]:
    vocabulary = rules(WORDS.read_text(encoding="utf-8"))
    return [
        match
        for name, text in sources()
        if name.startswith(under) and not (without and name.startswith(without))
        for match in sorted(matches(name, text, vocabulary), key=lambda match: match.line)
    ]


if __name__ == "__main__":
    for match in findings(tuple(sys.argv[1:]) or ("",)):
        sys.stdout.write(f"{match}\n")
