"""A file of definitions beyond its bounds is refused with its name, its size, the bound, and what to do."""

from __future__ import annotations

import pytest

from packager.definitions.source import Reader, Source

pytestmark = pytest.mark.unit

GOOD = "apiVersion: caphv.io/v1beta1\nkind: ClusterDefinition\nmetadata: {name: good, namespace: team-a}\nspec: "
MIB = 1024 * 1024


def read(text: str) -> Source:
    return Reader(lambda _: []).read({"a.yaml": text.encode()})


def names(source: Source) -> list[str]:
    return [entry.key.name for entry in source.clusters]


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (GOOD + "[" + "a,\n" * 30_000 + "]", "a.yaml:29990:", "more than 30,000 values, with YAML aliases written out"),
        (GOOD + "{a: &a [" + "b," * 9000 + "], c: [*a, *a, *a, *a]}", "a.yaml:4:", "more than 30,000 values"),
        ("--- {kind: a}\n" * 1001, "a.yaml:1001:", "more than 1,000 documents: split the file"),
        ("---\n" * 1002, "a.yaml:1001:", "more than 1,000 documents: split the file"),
        (GOOD + "{" + "a: 1,\n" * 102 + "}", "a.yaml:105:", "more than 100 problems: correct them first"),
        (GOOD + "{}" + " " * 2 * MIB, "a.yaml:1:", "more than 2,097,152 bytes: split the file"),
        (
            GOOD + "{}#\U0001f600" + " " * MIB,
            "a.yaml:1:",
            "1,048,684 bytes; with characters such as emoji it may have 1,048,576: split the file",
        ),
    ],
)
def test_a_file_beyond_a_bound_is_refused(text: str, place: str, message: str) -> None:
    source = read(text)
    problems = [str(problem) for problem in source.problems if message in str(problem)]
    assert len(problems) == 1, source.problems[:3]
    assert problems[0].startswith(f"{place} ")
    assert not source.complete
    assert names(source) == []


def test_a_bound_is_that_of_the_whole_file_and_not_of_what_follows_a_broken_document() -> None:
    part = "--- [" + "a," * 16_000 + "\n"
    source = read(part * 5)
    assert [problem.message for problem in source.problems if "30,000 values" in problem.message] == [
        "the file has more than 30,000 values, with YAML aliases written out: split the file"
    ]


def test_a_file_at_its_bounds_is_read() -> None:
    documents = "".join(f"---\n{GOOD}{{}}\n".replace("name: good", f"name: c{number}") for number in range(999))
    assert len(names(read(documents))) == 999
    assert names(read(GOOD + "[" + "a," * 29_950 + "]")) == ["good"]
    assert names(read(GOOD + "{}#" + "é" * (MIB // 2 + 1000))) == ["good"]
