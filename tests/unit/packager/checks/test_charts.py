"""Charts in a folder: which of several versions a check takes."""

from __future__ import annotations

import io
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from packager.checks.charts import Charts
from packager.checks.contents import ChartRef
from packager.checks.helm import Helm

ASCENDING = [
    "",
    "1.2.0-alpha",
    "1.2.0-alpha.1",
    "1.2.0-alpha.beta",
    "1.2.0-rc.2",
    "1.2.0-rc.10",
    "1.2.0",
    "1.2.0+up1.9",
    "1.2.0+up1.10",
    "v1.9.0",
    "1.10.0-rc.1",
    "1.10.0",
]


def write_chart(folder: Path, version: str, number: int) -> None:
    content = f"name: agent\nversion: '{version}'\n".encode()
    member = tarfile.TarInfo("agent/Chart.yaml")
    member.size = len(content)
    with tarfile.open(folder / f"agent-{number}.tgz", "w:gz") as archive:
        archive.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize(("older", "newer"), list(pairwise(ASCENDING)))
@pytest.mark.parametrize("is_newer_first", [False, True])
def test_without_a_version_the_newest_chart_is_taken(
    tmp_path: Path, older: str, newer: str, is_newer_first: bool
) -> None:
    versions = [newer, older] if is_newer_first else [older, newer]
    for number, version in enumerate(versions):
        write_chart(tmp_path, version, number)

    chart = Charts(Helm(Path("helm"), tmp_path), tmp_path).find(ChartRef("agent", "", ""))
    assert chart is not None
    assert chart.version == newer
