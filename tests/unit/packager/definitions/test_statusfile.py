"""The status file stays readable, whatever the definitions of a source hold."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from packager.definitions.buildresult import BuildResult
from packager.definitions.files import NAMES, STATUS
from packager.definitions.sourcefile import SourceProblem
from packager.definitions.statusfile import add_status
from packager.git.changeplan import Plan
from packager.git.directory import Directory

pytestmark = pytest.mark.unit


def test_so_many_problems_that_the_file_could_not_be_read_again(tmp_path: Path) -> None:
    advice = [SourceProblem("a.yaml", line, "is not used", advice=True) for line in range(1000)]
    errors = [SourceProblem("b.yaml", line, "unknown field") for line in range(100_000)]
    built = BuildResult(problems=[*advice, *errors])
    plan = add_status(Plan(), built, Directory(tmp_path, names=NAMES).sync(), "git.example.com/a, branch main")
    assert len(plan.write[STATUS]) < 1024 * 1024

    # The errors count most.
    rows = yaml.safe_load(plan.write[STATUS])["problems"]
    assert [row["line"] for row in rows] == [*range(1000), 1000]
    assert {row["severity"] for row in rows} == {"error"}
    assert rows[-1]["message"] == "100000 more problems are not listed: correct the listed ones first"
