"""The sandbox that all modules of this folder share: each deletes what it created."""

from collections.abc import Iterator

import pytest

from sandbox.environment import Sandbox
from sandbox.state import SandboxSettings
from tests.support.e2e import impatient_core, running_sandbox

SETTINGS = SandboxSettings(older_versions=False, boot_seconds=0.5, register_seconds=0.2)


@pytest.fixture(scope="package")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with the provider; gone without a trace after the last test."""
    with impatient_core(), running_sandbox(tmp_path_factory.mktemp("clusters"), SETTINGS) as box:
        yield box
