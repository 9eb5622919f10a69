"""Fixtures of the tests of whole scenarios."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import image
from tests.support.e2e import impatient_core


@pytest.fixture(scope="session")
def prefix(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the image's final stage takes from the build stage."""
    if not Path("/var/lib/dpkg/status").is_file():
        pytest.skip("images are assembled from Debian packages, which this machine does not have")
    return image.build(checkout, tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module", autouse=True)
def core(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use the core that retries soon, unless the module wants that of users."""
    if "unmodified_core" in request.node.keywords:
        yield
    else:
        with impatient_core():
            yield
