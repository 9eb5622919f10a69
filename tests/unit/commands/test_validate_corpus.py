"""`caphv validate` is an entry point that the corpus tests: it refuses what the webhook refuses, at the same paths."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from commands.main import cli
from tests.corpus import Case, invalid, valid
from webhooks.crossobject import CROSS_OBJECT_RULES

pytestmark = pytest.mark.unit

TOGETHER = {check.name for check in CROSS_OBJECT_RULES}


def errors_of(cases: list[Case], folder: Path) -> list[set[tuple[str, str]]]:
    """Path and rule of each error, case by case, in one call; the cases are not meant to fit each other."""
    for index, case in enumerate(cases):
        (folder / f"{index:05}.json").write_text(json.dumps(case.object, indent=1), encoding="utf-8")
    result = CliRunner().invoke(cli, ["validate", "-o", "json", str(folder)])
    found: list[set[tuple[str, str]]] = [set() for _ in cases]
    finding: dict[str, Any]
    for finding in json.loads(result.stdout)["items"]:
        if finding["severity"] == "error" and finding["rule"] not in TOGETHER:
            found[int(Path(finding["file"]).stem)].add((finding["field"], finding["rule"]))
    return found


def created(cases: list[Case]) -> list[Case]:
    """Objects as people write them: no changes, and nothing that Cluster API cloned."""
    return [case for case in cases if case.old is None and "annotations" not in case.object["metadata"]]


def test_wrong_objects_are_refused_at_the_same_paths(tmp_path: Path) -> None:
    cases = created(invalid())
    assert cases
    missing = {
        str(case): case.errors - found
        for case, found in zip(cases, errors_of(cases, tmp_path), strict=True)
        if not case.errors <= found
    }
    assert missing == {}


def test_right_objects_are_accepted(tmp_path: Path) -> None:
    cases = created(valid())
    assert cases
    refused = {str(case): found for case, found in zip(cases, errors_of(cases, tmp_path), strict=True) if found}
    assert refused == {}
