"""Small changes of Python source, each of which a good test notices: comparisons, branches, numbers, lost statements.

Strings are left alone, as are log lines and progress: no test should pin a sentence.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

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
# Statements that begin so only tell people what happens.
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
    """The change of one place in a file, by offsets in its UTF-8 bytes."""

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
        return " | ".join((self.path, self.function, " ".join(self.before.split()), " ".join(self.after.split())))

    def apply(self, source: bytes) -> bytes:
        """Return the changed source."""
        return source[: self.begin] + self.after.encode() + source[self.end :]


def mutations_of(path: str, source: bytes) -> list[Mutation]:
    """Return all mutations of a file that leave it valid Python, in the order of their places."""
    finder = _Finder(path, source)
    finder.visit(ast.parse(source))
    return sorted(finder.mutations, key=lambda mutation: (mutation.begin, mutation.end, mutation.after))


def read_accepted(text: str) -> dict[str, str]:
    """Return the reasons of accepted mutations by name. A line: path | function | before | after | reason."""
    accepted = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            name, separator, reason = line.rpartition(" | ")
            if name.count(" | ") < 3 or not separator or not reason.strip():
                raise ValueError(f"not `path | function | before | after | reason`: {line}")
            accepted[name.strip()] = reason
    return accepted


def stale(root: Path, accepted: Iterable[str]) -> list[str]:
    """Return the names of accepted mutations that the code no longer has."""
    paths = {name.split(" | ")[0] for name in accepted}
    existing = [path for path in sorted(paths) if (root / path).is_file()]
    names = {mutation.name for path in existing for mutation in mutations_of(path, (root / path).read_bytes())}
    return sorted(set(accepted) - names)


class _Finder(ast.NodeVisitor):
    def __init__(self, path: str, source: bytes) -> None:
        self.mutations: list[Mutation] = []
        self._path, self._source = path, source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._scope: list[str] = []
        self._functions = 0

    def visit(self, node: ast.AST) -> None:
        """Collect the mutations of a node, then those of what it holds, but for annotations."""
        if isinstance(node, ast.Expr) and self._reports(node.value):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in self._text(node.test):
            return
        for begin, end, after in self._changes(node):
            before = self._source[begin:end].decode()
            line = self._source.count(b"\n", 0, begin) + 1
            inside = self._functions > 0
            self.mutations.append(Mutation(self._path, ".".join(self._scope), begin, end, before, after, line, inside))

        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._scope.append(node.name)
        if is_function:
            self._functions += 1
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list", "keywords" if _is_timeout(node) else ""):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.visit(child)
        if is_function:
            self._functions -= 1
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._scope.pop()

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                yield *self._between(left, right), f" {_OPPOSITES[type(operator)]} "
            case ast.BoolOp(op=operator, values=[first, second, *_]):
                words = (" or ", " and ")
                yield *self._between(first, second), words[isinstance(operator, ast.Or)]
                yield *self._span(node), f"({self._text(first)})"
                yield *self._span(node), f"({self._text(node.values[-1])})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield *self._span(node), f"({self._text(operand)})"
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
                if not isinstance(left, ast.JoinedStr) and not isinstance(right, ast.JoinedStr):
                    yield *self._between(left, right), f" {_ARITHMETIC[type(operator)]} "
            case ast.Constant(value=bool(value)):
                yield *self._span(node), str(not value)
            case ast.Constant(value=int(number) | float(number)):
                yield *self._span(node), repr(number + 1 if isinstance(number, int) else number * 2 + 1)
            case ast.IfExp(test=test) | ast.If(test=test):
                yield *self._span(test), "True"
                yield *self._span(test), "False"
            case ast.comprehension(ifs=[_, *_] as tests):
                for test in tests:
                    yield *self._span(test), "True"
            case ast.Await(value=value) if not self._text(value).startswith("asyncio.sleep(0)"):
                yield *self._span(node), f"({self._text(value)})"
            case _:
                yield from self._lost(node)

    def _lost(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        """Yield what takes a statement away."""
        match node:
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield *self._span(node), "pass"
            case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign():
                yield *self._span(node), "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield *self._span(node), "pass"
            case ast.Return(value=ast.expr() as value) if self._text(value) not in ("None", "False"):
                yield *self._span(value), "None"

    def _reports(self, value: ast.expr) -> bool:
        """Whether a statement only tells people what happens."""
        return self._text(value).startswith(_REPORTS)

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        begin = self._lines[node.lineno - 1] + node.col_offset
        return begin, self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _between(self, left: ast.expr, right: ast.expr) -> tuple[int, int]:
        """Return the place of an operator, without the parentheses around its operands."""
        begin, end = self._span(left)[1], self._span(right)[0]
        between = self._source[begin:end]
        begin += len(between) - len(between.lstrip(b") \n"))
        end -= len(between) - len(between.rstrip(b"( \n"))
        # The blanks on both sides are part of what is replaced.
        while self._source[begin - 1 : begin].isspace():
            begin -= 1
        while self._source[end : end + 1].isspace():
            end += 1
        return begin, end

    def _text(self, node: ast.expr) -> str:
        begin, end = self._span(node)
        return self._source[begin:end].decode()


def _is_timeout(node: ast.AST) -> bool:
    """Whether a call has nothing but seconds after which it gives up: no test waits for those."""
    return isinstance(node, ast.Call) and [keyword.arg for keyword in node.keywords] == ["timeout"]
