"""The corpus before schema and rules: what is wrong is refused at the right field by the right rule."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import corpus
from webhooks.admission import KINDS, RULES, Review, Verdict, validate

pytestmark = pytest.mark.unit

WRONG, RIGHT = corpus.invalid(), corpus.valid()


def verdict(case: corpus.Case, *, without: str = "") -> Verdict:
    operation = "CREATE" if case.old is None else "UPDATE"
    review = Review(operation, case.kind, case.version, case.object, case.old, case.dry_run)
    return validate(review, without={without})


def refused(case: corpus.Case, *, without: str = "") -> frozenset[tuple[str, str]]:
    return frozenset((finding.field, finding.rule) for finding in verdict(case, without=without).errors)


def test_the_corpus_is_large_enough() -> None:
    assert len({case.name for case in WRONG}) >= 150
    assert len({case.name for case in RIGHT}) >= 60
    assert {case.kind for case in WRONG} == {case.kind for case in RIGHT} == set(KINDS)


def test_wrong_objects_are_refused_where_they_are_wrong() -> None:
    differing = {str(case): refused(case) for case in WRONG if not case.errors or refused(case) != case.errors}
    assert differing == {}


def test_right_objects_are_accepted() -> None:
    differing = {str(case): refused(case) for case in RIGHT if refused(case)}
    assert differing == {}


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.advice])
def test_no_rule_is_there_without_a_case(rule: str) -> None:
    concerned = [case for case in WRONG if any(rule == broken for _, broken in case.errors)]
    assert {case.kind for case in concerned} == set(RULES[rule].kinds)
    assert all(refused(case, without=rule) != case.errors for case in concerned)


def test_a_field_is_not_reported_by_schema_and_rule() -> None:
    for case in WRONG:
        reported = Counter(finding.field for finding in verdict(case).errors if finding.rule.startswith("schema-"))
        reported += Counter({finding.field: 1 for finding in verdict(case).errors if finding.rule in RULES})
        assert max(reported.values()) == 1, case


@pytest.mark.parametrize("case", WRONG[::7], ids=str)
def test_errors_say_what_to_do(case: corpus.Case) -> None:
    for finding in verdict(case).errors:
        assert str(finding).startswith(f"{finding.field}: {finding.fault}")
        assert len(finding.detail) > 10


def test_every_exception_names_rules_that_are_there() -> None:
    for row in corpus.exceptions():
        assert len(row["why"]) > 20
        assert set(row["kinds"]) <= set(KINDS)
        for name in row["rules"] if row["rules"] != "new" else []:
            assert name.startswith("schema-") or set(row["kinds"]) <= set(RULES[name].kinds)
