"""YAML is read as kubectl reads it, and each broken rule is reported with line and column."""

import codecs
import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caphv.validation.yaml import yaml_rules
from caphv.validation.yaml.builder import MAX_ALIASED, MAX_DEPTH
from caphv.validation.yaml.documents import MAX_BROKEN
from caphv.validation.yaml.loader import parse
from caphv.validation.yaml.yaml_rules import Position, TextFinding

pytestmark = pytest.mark.unit

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 30)
)
# Text, name of the rule, line and column.
WRONG = {
    "tab": ("spec:\n\tcpu: 4\n", "yaml-tab", 2, 1),
    "tab after spaces": ("spec:\n  a: 1\n \tcpu: 4\n", "yaml-tab", 3, 2),
    "duplicate key": ("spec:\n  cpu: 4\n  cpu: 8\n", "yaml-duplicate-key", 3, 3),
    "duplicate key in JSON": ('{\n  "a": 1,\n  "a": 2\n}\n', "yaml-duplicate-key", 3, 3),
    "key that is the same once read": ("on: 1\n'true': 2\n", "yaml-duplicate-key", 2, 1),
    "alias of nothing": ("a: 1\nb: *nothing\n", "yaml-alias", 2, 4),
    "alias of itself": ("a: &a\n  - *a\n", "yaml-alias", 2, 5),
    "alias bomb": (BOMB, "yaml-alias", 5, 45),
    "depth": ("[" * (MAX_DEPTH + 50), "yaml-depth", 1, MAX_DEPTH + 1),
    "boolean key": ("metadata:\n  on: x\n", "yaml-key", 2, 3),
    "empty key": ("? \n: x\n", "yaml-key", 1, 2),
    "key that is a list": ("? [a]\n: x\n", "yaml-key", 1, 3),
    "merge of a text": ("a:\n  <<: x\n", "yaml-key", 2, 3),
    "tag": ("a: !!python/object:os.system x\n", "yaml-tag", 1, 4),
    "tag of a mapping": ("a: !thing {}\n", "yaml-tag", 1, 4),
    "number out of JSON": ("a: .inf\n", "yaml-number", 1, 4),
    "huge number": ("a: 1e999\n", "yaml-number", 1, 4),
    "octal": ("mode: 0644\n", "yaml-octal", 1, 7),
    "colon": ("a: b: c\n", "yaml-syntax", 1, 5),
    "open quotes": ("a: 'x\n", "yaml-syntax", 2, 1),
    "open bracket": ("a: [1,\nb: 2\n", "yaml-syntax", 3, 1),
    "at sign": ("a: @b\n", "yaml-syntax", 1, 4),
    "template": ("a: {{ .Values.x }}\n---\nb: [\n", "yaml-syntax", 4, 1),
    "control character": ("a: 1\nb: \x07\n", "yaml-character", 2, 4),
    "NUL": ("\x00", "yaml-character", 1, 1),
}


def problems(text: str | bytes) -> list[TextFinding]:
    source = parse("file", text.encode() if isinstance(text, str) else text)
    return [*source.problems, *(problem for document in source.documents for problem in document.problems)]


def values(text: str) -> list[Any]:
    return [document.value for document in parse("file", text.encode()).documents]


@pytest.mark.parametrize(("text", "name", "line", "column"), WRONG.values(), ids=WRONG)
def test_a_broken_rule_is_reported_at_its_place(text: str, name: str, line: int, column: int) -> None:
    found = [(problem.finding.rule, problem.place) for problem in problems(text)]
    assert (name, Position(line, column)) in found
    assert all(str(problem.finding) and problem.finding.remedy for problem in problems(text))


def test_every_rule_is_tested() -> None:
    elsewhere = {yaml_rules.ENCODING, yaml_rules.DOCUMENT}
    assert {rule.name for rule in yaml_rules.RULES} - {rule.name for rule in elsewhere} == {
        row[1] for row in WRONG.values()
    }


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8], ids=["", "byte order mark"])
def test_bytes_that_are_no_utf8_are_reported_at_their_place(mark: bytes) -> None:
    (problem,) = problems(mark + "a: 1\nb: gr\u00fcn\n".encode("latin-1"))
    assert (problem.finding.rule, problem.place) == (yaml_rules.ENCODING.name, Position(2, 6))
    assert "0xfc" in problem.finding.detail


def test_an_alias_bomb_costs_no_time() -> None:
    start = time.monotonic()
    assert problems(BOMB)
    assert time.monotonic() - start < 1


