"""Rules about the text of a file, before it is an object."""

from dataclasses import dataclass

from caphv.validation.finding import Fault, LocatedFinding
from caphv.validation.rule import Rule, Rules

RULES = Rules()


def _rule(name: str, description: str, example: str, *, advice: bool = False) -> Rule:
    return RULES.declare(name, description, example=example, advice=advice)


SYNTAX = _rule("yaml-syntax", "The text must be YAML or JSON.", "spec: {cpu: 4")
TAB = _rule(
    "yaml-tab", "Lines must be indented by spaces: YAML allows no tab there.", "spec:\n\tcpu: 4"
)
DUPLICATE_KEY = _rule(
    "yaml-duplicate-key",
    "A key must be unique in its mapping. Of two equal keys, most programs silently use the last.",
    "spec:\n  cpu: 4\n  cpu: 8",
)
ALIAS = _rule(
    "yaml-alias",
    "An alias must name an anchor before it that does not contain it, and all aliases of a "
    "document together must stand for at most 100,000 values.",
    "spec:\n  networks: *shared",
)
DEPTH = _rule("yaml-depth", "Mappings and lists must be nested at most 100 deep.", "[[[[[[…]]]]]]")
KEY = _rule(
    "yaml-key",
    "A key must be text. YAML reads some plain words as something else: quote them.",
    "metadata:\n  labels:\n    on: x",
)
TAG = _rule(
    "yaml-tag",
    "Values must have no tags but those of JSON's types (`!!str`, `!!int` …).",
    "spec: !!python/object x",
)
NUMBER = _rule("yaml-number", "A number must be one that JSON can hold.", "spec:\n  cpu: .inf")
OCTAL = _rule(
    "yaml-octal",
    "A whole number must have no leading zero, since it is read as octal. Drop the zero, or quote "
    "the value when text is meant.",
    "spec:\n  cpu: 010",
    advice=True,
)
ENCODING = _rule(
    "yaml-encoding", "Files must be UTF-8, with or without byte order mark.", "(bytes of Latin-1)"
)
CHARACTER = _rule("yaml-character", "Text must not contain control characters.", "(a NUL byte)")
DOCUMENT = _rule(
    "yaml-document",
    "Each document must be one object: a mapping with `apiVersion` and `kind`.",
    "- first\n- second",
)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a text, both counted from 1, columns in characters."""

    line: int
    column: int


TextFinding = LocatedFinding[Position]


def text_finding(rule: Rule, position: Position, message: str, remedy: str) -> TextFinding:
    """Return a finding at a place of a file: what is wrong, and how to correct it."""
    return LocatedFinding(position, rule.finding((), Fault.SYNTAX, message, remedy=remedy))
