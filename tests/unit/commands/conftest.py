"""A table of versions with an older release, a kubeconfig for Harvester, and what no command may write to stdout."""

from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.generate import kubeconfig
from tests.support.packager.tables import two_releases

__all__ = ["kubeconfig", "two_releases"]

# Errors and warnings. Programs read stdout, and people redirect it to files.
MESSAGES = (
    *("Error:", "error:", "warning:", "caphv:", "caphv bundles:", "caphv validate:", "Nothing was changed:"),
    *("missing:", "was not saved:", "not saved:", "not seen:", "parked:", "reading ", "Do what", "Not done"),
)


@pytest.fixture(autouse=True)
def stdout_has_no_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail each test whose command writes an error or a warning to stdout."""
    invoke = CliRunner.invoke

    def invoke_and_check(self: CliRunner, *arguments: Any, **options: Any) -> Result:
        result = invoke(self, *arguments, **options)
        assert [line for line in result.stdout.splitlines() if line.startswith(MESSAGES)] == []
        return result

    monkeypatch.setattr(CliRunner, "invoke", invoke_and_check)
