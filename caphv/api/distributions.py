"""The form of versions of Kubernetes in each distribution."""

from __future__ import annotations

# The first release of a distribution, for a version without one.
_SUFFIXES = {"rke2": "+rke2r1", "k3s": "+k3s1"}


def full_version(version: str, distribution: str) -> str:
    """Return a version with the release of its distribution, such as `v1.36.2+rke2r1`.

    :param version: with or without a release, may be empty
    :param distribution: `rke2`, `k3s` or `kubeadm`, which has no releases of its own
    """
    if not version or "+" in version:
        return version
    return version + _SUFFIXES.get(distribution, "")
