"""Repositories and caches for the tests of this folder."""

from pathlib import Path

import pytest

from tests.integration.packager.support import Origin


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    return Origin.make(tmp_path / "origin" / "fleet.git")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"
