"""Small changes of Python source, each of which a good test notices.

They change comparisons, branches and numbers, and remove statements. Strings are left alone, as are
log lines and progress: no test should pin a sentence.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_OPPOSITES: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "//",
    ast.FloorDiv: "*",
    ast.Div: "*",
    ast.Mod: "*",
    ast.BitAnd: "|",
}
# Statements with these beginnings only inform people.
_REPORTS = (
    "log.",
    "logging.",
    'echo("',
    'echo(f"',
    'click.echo("',
    'click.echo(f"',
    'out.print("',
    'out.print(f"',
    'step("',
    'step(f"',
)


@dataclass(frozen=True, order=True)
class Mutation:
    """A replacement at one place of a file, by offsets in its UTF-8 bytes."""

    path: str
    function: str
    begin: int
    end: int
    before: str
    after: str
    line: int
    in_function: bool

    @property
    def name(self) -> str:
        """The name in the list of accepted mutations, which survives changes of other lines."""
        before = " ".join(self.before.split())
        after = " ".join(self.after.split())
        return f"{self.path} | {self.function} | {before} | {after}"

    def apply(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.begin] + self.after.encode() + source[self.end :]


def mutations_of(path: str, source: bytes) -> list[Mutation]:
    """Return all mutations of a file that leave it valid Python, in the order of their places."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(
        finder.mutations, key=lambda mutation: (mutation.begin, mutation.end, mutation.after)
    )


def read_accepted(text: str) -> dict[str, str]:
    """Return the reasons of accepted mutations by name.

    A line of the text: path | function | before | after | reason.
    """
    accepted = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            # The reason must not contain the separator, because the code before it may contain it.
            name, separator, reason = line.rpartition(" | ")
            if name.count(" | ") < 3 or not separator or not reason.strip():
                raise ValueError(f"not `path | function | before | after | reason`: {line}")
            accepted[name.strip()] = reason
    return accepted


def stale_names(root: Path, accepted: Iterable[str]) -> list[str]:
    """Return the names of accepted mutations that the code no longer has."""
    paths = {name.split(" | ")[0] for name in accepted}
    existing = [path for path in sorted(paths) if (root / path).is_file()]
    names = {
        mutation.name
        for path in existing
        for mutation in mutations_of(path, (root / path).read_bytes())
    }
    return sorted(set(accepted) - names)


class _Span(NamedTuple):
    """A place in a source, in bytes."""

    begin: int
    end: int


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes) -> None:
        self.mutations: list[Mutation] = []
        self._path = path
        self._source = source
        # The offset of each line in bytes, because ast also counts columns in bytes.
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._scope: list[str] = []
        self._depth = 0

    def visit(self, node: ast.AST) -> None:
        """Collect the mutations of a node and then of its children, except annotations."""
        # A call may continue on the next line after its parenthesis.
        if isinstance(node, ast.Expr) and re.sub(r"\(\s+", "(", self._text(node.value)).startswith(
            _REPORTS
        ):
            return
        # Only type checkers see what is below this.
        if isinstance(node, ast.If) and "TYPE_CHECKING" in self._text(node.test):
            return

        for span, after in self._changes(node):
            self.mutations.append(
                Mutation(
                    path=self._path,
                    function=".".join(self._scope),
                    begin=span.begin,
                    end=span.end,
                    before=self._source[span.begin : span.end].decode(),
                    after=after,
                    line=self._source.count(b"\n", 0, span.begin) + 1,
                    in_function=self._depth > 0,
                )
            )

        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._scope.append(node.name)
                self._depth += 1
                self._visit_children(node)
                self._depth -= 1
                self._scope.pop()
            case ast.ClassDef():
                self._scope.append(node.name)
                self._visit_children(node)
                self._scope.pop()
            case _:
                self._visit_children(node)

    def _visit_children(self, node: ast.AST) -> None:
        skipped = {"annotation", "returns", "decorator_list"}
        if _is_timeout(node):
            skipped.add("keywords")

        for field, value in ast.iter_fields(node):
            if field not in skipped:
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.visit(child)

    def _changes(self, node: ast.AST) -> Iterator[tuple[_Span, str]]:
        """Yield place and new text of each mutation of a node itself."""
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                yield self._between(left, right), f" {_OPPOSITES[type(operator)]} "
            case ast.BoolOp(op=operator, values=[first, second, *_]):
                opposite = " and " if isinstance(operator, ast.Or) else " or "
                yield self._between(first, second), opposite
                yield self._span(node), f"({self._text(first)})"
                yield self._span(node), f"({self._text(node.values[-1])})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._span(node), f"({self._text(operand)})"

            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                # Another operator between strings raises a TypeError, which any test notices.
                if not isinstance(left, ast.JoinedStr) and not isinstance(right, ast.JoinedStr):
                    yield self._between(left, right), f" {_ARITHMETIC[type(operator)]} "

            # This case comes before numbers, because True is also an int.
            case ast.Constant(value=bool(value)):
                yield self._span(node), str(not value)
            case ast.Constant(value=int(number) | float(number)):
                other = number + 1 if isinstance(number, int) else number * 2 + 1
                yield self._span(node), repr(other)

            case ast.IfExp(test=test) | ast.If(test=test):
                yield self._span(test), "True"
                yield self._span(test), "False"
            case ast.comprehension(ifs=[_, *_] as tests):
                for test in tests:
                    yield self._span(test), "True"

            case ast.Await(value=value) if not self._text(value).startswith("asyncio.sleep(0)"):
                yield self._span(node), f"({self._text(value)})"
            case _:
                yield from self._removals(node)

    def _removals(self, node: ast.AST) -> Iterator[tuple[_Span, str]]:
        """Yield the mutations that remove a statement or the value of a `return`."""
        match node:
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield self._span(node), "pass"
            case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign():
                yield self._span(node), "pass"
            # Keep assignments to local names, because any test notices a name that is not assigned.
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield self._span(node), "pass"
            case ast.Return(value=ast.expr() as value):
                if self._text(value) not in ("None", "False"):
                    yield self._span(value), "None"

    def _span(self, node: ast.expr | ast.stmt) -> _Span:
        begin = self._lines[node.lineno - 1] + node.col_offset
        return _Span(begin, self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0))

    def _between(self, left: ast.expr, right: ast.expr) -> _Span:
        """Return the place of an operator, without the parentheses around its operands."""
        begin = self._span(left).end
        end = self._span(right).begin
        between = self._source[begin:end]
        begin += len(between) - len(between.lstrip(b") \n"))
        end -= len(between) - len(between.rstrip(b"( \n"))

        # A mutation also replaces the blanks on both sides of the operator.
        while self._source[begin - 1 : begin].isspace():
            begin -= 1
        while self._source[end : end + 1].isspace():
            end += 1
        return _Span(begin, end)

    def _text(self, node: ast.expr) -> str:
        begin, end = self._span(node)
        return self._source[begin:end].decode()


def _is_timeout(node: ast.AST) -> bool:
    """Return whether the only keyword of a call is a time limit, for which no test waits."""
    return isinstance(node, ast.Call) and [keyword.arg for keyword in node.keywords] == ["timeout"]
