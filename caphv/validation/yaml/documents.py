"""Reads a stream of YAML or JSON documents, as far as it can be read, and names what cannot by line.

Built on the parser's events, so that time, memory and depth are bounded for any text: nothing recurses and an alias is
never copied. A broken document ends at the next line `---`, where reading continues.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml

from caphv.runtime.text import AliasError, Limits, TextError, events
from caphv.validation.yaml import yaml11, yaml_rules
from caphv.validation.yaml.tree import Document, Node
from caphv.validation.yaml.yaml_rules import Position, TextFinding, text_finding

MOST_VALUES = 10_000_000
MOST_ALIASED = 100_000
DEEPEST = 100
# Each one costs a new start of the parser; who has more has given the wrong file.
MOST_BROKEN = 50

# The line breaks of the YAML parser, by which it counts lines.
LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_FORBIDDEN = re.compile("[^\t\n\r -~\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_SEPARATOR = re.compile("(?:^|(?<=[\r\n]))---(?=[ \t\r\n]|$)")
_TAGS = "tag:yaml.org,2002:"
# Of a stream of many documents, each of which has the bounds above.
_LIMITS = Limits(size=32 * 1024 * 1024, depth=2 * DEEPEST, nodes=MOST_VALUES, seconds=120)


class _Broken(Exception):
    def __init__(self, problem: TextFinding) -> None:
        super().__init__(problem.finding.detail)
        self.problem = problem


def decoded(data: bytes) -> tuple[str, list[TextFinding]]:
    """Return the text of a file and what is wrong with its bytes; the text is empty when anything is."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", errors="replace")
        message = f"byte 0x{data[error.start]:02x} is not UTF-8"
        return "", [text_finding(yaml_rules.ENCODING, _end(before), message, "save the file as UTF-8")]
    if found := _FORBIDDEN.search(text):
        message = f"control character U+{ord(found[0]):04X}"
        remedy = 'remove it, or write it as an escape in a text in "double quotes"'
        return "", [text_finding(yaml_rules.CHARACTER, _end(text[: found.start()]), message, remedy)]
    return text, []


def documents(text: str, most_values: int = MOST_VALUES) -> Iterator[Document | TextFinding]:
    """Yield the documents of a stream; for one that cannot be read, yield why not.

    Documents that are empty or contain only comments are skipped. `most_values` bounds the values of the stream.
    """
    limits = replace(_LIMITS, nodes=most_values)
    start, line, last = 0, 0, None
    for _ in range(MOST_BROKEN):
        try:
            yield from _parsed(text[start:], line, limits)
        except _Broken as broken:
            if broken.problem != last:
                yield broken.problem
            last = broken.problem
        else:
            return
        following = _next_separator(text, start, line, last.place.line)
        if following is None:
            return
        start, line = following
    message = f"{MOST_BROKEN} documents before this one cannot be read"
    yield text_finding(yaml_rules.SYNTAX, Position(line + 1, 1), message, "correct them; the rest was not checked")


def _next_separator(text: str, start: int, line: int, broken: int) -> tuple[int, int] | None:
    """Offset and line index of the first separator after the one at `start`, from the line that is broken on.

    That line may hold the separator itself: a bracket that does not close is noticed only there.
    """
    at, index = start, line
    for match in _SEPARATOR.finditer(text, start):
        index += len(LINE_BREAK.findall(text, at, match.start()))
        at = match.start()
        if at > start and index + 1 >= broken:
            return at, index
    return None


def _parsed(text: str, first_line: int, limits: Limits) -> Iterator[Document]:
    builder = _Builder(first_line)
    try:
        for event in events(text, limits):
            document = builder.take(event)
            # JSON and YAML make the same of nothing and of null: there is no object.
            if document is not None and (document.value is not None or document.problems):
                yield document
    except yaml.MarkedYAMLError as error:
        raise _Broken(_syntax(error, text, first_line)) from error
    except TextError as error:
        at = Position(first_line + (error.line or 1), error.column or 1)
        rule = yaml_rules.ALIAS if isinstance(error, AliasError) else yaml_rules.SYNTAX
        problem, _, remedy = f"the text {error.problem}".partition(": ")
        raise _Broken(text_finding(rule, at, problem, remedy)) from error


