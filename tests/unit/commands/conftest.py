"""A table of versions with an older release, for upgrades, and a kubeconfig for Harvester."""

from tests.support.generate import kubeconfig
from tests.support.packager.tables import two_releases

__all__ = ["kubeconfig", "two_releases"]
