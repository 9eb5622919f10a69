"""The golden tree is what the examples render to, and no line of a template can change without being seen there."""

import re
from collections.abc import Iterator
from copy import copy
from functools import cache
from typing import Any

import pytest
from jinja2 import TemplateSyntaxError

from caphv import data
from packager.rendering.options import RenderOptions
from packager.rendering.rendered import Rendered
from packager.rendering.renderer import Renderer
from packager.rendering.templates import Templates
from tests.support.packager.examples import EXAMPLES, GOLDEN, MIRROR, MIRRORED, golden_files, rendered

pytestmark = pytest.mark.unit

TEMPLATES = data.folder("fleet-bundles")
LINES = [
    (file.relative_to(TEMPLATES).as_posix(), number)
    for file in sorted(TEMPLATES.glob("*/*.j2"))
    for number, line in enumerate(file.read_text().splitlines())
    if line.strip() and not re.fullmatch(r"\s*\{#.*#\}\s*", line)
]


SWAPPED = ((" and ", " or "), (" or ", " and "), (" == ", " != "), (" != ", " == "))

# What a renderer finds out about the shipped templates, see `test_render_cache.py`.
SHAREABLE = True


@cache
def shipped() -> Templates:
    templates = Templates([TEMPLATES])
    assert templates.syntax_trees, "parsed here once, not by each copy"
    return templates


@cache
def tree() -> dict[str, bytes]:
    return {path.relative_to(GOLDEN).as_posix(): path.read_bytes() for path in GOLDEN.rglob("*") if path.is_file()}


def test_golden_tree_is_fresh() -> None:
    """After a wanted change: `python -m tests.support.packager.examples`, and read the difference."""
    wanted, present = golden_files(), tree()
    assert sorted(present) == sorted(wanted)
    assert {path for path in wanted if wanted[path] != present[path]} == set()


def test_examples_have_no_findings() -> None:
    assert [str(finding) for result in rendered() for finding in result.findings] == []


def test_rendering_again_keeps_every_byte() -> None:
    first = rendered()
    repository = {path: content for result in first for path, content in result.tree.items()}
    again = Renderer().render(reversed(EXAMPLES), repository)
    assert {path: content for result in again for path, content in result.tree.items()} == repository


def mutants(text: str, number: int) -> Iterator[str]:
    """The template without one line, with another value in it, and with other branches of its conditions."""
    lines = text.splitlines(keepends=True)
    line = lines[number]
    yield "".join([*lines[:number], *lines[number + 1 :]])
    for old, new in SWAPPED:
        if old in line:
            yield "".join([*lines[:number], line.replace(old, new, 1), *lines[number + 1 :]])
    if re.match(r"\{% (el)?if ", line):
        yield "".join([*lines[:number], re.sub(r"if (.*?) %\}", r"if not (\1) %}", line), *lines[number + 1 :]])
    elif ": " in line and "{%" not in line:
        yield "".join([*lines[:number], line.rstrip().partition(": ")[0] + ": other\n", *lines[number + 1 :]])


@pytest.mark.parametrize(("file", "number"), LINES, ids=[f"{file}:{number + 1}" for file, number in LINES])
def test_every_line_of_a_template_matters(file: str, number: int) -> None:
    """A mutated template fails, is refused, or renders something that the golden tree does not hold."""
    text = (TEMPLATES / file).read_text()
    assert [mutant for mutant in mutants(text, number) if unseen(file, mutant)] == []


def unseen(file: str, mutant: str) -> bool:
    """Whether a mutated template makes what the golden tree holds; ends at the first cluster that differs."""
    templates = copy(shipped())
    templates._compiled = dict(templates._compiled)
    try:
        templates._compiled[file] = templates._environment.from_string(mutant)
    except TemplateSyntaxError:
        return False
    renderers = {mirror: Renderer(RenderOptions(chart_repository=mirror)) for mirror in ("", MIRROR)}
    for renderer in renderers.values():
        renderer.__dict__["templates"] = templates
        renderer.__dict__["is_shareable"] = SHAREABLE
    clusters = clusters_of(file)
    for number, (example, mirror) in enumerate(clusters):
        if differs(renderers[mirror].render_one(example, {}), "mirrored/" if mirror else ""):
            # What shows one mutant of a file shows most others, too.
            clusters.insert(0, clusters.pop(number))
            return False
    return True


@cache
def clusters_of(file: str) -> list[tuple[Any, str]]:
    """All examples with their mirrors, for mutants of one file; those that show mutants come first."""
    return [*((example, "") for example in EXAMPLES), *((example, MIRROR) for example in MIRRORED)]


def differs(result: Rendered, prefix: str) -> bool:
    """Whether a cluster is refused, or differs from the golden tree."""
    if not result.ok:
        return True
    place = f"{prefix}clusters/{result.cluster.namespace}/{result.cluster.name}/"
    return wanted_in(place) != {prefix + path: content for path, content in result.tree.items()}


@cache
def wanted_in(place: str) -> dict[str, bytes]:
    return {path: content for path, content in tree().items() if path.startswith(place)}
