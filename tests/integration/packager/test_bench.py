"""The measurement of the packager runs, and what it measures happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench import definitions, packager

pytestmark = pytest.mark.integration


def test_a_small_measurement_has_all_figures(tmp_path: Path) -> None:
    found = packager.measure(tmp_path / "clusters", 3, 1)
    assert (found["clusters"], found["files"], found["  files"]) == (3, 18, 2)
    found = definitions.measure(tmp_path / "definitions", 3, 1)
    assert (found["definitions"], found["  files of it"]) == (3, 3)
    assert found["no changed definition, median s"] > 0