class _Builder:
    """Makes nodes of events."""

    def __init__(self, first_line: int) -> None:
        self._first_line = first_line
        self._forget()

    def _forget(self) -> None:
        self._open: list[_Mapping | _Sequence] = []
        self._anchors: dict[str, Node] = {}
        self._root: Node | None = None
        self._aliased = 0
        self._problems: list[TextFinding] = []

    def take(self, event: yaml.Event) -> Document | None:
        """Take the next event; return a document that ends with it."""
        if isinstance(event, yaml.ScalarEvent):
            self._put(self._scalar(event))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._start(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end()
        elif isinstance(event, yaml.AliasEvent):
            self._put(self._alias(event))
        elif isinstance(event, yaml.DocumentEndEvent) and self._root:
            document = Document(self._root, self._problems)
            self._forget()
            return document
        return None

    def _position(self, event: Any) -> Position:
        return Position(self._first_line + event.start_mark.line + 1, event.start_mark.column + 1)

    def _start(self, event: Any) -> None:
        position = self._position(event)
        if len(self._open) >= DEEPEST:
            message = f"more than {DEEPEST} mappings and lists inside one another"
            raise _Broken(text_finding(yaml_rules.DEPTH, position, message, "an object of Kubernetes is far less deep"))
        mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", f"{_TAGS}map" if mapping else f"{_TAGS}seq"):
            raise _Broken(_tag(position, event.tag))
        collection = _Mapping if mapping else _Sequence
        self._open.append(collection(position, event.anchor, self._problems))

    def _end(self) -> None:
        done = self._open.pop()
        node = done.closed()
        if done.anchor:
            self._anchors[done.anchor] = node
        self._put(node)

    def _scalar(self, event: Any) -> Node:
        position = self._position(event)
        text: str = event.value
        node = Node(position, text)
        # A tag of a type that says no more than the text does, and no tag at all, leave plain text to be resolved.
        if (event.tag is None and event.implicit[0]) or event.tag in _RESOLVED_TAGS:
            node.plain = text
            try:
                node.value = yaml11.resolved(text)
            except ValueError as error:
                self._problems.append(
                    text_finding(yaml_rules.NUMBER, position, str(error), "write a number, or quote the text")
                )
            if yaml11.looks_octal(text) and isinstance(node.value, int):
                message = f"{text} is read as the octal number {node.value}"
                remedy = f'write {text.lstrip("0")}, or "{text}" if text is meant'
                self._problems.append(text_finding(yaml_rules.OCTAL, position, message, remedy))
        elif event.tag not in _TEXT_TAGS:
            raise _Broken(_tag(position, event.tag))
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: Any) -> Node:
        position = self._position(event)
        if event.anchor not in self._anchors:
            message = f"alias *{event.anchor} names no anchor"
            raise _Broken(
                text_finding(
                    yaml_rules.ALIAS, position, message, f"write &{event.anchor} before the value it stands for"
                )
            )
        node = self._anchors[event.anchor]
        self._aliased += node.size
        if self._aliased > MOST_ALIASED:
            message = f"aliases stand for more than {MOST_ALIASED:,} values"
            raise _Broken(
                text_finding(yaml_rules.ALIAS, position, message, "write the values out, in several documents")
            )
        return node

    def _put(self, node: Node) -> None:
        if self._open:
            self._open[-1].put(node)
        else:
            self._root = node


_RESOLVED_TAGS = frozenset(_TAGS + name for name in ("null", "bool", "int", "float"))
_TEXT_TAGS = frozenset({None, "!", *(_TAGS + name for name in ("str", "binary", "timestamp"))})


class _Sequence:
    """A list whose end is still to come."""

    def __init__(self, position: Position, anchor: str | None, _problems: list[TextFinding]) -> None:
        self.anchor = anchor
        self._position = position
        self._items: list[Node] = []

    def put(self, node: Node) -> None:
        self._items.append(node)

    def closed(self) -> Node:
        node = Node(self._position, [item.value for item in self._items])
        node.children = self._items
        node.size += sum(item.size for item in self._items)
        return node


