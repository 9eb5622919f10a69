"""What holds for every rule."""

from __future__ import annotations

import copy
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.reviews import some_object
from webhooks.admission import KINDS, RULES
from webhooks.rules.model import Subject

pytestmark = pytest.mark.unit


@given(st.randoms(use_true_random=True))
def test_rules_find_nothing_without_the_fields_they_list(random: Random) -> None:
    """Admission does not run them then."""
    kind = random.choice(list(KINDS))
    obj, old = (some_object(random, kind, "v1beta1") for _ in range(2))
    for rule in RULES.values():
        fields = {re.split(r"[.\[]", field)[0] for field in rule.fields}
        if kind not in rule.kinds or fields & {"*", "metadata", "spec"}:
            continue
        objects = [copy.deepcopy(one) if isinstance(one, dict) else {} for one in (obj, old)]
        for one in objects:
            spec = Subject.of(kind, one).spec.mapping
            for name in fields & spec.keys():
                del spec[name]
        assert rule.findings(Subject.of(kind, objects[0])) == []
        assert rule.findings(Subject.of(kind, objects[0], old=objects[1])) == []
