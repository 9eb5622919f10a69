"""Where an absent image or key pair was searched, and where its name exists."""

from __future__ import annotations

import pytest

from reconciler.machine.images import describe_search

pytestmark = pytest.mark.unit

IMAGES = [
    {"metadata": {"namespace": "default", "name": "image-x7k2p"}, "spec": {"displayName": "sles-15"}},
    {"metadata": {"namespace": "team-b", "name": "sles-15"}},
]


def test_bare_name_is_searched_in_the_target_namespace_only() -> None:
    assert describe_search("sles-15", IMAGES, "team-a") == (
        "'sles-15' is not in namespace team-a, where names without a namespace are searched; "
        "Harvester has default/sles-15, team-b/sles-15"
    )


def test_name_that_no_namespace_has_suggests_nothing() -> None:
    assert describe_search("default/sles-16", IMAGES, "team-a") == "'default/sles-16' is not in namespace default"
