"""Options of helm and clusterctl in the documentation are known to the real programs."""

import re
import subprocess

import pytest

from sandbox import binaries
from tests import shell

pytestmark = pytest.mark.e2e

TOOLS = ("helm", "clusterctl")
COMMANDS = [
    words
    for page in shell.PAGES
    for block in shell.blocks(page)
    for words in shell.commands(block)
    if words[0] in TOOLS
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words)[:60])
def test_options_exist(words: list[str]) -> None:
    program, *rest = words
    # A word that is no command ends them: helm and clusterctl explain the command before it.
    names = [word for word in rest[:2] if not word.startswith("-") and re.fullmatch(r"[a-z]+", word)]
    names = names[:2] if program == "clusterctl" else names[:1]
    done = subprocess.run([binaries.binary(program), *names, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{program} {names[0]}" in done.stdout
    for option in (word.partition("=")[0] for word in rest if word.startswith("-")):
        assert re.search(rf"(^|[\s,]){re.escape(option)}\b", done.stdout), f"{program} {names} has no {option}"


def test_commands_are_found() -> None:
    assert {words[0] for words in COMMANDS} == set(TOOLS)
