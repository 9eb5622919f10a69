"""Templates of patches give the text that Go gives."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.clusterclass.gotemplate import UnsupportedError, render

pytestmark = pytest.mark.unit

VARIABLES: dict[str, Any] = {
    "cpu": 4,
    "memory": "8Gi",
    "worker": {"cpu": 2},
    "zero": 0,
    "list": ["a", "b"],
    "yes": True,
    "cni": "none",
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ .cpu }}", "4"),
        ("{{ .worker.cpu }}-{{ .memory | toJson }}", '2-"8Gi"'),
        ("{{ if .worker }}a{{ else }}b{{ end }}", "a"),
        ("{{ if .zero }}a{{ else if .yes }}b{{ else }}c{{ end }}", "b"),
        ("{{ if and .worker .worker.cpu }}{{ .worker.cpu }}{{ else }}{{ .cpu }}{{ end }}", "2"),
        ("{{ if and .absent .absent.cpu }}a{{ else }}b{{ end }}", "b"),
        ('{{ if or .absent (eq .cni "none") }}a{{ end }}', "a"),
        ('{{ if not (ne .cni "none") }}a{{ end }}', "a"),
        ('{{ if and .worker (hasKey .worker "cpu") }}a{{ end }}', "a"),
        ('{{ if and .absent (hasKey .absent "cpu") }}a{{ else }}b{{ end }}', "b"),
        ("x\n{{- if .yes }}\n y\n{{- end }}\nz", "x\n y\nz"),
        ("{{- $size := .cpu }}{{ if .yes }}{{ $size = .zero }}{{ end }}{{ $size }}", "0"),
        ("{{- range .list }}[{{ . }}]{{ end }}", "[a][b]"),
        ("{{/* nothing */}}{{ .yes }}", "true"),
        ("{{ $.cpu }} {{ .list | toJson }}", '4 ["a","b"]'),
        ("no action", "no action"),
    ],
)
def test_templates_are_evaluated(template: str, text: str) -> None:
    assert render(template, VARIABLES) == text


@pytest.mark.parametrize(
    "template",
    [
        '{{ template "x" }}',
        "{{ with .cpu }}{{ end }}",
        '{{ printf "%d" .cpu }}',
        "{{ if .cpu }}",
        "{{ end }}",
        "{{ .list }}",
        "{{ $unknown }}",
        "{{ range $i, $e := .list }}{{ end }}",
        "{{ if .yes }}" * 60,
        "{{ (and .yes }}",
    ],
)
def test_what_is_not_understood_is_refused(template: str) -> None:
    with pytest.raises(UnsupportedError):
        render(template, VARIABLES)


@given(st.text(alphabet='{}-.$|() abif"\n', max_size=80))
def test_no_template_does_harm(template: str) -> None:
    with contextlib.suppress(UnsupportedError):
        render(template, {"a": 1, "b": {"i": [1]}})
