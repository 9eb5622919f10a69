"""Fixtures of the tests of whole stories."""

from pathlib import Path

import pytest

from tests.support import image


@pytest.fixture(scope="session")
def prefix(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the image's final stage takes from the build stage."""
    return image.build(checkout, tmp_path_factory.mktemp("image"))
