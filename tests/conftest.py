"""Fixtures for all tests."""

from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
SHARED_CRDS = CHECKOUT.parent / "shared" / "crds"


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The top folder of the checkout."""
    return CHECKOUT


@pytest.fixture(scope="session")
def shared_crds() -> Path:
    """The folder with the CRDs of others; skips the test where it is not there."""
    if not SHARED_CRDS.is_dir():
        pytest.skip("the CRDs of others are not here")
    return SHARED_CRDS
