"""Nothing that exists is replaced without asking: by discovery over all commands, and over the source of all of them.

A write that is not in these lists fails the test: add it with the reason why it loses nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commandlist import leaf_commands

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
# Writes of files, by module.
FILES = {
    "commands/options/outputfile.py": "refuses a file with content without --overwrite",
    "commands/generate_output.py": "compares, and refuses different files without --overwrite",
    "commands/main.py": "the null device, in place of a closed standard stream",
    "operations/change/deletion.py": "appends to the list of what may remain",
    "operations/backup/files.py": "needs a new or empty directory",
}
# Server-side apply replaces the fields that it names; each call of it, by module.
APPLIED = {
    "commands/cloud_config_account.py": "refuses the Secret of another account",
    "commands/packager/sync.py": "of definitions in Git, with --apply; ClusterClasses that exist stay",
    "commands/packager/management.py": "by the above",
    "commands/generate_output.py": "keeps an identity without --replace-identity, and ClusterClasses that exist",
    "operations/change/plan/reading.py": "a dry run",
    "packager/definitions/apply.py": "by the above",
}
_WRITERS = {"write_text", "write_bytes"}
# Commands that can only be tried (`--dry-run`), and what protects what exists.
UNASKED = {
    "backup": "needs a new or empty directory",
    "bundles upgrade": "a commit; the packager reverts a wave that fails",
    "packager sync": "a commit, with --max-prune",
}


def calls(folder: str) -> Iterator[tuple[str, ast.Call]]:
    for file in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                yield str(file.relative_to(ROOT)), node


def writes(node: ast.Call) -> bool:
    """Whether a call writes a file."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    modes = [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    opens = name in ("open", "fdopen") and any(mode in ("w", "wb", "a", "ab", "x", "xb") for mode in modes)
    return opens or name in _WRITERS


def test_files_are_written_where_nothing_is_lost() -> None:
    found = {module for folder in ("commands", "operations") for module, node in calls(folder) if writes(node)}
    assert {module for module in found if not module.startswith("commands/sandbox/")} == set(FILES)


def test_objects_are_applied_where_nothing_is_lost() -> None:
    found = set()
    for folder in ("commands", "operations", "packager"):
        for module, node in calls(folder):
            if isinstance(node.func, ast.Attribute) and node.func.attr == "apply":
                found.add(module)
    assert found == set(APPLIED)


def test_commands_that_change_something_ask_or_say_what_protects_it() -> None:
    options = {words: {str(each.name) for each in command.params} for words, command in leaf_commands()}
    unasked = {words for words, names in options.items() if "dry_run" in names and not names & {"yes", "overwrite"}}
    assert unasked == set(UNASKED)