class _Mapping:
    """A mapping whose end is still to come."""

    def __init__(self, position: Position, anchor: str | None, problems: list[TextFinding]) -> None:
        self.anchor = anchor
        self._position = position
        self._problems = problems
        self._items: dict[str, Node] = {}
        self._keys: dict[str, Position] = {}
        self._merged: list[Node] = []
        self._key: Node | None = None

    def put(self, node: Node) -> None:
        if self._key is None:
            self._key = node
            return
        key, self._key = self._key, None
        if key.plain == "<<":
            self._merge(key, node)
        else:
            self._set(self._name(key), key.position, node)

    def closed(self) -> Node:
        # What is written in the mapping itself wins over what is merged, and what is merged first over the rest.
        for merged in self._merged:
            if isinstance(merged.children, dict):
                for name, child in merged.children.items():
                    self._items.setdefault(name, child)
                    self._keys.setdefault(name, merged.keys[name])
        node = Node(self._position, {name: item.value for name, item in self._items.items()})
        node.children, node.keys = self._items, self._keys
        node.size += sum(item.size for item in self._items.values())
        return node

    def _set(self, name: str, position: Position, node: Node) -> None:
        if name in self._keys:
            message = f"key {_quoted(name)} is already in this mapping, at line {self._keys[name].line}"
            self._problems.append(text_finding(yaml_rules.DUPLICATE_KEY, position, message, "keep one of them"))
        self._items[name] = node
        self._keys[name] = position

    def _name(self, key: Node) -> str:
        if isinstance(key.value, str):
            return key.value
        if key.children is not None or key.value is None:
            message = "a key that is not text" if key.children is not None else "an empty key"
            raise _Broken(text_finding(yaml_rules.KEY, key.position, message, "write a plain word before the colon"))
        # As kubectl writes them when it makes JSON of YAML.
        name = str(key.value).lower() if isinstance(key.value, bool) else str(key.value)
        if name != key.plain:
            message = f"key {key.plain} is read as {name}"
            self._problems.append(
                text_finding(yaml_rules.KEY, key.position, message, f'write "{key.plain}": with quotes')
            )
        return name

    def _merge(self, key: Node, node: Node) -> None:
        several = node.children if isinstance(node.children, list) else [node]
        if not all(isinstance(one.children, dict) for one in several):
            raise _Broken(
                text_finding(yaml_rules.KEY, key.position, "<< merges mappings only", "give it an alias of a mapping")
            )
        self._merged += several


def _tag(position: Position, tag: str) -> TextFinding:
    return text_finding(
        yaml_rules.TAG, position, f"tag {tag} has no meaning in an object of Kubernetes", "remove the tag"
    )


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w./-]{1,80}", name) else repr(name[:80])


def _end(text: str) -> Position:
    lines = LINE_BREAK.split(text)
    return Position(len(lines), len(lines[-1]) + 1)


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


def _syntax(error: yaml.MarkedYAMLError, text: str, first_line: int) -> TextFinding:
    mark: Any = error.problem_mark or error.context_mark
    position = Position(first_line + mark.line + 1, mark.column + 1)
    lines = LINE_BREAK.split(text)
    line = lines[mark.line] if mark.line < len(lines) else ""
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation:
        at = Position(position.line, indentation.index("\t") + 1)
        return text_finding(yaml_rules.TAB, at, "a tab in the indentation", "indent with spaces")
    problem = str(error.problem or "cannot be read")
    began: Any = error.context_mark
    since = f" (it begins at line {first_line + began.line + 1})" if began and began.line != mark.line else ""
    for pattern, message, remedy in _PARSER_MESSAGES:
        if pattern in problem:
            return text_finding(yaml_rules.SYNTAX, position, message + since, remedy)
    return text_finding(yaml_rules.SYNTAX, position, f"{problem}{since}", "correct the text here or right before it")
