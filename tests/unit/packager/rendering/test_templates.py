"""A template that is wrong or hostile fails with its name, and takes bounded time and memory."""

import time
import tracemalloc
from pathlib import Path

import pytest

from packager.rendering.templates import TemplateError, Templates

pytestmark = pytest.mark.unit


def rendered(folder: Path, text: str) -> list[object]:
    (folder / "csi").mkdir()
    (folder / "csi" / "x.yaml.j2").write_text(text, encoding="utf-8")
    return Templates([folder]).render("csi/x.yaml.j2", {"names": ["a", "b"], "number": 3})


HOSTILE = {
    "nested ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "nested lists": "{% set x = range(9999) | list %}{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}",
    "a long text": "a: {{ 'x' * 900000000 }}",
    "a long list": "a: {{ [1] * 900000000 }}",
    "a large number": "a: {{ 9 ** 9 ** 9 }}",
    "a width": "a: {{ '%900000000d' % 1 }}",
    "a filter with a width": "a: {{ '%900000000d' | format(1) }}",
    "a centred text": "a: {{ 'x' | center(900000000) }}",
    "much output": "{% for a in range(9000) %}" + "x" * 9000 + "{% endfor %}",
    "aliases": "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
    ),
    "recursion": "{% macro m(x) %}{{ m(x) }}{% endmacro %}a: {{ m(1) }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_soon_with_an_error(tmp_path: Path, name: str) -> None:
    started = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError, match=r"csi/x\.yaml\.j2"):
            rendered(tmp_path, HOSTILE[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 10
    assert peak < 32 * 1024 * 1024


def test_loops_know_their_place_and_arithmetic_works(tmp_path: Path) -> None:
    text = (
        "{% for name in names %}\n- {a: {{ name }}, n: {{ loop.index * number }}, last: {{ loop.last }}}\n{% endfor %}"
    )
    assert rendered(tmp_path, text) == [[{"a": "a", "n": 3, "last": False}, {"a": "b", "n": 6, "last": True}]]