def test_anchors_are_fine_and_merged_as_kubectl_does() -> None:
    assert values("a: &a {d: 1, e: 2}\nb: *a\nc: {<<: *a, e: 3}\n") == [
        {"a": {"d": 1, "e": 2}, "b": {"d": 1, "e": 2}, "c": {"d": 1, "e": 3}}
    ]
    many = "a: &a x\nb:\n" + "- *a\n" * MAX_ALIASED
    assert problems(many) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", True),
        ("y", True),
        ("No", False),
        ("~", None),
        ("0644", 420),
        ("0o17", 15),
        ("0x1F", 31),
        ("08", 8),
        ("1_000", 1000),
        ("1e3", 1000),
        ("1.5", 1.5),
        ("12:30:17", "12:30:17"),
        ("2026-11-21", "2026-11-21"),
        ("4Gi", "4Gi"),
        ("-", "-"),
        ("1.2.3.4", "1.2.3.4"),
        ("18446744073709551615", 18446744073709551615),
        ("'on'", "on"),
        ('"010"', "010"),
        ("!!str 5", "5"),
        ("!!int '5'", 5),
    ],
)
def test_scalars_are_what_kubectl_makes_of_them(text: str, value: Any) -> None:
    (found,) = values(f"a: {text}\n" if text != "-" else "a: '-'\n")
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize("text", ["", "# only words\n", "---\n---\n# x\n---\n", "null\n", "\ufeff"])
def test_nothing_is_no_document_and_no_problem(text: str) -> None:
    assert (values(text), problems(text)) == ([], [])


def test_line_endings_and_byte_order_mark() -> None:
    (document,) = parse("file", "\ufeffa: 1\r\nb:\r\n  c: 2\r\n".encode()).documents
    assert document.value == {"a": 1, "b": {"c": 2}}
    assert document.position(("b", "c")) == Position(3, 6)


def test_json_with_tabs() -> None:
    assert values('{\n\t"a": [1, true, null, "x"]\n}') == [{"a": [1, True, None, "x"]}]


def test_a_broken_document_does_not_hide_the_others() -> None:
    source = parse("file", b"a: 1\n---\nb: [\n---\nc: 3\n---\nd: ]\n---\ne: 5\n")
    assert [document.value for document in source.documents] == [{"a": 1}, {"c": 3}, {"e": 5}]
    assert [problem.place.line for problem in source.problems] == [4, 7]
    assert source.documents[2].position(("e",)) == Position(9, 4)


def test_many_broken_documents_end() -> None:
    found = problems("a: ]\n---\n" * (MAX_BROKEN * 3))
    assert len(found) == MAX_BROKEN + 1
    assert str(MAX_BROKEN) in found[-1].finding.detail


@pytest.mark.parametrize(
    ("path", "line", "column"),
    [
        (("spec", "cpu"), 2, 8),
        (("spec", "absent", "deeper"), 1, 1),
        (("spec", "volumes", 1), 5, 5),
        (("spec", "volumes", 1, "type"), 5, 11),
        (("spec", "volumes", 7), 3, 3),
        (("spec", "text"), 6, 9),
        (("nothing",), 1, 1),
    ],
)
def test_positions(path: tuple[str | int, ...], line: int, column: int) -> None:
    text = "spec:\n  cpu: 4\n  volumes:\n  - type: a\n  - type: b\n  text: |\n    x\n"
    (document,) = parse("file", text.encode()).documents
    assert document.position(path) == Position(line, column)


def test_position_of_a_key() -> None:
    (document,) = parse("file", b"spec:\n  zone: a\n").documents
    assert document.key_position(("spec", "zone")) == Position(2, 3)


def test_lines_of_a_secret_are_not_shown() -> None:
    text = "kind: ConfigMap\na: b\n---\nkind: Secret\ndata: {a: geheim}\n---\nkind: ConfigMap\n"
    source = parse("file", text.encode())
    assert [source.excerpt(line) for line in (2, 5, 7, 99)] == ["a: b", "", "kind: ConfigMap", ""]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text(min_size=1), JSON, min_size=1, max_size=5))
def test_what_is_written_is_read(value: dict[str, Any]) -> None:
    # Quotes around all text: PyYAML leaves words such as `n` bare, which kubectl takes for a boolean.
    text = yaml.safe_dump(value, default_style='"')
    assert (problems(text), values(text)) == ([], [value])


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}&*!|>'\"#%@\t\n ,?<0x1", max_size=200).map(str.encode))
def test_anything_can_be_read(data: bytes) -> None:
    source = parse("file", data)
    for problem in source.problems:
        assert 1 <= problem.place.line <= len(source.lines) + 1
        assert problem.place.column >= 1
