"""Fixtures of the tests of whole scenarios."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.capi.core import CORE_VARIABLE, GATES_VARIABLE
from sandbox.processes.binaries import IMPATIENT_CORE
from tests.support import image


@pytest.fixture(scope="session")
def prefix(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the image's final stage takes from the build stage."""
    if not Path("/var/lib/dpkg/status").is_file():
        pytest.skip("images are assembled from Debian packages, which this machine does not have")
    return image.build(checkout, tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module", autouse=True)
def core(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use the core that retries soon, unless the module wants that of users, or the variable names one.

    By default the core reconciles an object once a second at most, and a machine without an address once in five. A
    module that changes the contract of CRDs needs that: the core then reads from another cache than it watches.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "unmodified_core" not in request.node.keywords and CORE_VARIABLE not in os.environ:
            patch.setenv(CORE_VARIABLE, IMPATIENT_CORE.name)
            if "rate_limited_core" not in request.node.keywords:
                patch.setenv(GATES_VARIABLE, "ReconcilerRateLimiting=false")
        yield
