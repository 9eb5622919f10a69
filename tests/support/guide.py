"""Commands of the Go provider's operations guide and README: the list in `guide.yaml`, and how texts are searched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from tests.support.paths import CHECKOUT

LIST = Path(__file__).with_suffix(".yaml")
TEXTS = ("operations-guide.txt", "provider-readme.txt")
NEWER, NOT_RUN, MENTIONS = "newer", "not_run", "mentions"
# What begins a command, also in the middle of a line: the texts have lost the line breaks after their examples.
_START = re.compile(
    r"(?<![\w./-])(?:sudo|kubectl|helm|curl|ssh|clusterctl|etcdctl|make|for|(?:bin/)?caphv-generate) "
    r"|\./test/e2e/run-e2e\.sh |(?<!\$)\bBACKUP_DIR="
)
# Sentences have these words, too.
_PROSE = re.compile(r"(?:make|for) (?!(?:docker-build|deploy|build|test|ns in|pool in)\b)")


@dataclass(frozen=True)
class Command:
    """A command of the texts, with other line breaks; `row` is its row in the table of those that differ."""

    text: str
    row: str = ""
    reason: str = ""

    @property
    def typed(self) -> str:
        """What to type: the command, or what its row says instead."""
        return re.findall(r"`([^`]+)`", rows()[self.row])[0] if self.row else self.text


@cache
def lists() -> dict[str, list[Command]]:
    """Commands by the test that runs them."""
    content = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    return {test: [_command(entry) for entry in entries] for test, entries in content.items()}


def commands(test: str) -> list[Command]:
    """The commands that a test runs, in their order."""
    return lists()[test]


def rows() -> dict[str, str]:
    """What to type, by the command that differs: the table in docs/reference/go-provider.md."""
    page = (CHECKOUT / "docs" / "reference" / "go-provider.md").read_text(encoding="utf-8")
    table = page.partition("| Command of the guide |")[2].partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {command.strip("`"): typed for command, _, typed in cells}


def unlisted(text: str) -> list[str]:
    """Beginnings of the commands in a text that the list does not have."""
    text = _joined(text)
    missing, end = [], 0
    for start in (match.start() for match in _START.finditer(text)):
        if start < end or _PROSE.match(text, start):
            continue
        ends = [found for name, entries in lists().items() for entry in entries
                if (found := _end(text, start, entry.text, partly=name in (NOT_RUN, MENTIONS)))]  # fmt: skip
        end = max(ends, default=end)
        if not ends:
            missing.append(text[start : start + 120])
    return missing


def unused(texts: list[str]) -> list[str]:
    """Commands of the list that no text has."""
    joined = [_joined(text) for text in texts]
    known = [command.text for name, entries in lists().items() if name != NEWER for command in entries]
    return [command for command in known if not any(_pattern(command).search(text) for text in joined)]


def _command(entry: str | dict[str, str]) -> Command:
    if isinstance(entry, str):
        return Command(entry)
    return Command(entry["command"], entry.get("row", ""), entry.get("reason", ""))


def _joined(text: str) -> str:
    """The text with one line for each command."""
    return text.replace("=\\\n", "=").replace("\\\n", " ")


def _end(text: str, start: int, command: str, *, partly: bool) -> int:
    """Where a command that begins at `start` ends, 0 if it is another one.

    After it comes a line break, a comment, or the sentence that the text appended; or anything with `partly`.
    """
    found = _pattern(command).match(text, start)
    if not found or (not partly and re.match(r" +(?!#)", text[found.end() :])):
        return 0
    return found.end()


def _pattern(command: str) -> re.Pattern[str]:
    return re.compile(r"\s+".join(map(re.escape, _joined(command).split())))


def of_texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and content of the texts in a folder."""
    for name in TEXTS:
        yield name, (folder / name).read_text(encoding="utf-8")
