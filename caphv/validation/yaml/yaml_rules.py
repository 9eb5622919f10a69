"""What goes wrong before a file is an object: traps of YAML, each with a name that reports and docs use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trap:
    """A rule about files: its name, what it says, a wrong example, and whether it only advises."""

    name: str
    description: str
    example: str
    advice: bool = False


SYNTAX = Trap("yaml-syntax", "The text is YAML or JSON.", "spec: {cpu: 4")
TAB = Trap("yaml-tab", "Lines are indented by spaces: YAML allows no tab there.", "spec:\n\tcpu: 4")
DUPLICATE_KEY = Trap(
    "yaml-duplicate-key",
    "A key stands once in a mapping. Of two, most programs silently take the last one.",
    "spec:\n  cpu: 4\n  cpu: 8",
)
ALIAS = Trap(
    "yaml-alias",
    "An alias names an anchor before it, not one that contains it, and all aliases of a document together stand for at"
    " most 100,000 values.",
    "spec:\n  networks: *shared",
)
DEPTH = Trap("yaml-depth", "Mappings and lists are nested at most 100 deep.", "[[[[[[…]]]]]]")
KEY = Trap(
    "yaml-key",
    "A key is text. YAML reads some plain words as something else: quote them.",
    "metadata:\n  labels:\n    on: x",
)
TAG = Trap(
    "yaml-tag", "Values carry no tags but those of JSON's types (`!!str`, `!!int` …).", "spec: !!python/object x"
)
NUMBER = Trap("yaml-number", "A number is one that JSON can hold.", "spec:\n  cpu: .inf")
OCTAL = Trap(
    "yaml-octal",
    "A whole number with a leading zero is read as octal. Drop the zero, or quote the value when text is meant.",
    "spec:\n  cpu: 010",
    advice=True,
)
ENCODING = Trap("yaml-encoding", "Files are UTF-8, with or without byte order mark.", "(bytes of Latin-1)")
CHARACTER = Trap("yaml-character", "Text holds no control characters.", "(a NUL byte)")
DOCUMENT = Trap(
    "yaml-document", "Each document is one object: a mapping with `apiVersion` and `kind`.", "- first\n- second"
)

TRAPS = (SYNTAX, TAB, DUPLICATE_KEY, ALIAS, DEPTH, KEY, TAG, NUMBER, OCTAL, ENCODING, CHARACTER, DOCUMENT)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A place in a text, both counted from 1, columns in characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A trap at a place of a file: what is wrong, and how to put it right."""

    position: Position
    trap: Trap
    message: str
    remedy: str = ""
