"""From the bytes of a review to the bytes of its answer, with and without sense."""

import base64
import os
import re
import time
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caphv.api.names import GROUP, VERSIONS
from caphv.api.object import Obj
from caphv.validation.finding import Fault, Finding
from tests.support.reviews import OVERSIZED, fuzzed, request, review
from webhooks import handler
from webhooks.admission import KINDS, Verdict

pytestmark = pytest.mark.unit

CASES = int(os.environ.get("CAPHV_TEST_FUZZ", "2000"))


def ask(content: Any, webhook: handler.Webhook = "validate", kind: str = "HarvesterMachine") -> Obj:
    """Answer a request as the server does; the answer's `response`."""
    found = handler.answer(handler.TARGETS[handler.path_of(webhook, "v1beta1", kind)], review(content))
    answer = orjson.loads(found.body)
    assert answer["apiVersion"] == handler.API_VERSION
    assert answer["kind"] == "AdmissionReview"
    assert answer["response"]["allowed"] is found.allowed
    response: Obj = answer["response"]
    return response


def use_verdict(monkeypatch: pytest.MonkeyPatch, *errors: Finding, warnings: tuple[Finding, ...] = ()) -> None:
    monkeypatch.setattr(handler, "validate", lambda _: Verdict(errors, warnings))


def test_paths_are_those_of_the_go_provider() -> None:
    for version in VERSIONS:
        for kind in ("harvestercluster", "harvestermachine"):
            assert f"/validate-infrastructure-cluster-x-k8s-io-{version}-{kind}" in handler.TARGETS
    assert len(handler.TARGETS) == 2 * len(VERSIONS) * len(KINDS)


def test_all_errors_are_reported_at_once_as_the_api_server_tells_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    use_verdict(
        monkeypatch,
        Finding(("spec", "cpu"), Fault.INVALID, "must be greater than 0", "cpu", 0),
        Finding(("spec", "volumes", 1, "storageClass"), Fault.REQUIRED, "name one", "storage-class"),
    )
    response = ask(request())
    status = response["status"]
    assert (response["uid"], response["allowed"]) == ("0c4f1a52", False)
    assert (status["code"], status["reason"], status["status"]) == (422, "Invalid", "Failure")
    assert status["message"] == (
        f'HarvesterMachine.{GROUP} "one" is invalid: [spec.cpu: Invalid value: 0: must be greater than 0, '
        "spec.volumes[1].storageClass: Required value: name one]"
    )
    assert status["details"] == {
        "name": "one",
        "group": GROUP,
        "kind": "HarvesterMachine",
        "causes": [
            {
                "field": "spec.cpu",
                "reason": "FieldValueInvalid",
                "message": "Invalid value: 0: must be greater than 0",
            },
            {
                "field": "spec.volumes[1].storageClass",
                "reason": "FieldValueRequired",
                "message": "Required value: name one",
            },
        ],
    }


def test_one_error_stands_without_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    use_verdict(monkeypatch, Finding(("spec", "cpu"), Fault.REQUIRED, "give it", "cpu"))
    assert ask(request())["status"]["message"].endswith("is invalid: spec.cpu: Required value: give it")


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.SYNTAX])
def test_every_fault_has_a_reason_of_the_api_machinery(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    use_verdict(monkeypatch, Finding(("spec", "cpu"), fault, "x", "cpu", 1))
    (cause,) = ask(request())["status"]["details"]["causes"]
    assert re.fullmatch(r"FieldValue[A-Z]\w+", cause["reason"])
    assert cause["message"].startswith(str(fault))


def test_what_is_reported_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    long = Finding(("metadata", "annotations", "k" * 5000), Fault.INVALID, "d" * 5000, "x", "v" * 5000)
    use_verdict(monkeypatch, *[long] * 1000, warnings=(long,) * 1000)
    response = ask(request())
    assert len(response["status"]["details"]["causes"]) == 100
    assert "and 900 more" in response["status"]["message"]
    assert len(response["warnings"]) == 16
    assert "985 more" in response["warnings"][-1]
    # What the API server keeps: 256 bytes each, 4096 in all.
    assert max(len(warning.encode()) for warning in response["warnings"]) <= 256
    assert sum(len(warning.encode()) for warning in response["warnings"]) <= 4096


def test_warnings_come_with_both_verdicts_and_without_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = Finding(("spec", "x"), Fault.INVALID, "is discouraged:\nthink\x07 é", "x", advice=True)
    use_verdict(monkeypatch, warnings=(advice,))
    response = ask(request())
    assert response["allowed"] is True
    assert response["warnings"] == ["spec.x: is discouraged: think  é"]
    use_verdict(monkeypatch, Finding(("spec",), Fault.REQUIRED, "give it", "y"), warnings=(advice,))
    assert ask(request())["warnings"] == response["warnings"]


def test_defaults_are_a_json_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    operations = [{"op": "add", "path": "/spec/cpu", "value": 1}]
    monkeypatch.setattr(handler, "defaults", lambda _: operations)
    response = ask(request(), "mutate")
    assert (response["allowed"], response["patchType"]) == (True, "JSONPatch")
    assert orjson.loads(base64.b64decode(response["patch"])) == operations
    monkeypatch.setattr(handler, "defaults", lambda _: [])
    assert ask(request(), "mutate") == {"uid": "0c4f1a52", "allowed": True}


def test_the_rules_get_the_whole_request(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[handler.Review] = []

    def validate(asked: handler.Review) -> Verdict:
        seen.append(asked)
        return Verdict((), ())

    monkeypatch.setattr(handler, "validate", validate)
    ask(request(operation="UPDATE", oldObject={"spec": {"cpu": 1}}, dryRun=True))
    (asked,) = seen
    assert (asked.operation, asked.kind, asked.version, asked.dry_run) == (
        "UPDATE",
        "HarvesterMachine",
        "v1beta1",
        True,
    )
    assert asked.object == {"metadata": {"name": "one"}, "spec": {}}
    assert asked.old == {"spec": {"cpu": 1}}


@pytest.mark.parametrize(
    "fields",
    [
        {"operation": "DELETE", "object": None, "oldObject": {"spec": {"cpu": 0}}},
        {"operation": "CONNECT", "object": None},
        {"subResource": "status"},
    ],
)
def test_deletions_and_subresources_are_let_through(fields: Obj, monkeypatch: pytest.MonkeyPatch) -> None:
    use_verdict(monkeypatch, Finding(("spec",), Fault.REQUIRED, "x", "x"))
    assert ask(request(**fields)) == {"uid": "0c4f1a52", "allowed": True}


@pytest.mark.parametrize(
    "kind",
    [
        {"group": GROUP, "version": "v1beta1", "kind": "HarvesterCluster"},
        {"group": GROUP, "version": "v1alpha1", "kind": "HarvesterMachine"},
        {"group": "apps", "version": "v1", "kind": "Deployment"},
        None,
        "HarvesterMachine",
    ],
)
@pytest.mark.parametrize("webhook", handler.WEBHOOKS)
def test_another_kind_than_that_of_the_path_is_refused(kind: Any, webhook: handler.Webhook) -> None:
    response = ask(request() | {"kind": kind}, webhook)
    assert response["allowed"] is False
    assert response["status"]["code"] == 400
    assert "this path is for HarvesterMachine" in response["status"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 10_000, "not valid JSON"),
        (b"[]", "not an AdmissionReview"),
        (b'{"kind": "Pod"}', "not an AdmissionReview"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}', "admission.k8s.io/v1"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', "request: Required value"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {}}', "request.uid: Required"),
    ],
)
def test_what_is_not_a_review_is_reported_why(body: bytes, message: str) -> None:
    with pytest.raises(handler.BadReview, match=re.escape(message)):
        handler.answer(next(iter(handler.TARGETS.values())), body)


