"""Read a stream of YAML or JSON documents, and report the lines that cannot be read.

Documents are built from the parser's events, so that time and memory are bounded for any text. A
broken document ends at the next line `---`, where reading continues.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import yaml

from caphv.runtime.text import AliasError, Limits, TextError, TooManyValues, events
from caphv.validation.yaml import yaml_rules
from caphv.validation.yaml.builder import MAX_DEPTH, Broken, Builder
from caphv.validation.yaml.syntax import LINE_BREAK, syntax_finding
from caphv.validation.yaml.tree import Document
from caphv.validation.yaml.yaml_rules import Position, TextFinding, text_finding

MAX_VALUES = 10_000_000
# Each broken document costs a restart of the parser. A file with more of them is the wrong file.
MAX_BROKEN = 50

_FORBIDDEN = re.compile(
    "[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_SEPARATOR = re.compile("(?:^|(?<=[\r\n]))---(?=[ \t\r\n]|$)")
# Limits of a stream of many documents. Each document has the bounds above.
_LIMITS = Limits(size=32 * 1024 * 1024, depth=2 * MAX_DEPTH, nodes=MAX_VALUES, seconds=120)


@dataclass(frozen=True)
class Bounds:
    """Bounds of all documents of a stream together.

    Reading ends with a problem when a bound is exceeded.

    `problems` counts problems of readable documents, such as duplicate keys.
    """

    values: int = MAX_VALUES
    documents: int = MAX_VALUES
    problems: int = MAX_VALUES


class _Exceeded(Broken):
    """The stream holds more than its bounds allow."""


class DecodedText(NamedTuple):
    """The text of a file, empty if its bytes have problems, and these problems."""

    text: str
    problems: list[TextFinding]


class _Separator(NamedTuple):
    """Offset of a separator in the stream, and the index of its line."""

    offset: int
    line: int


def decode(data: bytes) -> DecodedText:
    """Return the text of a file, or the problem of its bytes."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # Positions count from behind a byte order mark, as the text does.
        before = error.object[: error.start].decode("utf-8", errors="replace")
        message = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        remedy = "save the file as UTF-8"
        return DecodedText("", [text_finding(yaml_rules.ENCODING, _end(before), message, remedy)])

    if match := _FORBIDDEN.search(text):
        before = text[: match.start()]
        message = f"control character U+{ord(match[0]):04X}"
        remedy = 'remove it, or write it as an escape in a text in "double quotes"'
        return DecodedText("", [text_finding(yaml_rules.CHARACTER, _end(before), message, remedy)])
    return DecodedText(text, [])


def documents(text: str, bounds: Bounds = Bounds()) -> Iterator[Document | TextFinding]:
    """Yield the documents of a stream, and a problem for each one that cannot be read.

    Documents that are empty or contain only comments are skipped. The parser cannot continue after
    a problem, so parsing begins again at the next separator.
    """
    tally = _Tally(bounds)
    begin = _Separator(0, 0)
    last = None
    for _ in range(MAX_BROKEN):
        try:
            yield from _parse(text[begin.offset :], begin.line, tally)
        except _Exceeded as exceeded:
            yield exceeded.problem
            return
        except Broken as broken:
            # A problem that is found again from another separator is the same one.
            if broken.problem != last:
                yield broken.problem
            last = broken.problem
        else:
            return

        separator = _next_separator(text, begin, last.place.line)
        if separator is None:
            return
        begin = separator

    position = Position(begin.line + 1, 1)
    message = f"{MAX_BROKEN} documents before this one cannot be read"
    remedy = "correct them; the rest was not checked"
    yield text_finding(yaml_rules.SYNTAX, position, message, remedy)


def _next_separator(text: str, before: _Separator, broken: int) -> _Separator | None:
    """Return the next separator, None if there is none.

    The broken line may hold the separator itself, because the parser notices a bracket that does
    not close only there.

    :param text: text of the stream
    :param before: the separator before the broken document
    :param broken: the line that cannot be read, counted from 1
    """
    offset = before.offset
    index = before.line
    for match in _SEPARATOR.finditer(text, before.offset):
        # Count without a list, because a list of two million line breaks would take 16 MiB.
        index += sum(1 for _ in LINE_BREAK.finditer(text, offset, match.start()))
        offset = match.start()
        if offset > before.offset and index + 1 >= broken:
            return _Separator(offset, index)
    return None


class _Tally:
    """Count the content of all parts of a stream. Each broken document starts another part."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        # Values that aliases refer to count only in their own part.
        self.limits = replace(_LIMITS, nodes=bounds.values)
        self._values = self._documents = self._problems = 0

    def count(self, event: yaml.Event, position: Position) -> None:
        """Count an event. Raises `_Exceeded`."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
        self._values += isinstance(event, _COUNTED)
        if self._documents > self._bounds.documents:
            raise self._exceed(position, f"more than {self._bounds.documents:,} documents")
        if self._values > self._bounds.values:
            raise self.too_many_values(position)

    def count_problems(self, count: int, position: Position) -> None:
        """Count the problems of a document as far as it is read. Raises `_Exceeded`."""
        if self._problems + count > self._bounds.problems:
            excess = f"more than {self._bounds.problems:,} problems"
            raise self._exceed(position, excess, "correct them first")

    def end_document(self, problems: int) -> None:
        """Keep the count of a document that was read to its end."""
        self._problems += problems

    def too_many_values(self, position: Position) -> _Exceeded:
        """Return the error for values beyond the bound."""
        excess = f"more than {self._bounds.values:,} values, with YAML aliases written out"
        return self._exceed(position, excess)

    def _exceed(self, position: Position, excess: str, remedy: str = "split the file") -> _Exceeded:
        problem = f"the file has {excess}"
        return _Exceeded(text_finding(yaml_rules.SYNTAX, position, problem, remedy))


_COUNTED = (yaml.ScalarEvent, yaml.CollectionStartEvent, yaml.AliasEvent, yaml.DocumentStartEvent)


def _parse(text: str, first_line: int, tally: _Tally) -> Iterator[Document]:
    """Yield the documents of a text that begins at a line of the stream. Raises `Broken`."""
    builder = Builder(first_line)
    try:
        for event in events(text, tally.limits):
            tally.count(event, builder.position(event))
            document = builder.take(event)
            if document is None:
                tally.count_problems(len(builder.problems), builder.position(event))
            else:
                tally.end_document(len(document.problems))
            # An empty document and a null document have no object.
            if document is not None and (document.value is not None or document.problems):
                yield document

    except yaml.MarkedYAMLError as error:
        raise Broken(syntax_finding(error, text, first_line)) from error
    except TextError as error:
        position = Position(first_line + (error.line or 1), error.column or 1)
        if isinstance(error, TooManyValues):
            raise tally.too_many_values(position) from error
        rule = yaml_rules.ALIAS if isinstance(error, AliasError) else yaml_rules.SYNTAX
        problem, _, remedy = f"the text {error.problem}".partition(": ")
        raise Broken(text_finding(rule, position, problem, remedy)) from error


def _end(text: str) -> Position:
    line = 1
    start = 0
    for match in LINE_BREAK.finditer(text):
        line += 1
        start = match.end()
    return Position(line, len(text) - start + 1)
