"""Templates that produce data, so that no value ever passes through the text of a document.

A template is YAML with Jinja2. Each `{{ expression }}` leaves a hole in the text and puts its value
aside. The text is parsed as YAML, and only then do the values fill the holes. So a value stays one
value, whatever characters it holds, and an object or list keeps its type. The text is the same for
all clusters that take the same branches, so it is parsed once.

Templates run in Jinja2's sandbox, and a name that is not defined fails. Time and memory of a
rendering are bounded, so that a wrong or hostile template stops its own cluster only.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.bccache import Bucket
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from caphv.runtime.text import Limits, load_yaml_all
from packager.rendering import yaml as yamltext
from packager.tree import path_of

SUFFIX = ".j2"
_HOLES = "_holes"
_HOLE = re.compile("\ue000([0-9]+)\ue001")
_BUDGET = "_budget"
_MAX_SHAPES = 4096
_MAX_PROGRAMS = 1024
# A bundle has some hundred lines, and the largest shipped bundle goes through some dozen items.
_MAX_ITERATIONS = 100_000
_MAX_TEXT_LENGTH = 4 * 1024 * 1024
_LIMITS = Limits(size=_MAX_TEXT_LENGTH, nodes=1_000_000)
# Filters that can turn a short text into one of any length.
_GROWING_FILTERS = ("center", "format", "indent", "wordwrap")


class TemplateError(Exception):
    """A template cannot be read or rendered; `file` is its path in the folder of templates."""

    def __init__(self, file: str, message: str) -> None:
        super().__init__(f"{file}: {message}")
        self.file = file
        self.message = message


class Templates:
    """The templates of one version, with a user's folder over them; read and compiled once.

    A folder holds bundles, a bundle holds files `<name>.yaml.j2`. A file of the user's folder
    replaces the one of the same path, and its further bundles and files are added.
    """

    def __init__(self, folders: list[Path]) -> None:
        """Read all files.

        Raises `TemplateError` if a name cannot be part of a path or a template is not Jinja2, and
        `FileNotFoundError` if a folder does not exist.
        """
        files = template_files(folders)
        self.fingerprint = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
        self._environment = _environment(files)
        self._files = files
        self._compiled: dict[str, jinja2.Template] = {}
        self.bundles: dict[str, list[str]] = {}
        for file in sorted(files):
            bundle, _, name = file.partition("/")
            try:
                self._compiled[file] = self._environment.get_template(file)
            except jinja2.TemplateSyntaxError as error:
                raise TemplateError(file, f"line {error.lineno}: {error.message}") from None
            self.bundles.setdefault(bundle, []).append(name)
        self._shapes: OrderedDict[str, list[Any]] = OrderedDict()

    @functools.cached_property
    def syntax_trees(self) -> dict[str, nodes.Template]:
        """The syntax tree of each template, by its path."""
        return {file: _parse(text) for file, text in self._files.items()}

    def render(self, file: str, context: Mapping[str, Any]) -> list[Any]:
        """Return the documents of `<bundle>/<name>.yaml.j2`, without empty ones.

        Raises `TemplateError` if a name is not defined, the sandbox refuses, or the result is not
        YAML.
        """
        holes: list[Any] = []
        names = {_HOLES: holes, _BUDGET: [_MAX_ITERATIONS]}
        try:
            text = _join(self._compiled[file].generate(context, **names))
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            ArithmeticError,
            LookupError,
            RecursionError,
        ) as error:
            raise TemplateError(file, f"{_line(error, file)}{error}") from None
        except AttributeError as error:
            raise TemplateError(file, str(error)) from None

        try:
            documents = self._shape(text)
            return [_fill(document, holes) for document in documents if document is not None]
        except (ValueError, TypeError) as error:
            raise TemplateError(file, f"makes no YAML: {_without_holes(str(error))}") from None

    def _shape(self, text: str) -> list[Any]:
        """Return the parsed text, with holes; callers do not change it."""
        shape = self._shapes.get(text)
        if shape is None:
            shape = self._shapes[text] = load_yaml_all(text, _LIMITS)
            if len(self._shapes) > _MAX_SHAPES:
                self._shapes.popitem(last=False)
        return shape


class _Programs(jinja2.BytecodeCache):
    """Compiled templates of this process, shared because most renderers read the shipped ones."""

    def __init__(self) -> None:
        self._programs: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        """Load code that was compiled from the same text."""
        bucket.code = self._programs.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep compiled code."""
        if len(self._programs) >= _MAX_PROGRAMS:
            self._programs.clear()
        if bucket.code is not None:
            self._programs[bucket.key, bucket.checksum] = bucket.code


_programs = _Programs()
_COUNTED = "_counted"


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox with bounds, and with a fast path for fields of settings."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Refuse operations that turn small values into a large one."""
        if operator != "**" and isinstance(left, int | float) and isinstance(right, int | float):
            return super().call_binop(context, operator, left, right)
        raise SecurityError(f"{operator} is for numbers only, and ** is not available")

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        # Jinja2's sandbox does not bound loops, so our filter counts the items of each loop.
        for loop in source.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _COUNTED, [], [], None, None)
        source.set_environment(self)
        return super()._generate(source, name, filename, defer_init)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if is_dataclass(obj) and not attr.startswith("_") and not callable(value):
            return True
        return super().is_safe_attribute(obj, attr, value)


