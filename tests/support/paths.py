"""Folders that tests read."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
# CRDs of others, next to the checkout where a user has put them.
SHARED_CRDS = CHECKOUT.parent / "shared" / "crds"
# The operations guide and the README of the Go provider, where they are.
GUIDE_TEXTS = CHECKOUT.parent / "shared" / "mission"
