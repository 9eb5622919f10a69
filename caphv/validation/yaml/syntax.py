"""Describe errors of the YAML parser in plain words, with a remedy."""

import itertools
import re
from typing import Any

import yaml

from caphv.validation.yaml import yaml_rules
from caphv.validation.yaml.yaml_rules import Position, TextFinding, text_finding

# Line breaks by which the YAML parser counts lines.
LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")

# Message of the parser -> plain message and remedy.
_PARSER_MESSAGES: tuple[tuple[str, str, str], ...] = (
    (
        "found character that cannot start any token",
        "a value begins with a character that has a meaning in YAML",
        "put the value in quotes",
    ),
    (
        "mapping values are not allowed",
        "a colon where no key can be",
        "indent the line like its neighbours, or put the value in quotes",
    ),
    (
        "did not find expected key",
        "neither a key nor the end of the mapping",
        "indent the line like its neighbours; quotes end where they should",
    ),
    ("did not find expected ',' or ']'", "a list in brackets does not end", "close it with ]"),
    ("did not find expected ',' or '}'", "a mapping in braces does not end", "close it with }"),
    ("found unexpected end of stream", "a text in quotes does not end", "close the quotes"),
    ("could not find expected ':'", "a line without a colon after its key", "write `key: value`"),
    (
        "did not find expected '-' indicator",
        "a line among list items that is none",
        "begin it with `- `, or indent it differently",
    ),
)


def syntax_finding(error: yaml.MarkedYAMLError, text: str, first_line: int) -> TextFinding:
    """Describe an error of the parser in plain words, with a remedy."""
    mark: Any = error.problem_mark or error.context_mark
    position = Position(first_line + mark.line + 1, mark.column + 1)

    # If the indentation has a tab, report the tab instead of the error that it causes.
    line = _line(text, mark.line)
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation:
        tab = Position(position.line, indentation.index("\t") + 1)
        return text_finding(yaml_rules.TAB, tab, "a tab in the indentation", "indent with spaces")

    beginning: Any = error.context_mark
    suffix = ""
    if beginning and beginning.line != mark.line:
        suffix = f" (it begins at line {first_line + beginning.line + 1})"

    problem = str(error.problem or "cannot be read")
    for pattern, message, remedy in _PARSER_MESSAGES:
        if pattern in problem:
            return text_finding(yaml_rules.SYNTAX, position, message + suffix, remedy)
    remedy = "correct the text here or right before it"
    return text_finding(yaml_rules.SYNTAX, position, problem + suffix, remedy)


def _line(text: str, index: int) -> str:
    """Return a line, counted from 0; empty if there is none."""
    ends = itertools.chain((0,), (match.end() for match in LINE_BREAK.finditer(text)))
    start = next(itertools.islice(ends, index, None), len(text))
    end = LINE_BREAK.search(text, start)
    return text[start : end.start() if end else len(text)]
