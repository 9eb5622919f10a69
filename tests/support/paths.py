"""Folders that tests read."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# CRDs of others, beside the checkout where somebody has put them.
SHARED_CRDS = CHECKOUT.parent / "shared" / "crds"
