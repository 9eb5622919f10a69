"""Writes that Harvester refuses, as the condition reports them."""

from __future__ import annotations

import pytest

from caphv.runtime.errors import ApiError, Forbidden, Invalid, NamespaceTerminating, NotFound
from reconciler.blocked import Blocked
from reconciler.cluster.refusals import block_on_refusal

pytestmark = pytest.mark.unit

WRITE = "create Service team/one"


def block(error: ApiError) -> Blocked:
    with pytest.raises(Blocked) as blocked, block_on_refusal(WRITE):
        raise error
    return blocked.value


@pytest.mark.parametrize("error", [Forbidden(403, "Forbidden", "no right"), Invalid(422, "Invalid", "no right")])
def test_a_refusal_needs_a_person_and_is_tried_again_after_a_minute(error: ApiError) -> None:
    blocked = block(error)
    assert (blocked.warn, blocked.requeue_after) == (True, 60.0)
    assert f"{WRITE}: no right" in blocked.message


def test_a_namespace_that_is_being_deleted_is_awaited_for_seconds() -> None:
    blocked = block(NamespaceTerminating(403, "Forbidden", "namespace team is being terminated"))
    assert (blocked.warn, blocked.requeue_after) == (False, 2.0)
    assert f"waiting to {WRITE}" in blocked.message


def test_other_errors_are_the_caller_s() -> None:
    with pytest.raises(NotFound), block_on_refusal(WRITE):
        raise NotFound(404, "NotFound", "no namespace")
