"""Jinja in bootstrap data is blanked out in linear time, as the regular expressions did that it replaces."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.machine.cloudinit import userdata
from reconciler.machine.cloudinityaml import CloudInitError
from reconciler.machine.jinjamask import first_unclosed_mark, mask

pytestmark = pytest.mark.unit

SIZE = 64 * 1024
_JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_STATEMENT_LINES = re.compile(
    r"^[ \t]*(?:(?:\{%(?:(?!%\}).)*%\}|\{#(?:(?!#\}).)*#\})[ \t]*)+$", re.DOTALL | re.MULTILINE
)


def by_expressions(text: str) -> str:
    text = _STATEMENT_LINES.sub(lambda match: "\n" * match[0].count("\n"), text)
    return _JINJA.sub(lambda match: re.sub(r"[^\n]", "J", match[0]), text)


@given(
    st.lists(st.sampled_from(["{{", "}}", "{%", "%}", "{#", "#}", "\n", " ", "\t", "x", "{", "}", "%", "#"])).map(
        "".join
    )
)
def test_the_mask_is_that_of_the_expressions(text: str) -> None:
    assert mask(text) == by_expressions(text)


@pytest.mark.parametrize(
    "part",
    [
        "{{",
        "{%",
        "{#",
        "{{ ",
        "{% a\n",
        "{{ x }} ",
        "{% x %}",
        "{%\n%}",
        "{%\n{%%}",
        "{#\n{%#}",
        "\n{% a %}{% b %}x",
        "{%{#",
        " \t",
    ],
)
def test_much_jinja_is_masked_in_linear_time(part: str) -> None:
    text = part * (SIZE // len(part))
    for worst in (text, text + "x", text + "%}x", text + "#}%}}}x"):
        started = time.process_time()
        mask(worst)
        # A regular expression takes six seconds or more.
        assert time.process_time() - started < 0.5


def test_hostile_bootstrap_data_is_refused_in_time() -> None:
    started = time.process_time()
    for body in ("a: " + "{{ " * 250_000, "a: " + "[" * 30_000 + "]" * 30_000, "- " * 400_000):
        for header in ("## template: jinja\n#cloud-config\n", "#cloud-config\n"):
            with pytest.raises(CloudInitError):
                userdata(header + body)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: {{ x }}\n", None),
        ("a: 1\nruncmd: ['echo ${#HOME}']\n", (2, "{#")),
        ("a: {{ '{#' }}\n", None),
        ("a: {# b #}\nc: {{ d\n", (2, "{{")),
        ("{% if a %}\n{% endif\n", (2, "{%")),
    ],
)
def test_what_has_no_end_is_found(text: str, expected: tuple[int, str] | None) -> None:
    assert first_unclosed_mark(text) == expected


def test_what_has_no_end_is_found_in_time_linear_to_the_text() -> None:
    assert first_unclosed_mark("{# #}" * 100_000 + "{{") == (1, "{{")
    assert first_unclosed_mark("{{ {# " * 100_000) == (1, "{{")
