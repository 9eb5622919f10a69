"""The hook for commit messages accepts what CONTRIBUTING asks for."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("subject", "accepted"),
    [
        ("packager: retry a push after a conflict", True),
        ("webhooks, schemas: limit the length of names", True),
        ('Revert "packager: retry a push"', True),
        ("Retry a push", False),
        ("packager: retry a push.", False),
        ("Packager: retry a push", False),
        (f"packager: {'x' * 70}", False),
    ],
)
def test_subject(checkout: Path, subject: str, *, accepted: bool) -> None:
    spec = importlib.util.spec_from_file_location("commit_message", checkout / "tools" / "ci" / "commit_message.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.fault(f"{subject}\n\nBody.\n") is None) == accepted