def check_folder(folder: Path) -> None:
    """Refuse a user's folder in which templates would be overlooked, or that has no templates.

    Raises `FileNotFoundError` if the folder does not exist, and `ValueError` unless its files, at
    least one, are `<bundle>/<name>.yaml.j2`.
    """
    templates = _files(folder)
    remedy = f"a template is <bundle>/<name>.yaml{SUFFIX} in the folder of --templates"
    # A file at another depth would be silently ignored.
    for path in sorted(folder.rglob(f"*{SUFFIX}")):
        if _is_shown(path, folder) and not _is_placed(path, folder):
            raise ValueError(f"{path} would not be read: {remedy}")
    if not any(_is_placed(path, folder) for path in templates):
        raise ValueError(f"{folder} holds no templates: {remedy}")


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        msg = f"{folder} is not a folder with templates"
        raise FileNotFoundError(msg)
    return [path for path in sorted(folder.glob(f"*/*{SUFFIX}")) if _is_shown(path, folder)]


def _is_shown(path: Path, folder: Path) -> bool:
    """Whether a file is outside of hidden folders, which Git and the kubelet create."""
    return not path.relative_to(folder).parts[0].startswith(".")


def _is_placed(path: Path, folder: Path) -> bool:
    return len(path.relative_to(folder).parts) == 2 and path.name.endswith(f".yaml{SUFFIX}")


def template_files(folders: list[Path]) -> dict[str, str]:
    """Return templates by `<bundle>/<name>`; later folders win. Raises as `Templates`."""
    files: dict[str, str] = {}
    for folder in folders:
        for path in _files(folder):
            name = path.relative_to(folder).as_posix()
            try:
                path_of(*name.split("/"))
                # A mounted ConfigMap consists of links that stay in the folder. Any other link
                # could bring a file of this machine into Git.
                if not path.resolve().is_relative_to(folder.resolve()):
                    raise TemplateError(name, "must not be a symbolic link that leaves the folder")
                files[name] = path.read_text(encoding="utf-8")
            except ValueError as error:
                raise TemplateError(name, str(error)) from None
    return files


def _environment(files: dict[str, str]) -> _Sandbox:
    # Values need no escaping, because they never pass through the text.
    environment = _Sandbox(
        loader=jinja2.DictLoader(files),
        undefined=jinja2.StrictUndefined,
        finalize=_leave_hole,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        auto_reload=False,
        bytecode_cache=_programs,
    )

    environment.filters["yaml"] = yamltext.dump
    environment.filters[_COUNTED] = _count_iterations
    for name in _GROWING_FILTERS:
        del environment.filters[name]
    return environment


@jinja2.pass_context
def _count_iterations(context: jinja2.runtime.Context, items: Any) -> list[Any]:
    """Return the items of a loop. Raises `SecurityError` if all loops have too many items."""
    # The budget is a list of one number, which all loops of a rendering share and reduce.
    budget = context[_BUDGET]
    counted = list(itertools.islice(items, budget[0] + 1))
    if len(counted) > budget[0]:
        raise SecurityError(f"loops go through more than {_MAX_ITERATIONS} items")
    budget[0] -= len(counted)
    return counted


def _join(pieces: Iterator[str]) -> str:
    text = []
    length = 0

    for piece in pieces:
        length += len(piece)
        if length > _MAX_TEXT_LENGTH:
            raise SecurityError(f"makes more than {_MAX_TEXT_LENGTH} characters")
        text.append(piece)

    return "".join(text)


@functools.lru_cache(maxsize=_MAX_PROGRAMS)
def _parse(text: str) -> nodes.Template:
    """Parse a template; callers read the tree and do not change it."""
    return _environment({}).parse(text)


@jinja2.pass_context
def _leave_hole(context: jinja2.runtime.Context, value: Any) -> str:
    """Put the value of an expression aside, and return the hole that stands for it in the text."""
    if isinstance(value, jinja2.Undefined):
        str(value)  # a strict one raises, with the name in its message
    # The marks are characters of a private use area, which no template holds by accident.
    holes = context[_HOLES]
    holes.append(value)
    return f"\ue000{len(holes) - 1}\ue001"


def _fill(node: Any, holes: list[Any]) -> Any:
    if isinstance(node, str):
        return _fill_text(node, holes) if "\ue000" in node else node
    if isinstance(node, dict):
        return {_fill_key(key, holes): _fill(value, holes) for key, value in node.items()}
    if isinstance(node, list):
        return [_fill(item, holes) for item in node]
    return node


def _fill_text(text: str, holes: list[Any]) -> Any:
    # A text that is a single hole keeps the type of its value. In any other text, values become
    # parts of the text.
    if hole := _HOLE.fullmatch(text):
        return _plain(holes[int(hole[1])])
    return _HOLE.sub(lambda match: _part(holes[int(match[1])]), text)


def _fill_key(key: Any, holes: list[Any]) -> str:
    filled = _fill(key, holes)
    if not isinstance(filled, str):
        msg = f"a key must be text, not {type(filled).__name__}: quote it"
        raise TypeError(msg)
    return filled


def _part(value: Any) -> str:
    if not isinstance(value, str | int) or isinstance(value, bool):
        msg = f"only text and whole numbers can be part of a text, not {type(value).__name__}"
        raise TypeError(msg)
    return str(value)


def _plain(value: Any) -> Any:
    """Return a value as plain types that YAML knows. Raises `TypeError` for any other value."""
    if value is None or isinstance(value, str | int | float):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    msg = f"an expression must be text, number, boolean, list or object, not {type(value).__name__}"
    raise TypeError(msg)


def _line(error: BaseException, file: str) -> str:
    """Return the line of the template in which rendering failed.

    Jinja2 rewrites the traceback, so that it has the lines of templates.
    """
    number = 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in (file, "<template>"):
            number = trace.tb_lineno
        trace = trace.tb_next
    return f"line {number}: " if number else ""


def _without_holes(text: str) -> str:
    return " ".join(_HOLE.sub("{{ … }}", text).split())
