"""The sandbox that all modules of this folder share: each deletes what it created."""

from collections.abc import Iterator

import pytest

from sandbox.environment import Sandbox
from sandbox.state import SandboxSettings
from tests.support.e2e import impatient_core, running_sandbox

SETTINGS = SandboxSettings(older_versions=False, webhooks=True, boot_seconds=0.3, register_seconds=0.1, kubeadm=True)


@pytest.fixture(scope="package")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A sandbox with the provider, its webhooks and all classes; gone without a trace after the last test."""
    with impatient_core(), running_sandbox(tmp_path_factory.mktemp("classes"), SETTINGS) as box:
        yield box