@pytest.mark.parametrize("fields", [{"object": None}, {"object": []}, {"operation": "UPDATE"}, {"operation": 1}])
def test_what_a_review_must_have_is_reported(fields: Obj) -> None:
    with pytest.raises(handler.BadReview, match=r"request\.\w+: Required value"):
        ask(request(**fields))


@settings(max_examples=CASES)
@given(st.randoms(use_true_random=True))
def test_any_json_is_answered_or_refused(random: Random) -> None:
    target = random.choice(list(handler.TARGETS.values()))
    content = fuzzed(random, target)
    try:
        found = handler.answer(target, review(content))
    except handler.BadReview:
        return
    response = orjson.loads(found.body)["response"]
    assert response["uid"] == content["uid"]
    if not response["allowed"]:
        assert response["status"]["code"] in (400, 422)
        assert response["status"]["message"]
    if "patch" in response:
        assert {operation["op"] for operation in orjson.loads(base64.b64decode(response["patch"]))} <= {
            "add",
            "replace",
        }


@settings(max_examples=CASES // 4)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(handler.BadReview):
        handler.answer(handler.TARGETS[handler.path_of("validate", "v1beta1", "HarvesterMachine")], body)


@pytest.mark.parametrize("name", OVERSIZED)
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_oversized_objects_are_refused_by_their_lengths(name: str, operation: str) -> None:
    obj = {"metadata": {"name": "one"}, "spec": OVERSIZED[name](12_000)}
    started = time.process_time()
    response = ask(request(object=obj, oldObject={"metadata": {"name": "one"}, "spec": {}}, operation=operation))
    # Without lengths first, these take more than a second.
    assert time.process_time() - started < 1
    assert not response["allowed"]
    causes = response["status"]["details"]["causes"]
    assert 1 <= len(causes) <= 100
    assert {cause["reason"] for cause in causes} <= {"FieldValueTooMany", "FieldValueTooLong"}


@pytest.mark.parametrize("name", ["networks", "empty volumes", "nested terms"])
def test_reviews_with_too_many_values_are_refused_before_they_are_built(name: str) -> None:
    obj = {"metadata": {"name": "one"}, "spec": OVERSIZED[name](500_000)}
    with pytest.raises(handler.BadReview, match="the body has more than 15,000 values: make it smaller"):
        ask(request(object=obj))


def test_a_review_of_a_thousand_levels_is_refused() -> None:
    body = b'{"a":' * 1000 + b"1" + b"}" * 1000
    target = handler.TARGETS[handler.path_of("validate", "v1beta1", "HarvesterMachine")]
    with pytest.raises(handler.BadReview, match="nested more than 128 levels"):
        handler.answer(target, body)


@pytest.mark.parametrize("memory", ["4e1.5", "1e400", "9" * 65])
def test_memory_that_is_no_size_is_refused(memory: str) -> None:
    response = ask(request(object={"metadata": {"name": "one"}, "spec": {"memory": memory}}))
    assert "spec.memory" in {cause["field"] for cause in response["status"]["details"]["causes"]}


def test_cores_beyond_an_integer_are_refused() -> None:
    response = ask(request(object={"metadata": {"name": "one"}, "spec": {"cpu": 1e30}}))
    assert "spec.cpu" in {cause["field"] for cause in response["status"]["details"]["causes"]}
