"""References to other namespaces: who may use what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.api.identities import owner_allows
from caphv.api.names import ALLOWED_NAMESPACES_ANNOTATION
from caphv.api.object import Key
from reconciler.cluster.references import may_use

pytestmark = pytest.mark.unit

SECRET = Key("team-b", "identity")
NAMES = st.from_regex(r"\A[a-z]([a-z0-9-]{0,6}[a-z0-9])?\Z")


def secret(allowed: str | None = None) -> dict[str, Any]:
    annotations = {} if allowed is None else {ALLOWED_NAMESPACES_ANNOTATION: allowed}
    return {"metadata": {"namespace": SECRET.namespace, "name": SECRET.name, "annotations": annotations}}


def cluster(**status: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "team-a", "name": "one"}, "status": status}


@given(st.lists(NAMES, min_size=1, max_size=4), NAMES)
def test_exactly_the_named_namespaces_are_allowed(named: list[str], namespace: str) -> None:
    assert owner_allows(secret(" , ".join(named)), namespace) == (namespace in named)


@pytest.mark.parametrize(("annotation", "allowed"), [(None, False), ("", False), ("*", True), ("team-*", False)])
def test_absent_and_empty_annotations_allow_nothing_and_a_star_all(annotation: str | None, allowed: bool) -> None:
    assert owner_allows(secret(annotation), "team-a") is allowed


def test_secret_is_kept_for_clusters_that_may_use_it_only() -> None:
    assert not may_use(secret(), cluster())
    assert may_use(secret("team-a"), cluster())
    provisioned = cluster(ready=True, initialization={"provisioned": True})
    assert not may_use(secret(), provisioned), "of the Go provider: what it has used needs permission, too"
