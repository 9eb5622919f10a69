"""Options of helm, clusterctl and kubectl in the documentation are known to the real programs."""

import re
import subprocess
from functools import cache

import pytest

from sandbox.processes import binaries
from tests.support import doccommands

pytestmark = pytest.mark.e2e

TOOLS = ("helm", "clusterctl")
COMMANDS = [
    words
    for page in doccommands.PAGES
    for block in doccommands.blocks(page)
    for words in doccommands.commands(block)
    if words[0] in TOOLS
]


KUBECTL = [
    words
    for page in doccommands.PAGES
    for block in doccommands.blocks(page)
    for words in doccommands.commands(block)
    # Plugins are not part of kubectl.
    if words[0].startswith("kubectl") and words[1:2] not in (["caphv"], ["krew"])
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:60])
def test_options_exist(words: list[str]) -> None:
    program, *rest = words
    # A word that is not a command ends them: helm and clusterctl explain the command before it.
    names = [word for word in rest[:2] if not word.startswith("-") and re.fullmatch(r"[a-z]+", word)]
    names = names[:2] if program == "clusterctl" else names[:1]
    done = subprocess.run([binaries.binary(program), *names, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{program} {names[0]}" in done.stdout
    for option in (word.partition("=")[0] for word in rest if word.startswith("-")):
        assert re.search(rf"(^|[\s,]){re.escape(option)}\b", done.stdout), f"{program} {names} has no {option}"


@cache
def kubectl_help(*names: str) -> str:
    """What kubectl says about a command, and about the options that all commands have."""
    program = binaries.binary("kubectl")
    asked = ([program, *names, "--help"], [program, "options"])
    done = [subprocess.run(command, capture_output=True, text=True, check=True) for command in asked]
    return "".join(each.stdout for each in done)


def test_options_of_kubectl_exist() -> None:
    """A command is its verb, and for some another word; `-n team` and the like may stand before it."""
    faults = []
    for words in KUBECTL:
        ours = words[1 : words.index("--")] if "--" in words else words[1:]
        names = [word for word in after(ours) if re.fullmatch(r"[a-z-]+", word) and not word.startswith("-")]
        parts = {"create": 3 if names[1:2] == ["secret"] else 2, "rollout": 2}.get(names[0], 1)
        text = kubectl_help(*names[:parts])
        options = {word.partition("=")[0] for word in ours if re.match(r"-{1,2}[a-z]", word)}
        known = {option for option in options if re.search(rf"(^|[\s,]){re.escape(option)}\b", text)}
        faults += [f"{' '.join(words)}: no {option}" for option in sorted(options - known)]
    assert faults == []


def after(words: list[str]) -> list[str]:
    """Words without options before the verb and their values."""
    while words[0].startswith("-"):
        words = words[1 if "=" in words[0] else 2 :]
    return words


def test_commands_are_found() -> None:
    assert len(KUBECTL) > 50
    assert {words[0] for words in COMMANDS} == set(TOOLS)
