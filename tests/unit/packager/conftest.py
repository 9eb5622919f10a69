"""A table of versions with an older release, for upgrades."""

from tests.support.packager.tables import two_releases

__all__ = ["two_releases"]
