"""Validate objects by JSON Schemas, and word all errors as Kubernetes does.

Two validators share the work. Most objects are valid, and jsonschema-rs confirms that in
microseconds. Only invalid objects pass through jsonschema, which explains errors but is a hundred
times slower.

All references are resolved among the files of `schemas/` and never over a network. The keywords
`x-caphv-versions` and `x-caphv-form` are explained in `schemas/definitions.json`.
"""

import copy
import json
import re
from collections.abc import Iterator
from functools import cache, reduce
from itertools import islice
from operator import getitem
from typing import Any, NamedTuple
from urllib.parse import urljoin

import jsonschema_rs
from jsonschema import Draft202012Validator, ValidationError, validators
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from caphv import data
from caphv.api.object import Obj, at, list_at
from caphv.validation.finding import Fault, FieldPath, Finding, did_you_mean, in_order

# Keyword that describes a pattern in words.
_FORM = "x-caphv-form"
# Base URL for references among the files. Both libraries can join paths to this scheme.
_BASE = "file:///schemas/"
# Keywords that apply other schemas to the same value. Only `unevaluatedProperties` respects the
# properties of these schemas.
_IN_PLACE = frozenset(
    {
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "then",
        "else",
        "dependentSchemas",
        "patternProperties",
    }
)
_CLOSING = frozenset({"additionalProperties", "unevaluatedProperties"})
_SCHEMA_MAPS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = (
    "items",
    "additionalProperties",
    "not",
    "if",
    "then",
    "else",
    "contains",
    "propertyNames",
)
# Below these keywords, properties belong to an object that is closed at a higher level.
_PARTIAL = frozenset({"allOf", "anyOf", "oneOf", "if", "then", "else", "not", "dependentSchemas"})

_FAULTS = {
    "type": Fault.WRONG_TYPE,
    "required": Fault.REQUIRED,
    "dependentRequired": Fault.REQUIRED,
    "enum": Fault.UNSUPPORTED,
    "const": Fault.UNSUPPORTED,
    "maxLength": Fault.TOO_LONG,
    "maxItems": Fault.TOO_MANY,
    "maxProperties": Fault.TOO_MANY,
    "uniqueItems": Fault.DUPLICATE,
    "additionalProperties": Fault.UNKNOWN,
    "unevaluatedProperties": Fault.UNKNOWN,
}

_TEXTS = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be greater than {}",
    "exclusiveMaximum": "must be less than {}",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
    "minProperties": "must have at least {} fields",
    "maxProperties": "must have at most {} fields",
    "uniqueItems": "must not have the same item twice",
}


# Further errors are not reported, because each costs time, and no user reads a thousand.
_MAX_ERRORS = 1000


def _match_pattern(
    _validator: Any, pattern: str, instance: Any, schema: Any
) -> Iterator[ValidationError]:
    """Match a pattern as the API server does, where `$` does not match before a final line feed."""
    if not isinstance(instance, str):
        return
    # Another keyword refuses a text that is too long, and searching it may take long.
    if len(instance) > schema.get("maxLength", len(instance)):
        return
    if not _compile(pattern).search(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    def replace_end(match: re.Match[str]) -> str:
        return r"\Z" if match[0] == "$" else match[0]

    return re.compile(_END.sub(replace_end, pattern))


# An escaped character, a class of characters, or the end of the text.
_END = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|\$", re.DOTALL)
ExplainingValidator = validators.extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {"pattern": _match_pattern}
)


class _Validators(NamedTuple):
    """The fast validator, which only tells whether an object is valid, and the explaining one."""

    fast: Any
    explaining: Any


class Schema:
    """One file of `schemas/`, loaded by `load`."""

    def __init__(self, file: str) -> None:
        self._file = file
        _sources()[file]

    def example(self) -> Obj:
        """Return a copy of the first example in the file, which is a valid object."""
        return copy.deepcopy(_sources()[self._file]["examples"][0])

    def findings(
        self,
        obj: Any,
        *,
        version: str | None = None,
        unknown_fields: bool = True,
        root: FieldPath = (),
    ) -> list[Finding]:
        """Return all findings about an object, in order of fields.

        :param obj: the object, of any shape
        :param version: API version of the object, if versions differ
        :param unknown_fields: whether fields that the schema does not know are findings, as with
            `kubectl --validate=strict`; objects without any described property, such as
            `metadata`, stay open
        :param root: prefix of each path
        """
        compiled = _validators(self._file, version, unknown_fields)
        if compiled.fast.is_valid(obj):
            return []

        findings: list[Finding] = []
        for error in islice(compiled.explaining.iter_errors(obj), _MAX_ERRORS):
            findings += _error_findings(error, root)
        if not findings:
            # If the validators disagree, refuse the object, because it is too unusual.
            detail = (
                "does not have the form that the schema describes: compare it with the reference"
            )
            return [Finding(root, Fault.INVALID, detail, "schema-disagreement")]
        return in_order(findings)


@cache
def load(file: str) -> Schema:
    """Return the schema in `schemas/<file>`. Raises `KeyError` if there is no such file."""
    return Schema(file)


@cache
def _sources() -> dict[str, Obj]:
    sources = {}
    for path in sorted(data.folder("schemas").glob("*.json")):
        sources[path.name] = json.loads(path.read_text("utf-8"))  # noqa: TID251 - our own files
    return sources


@cache
def _validators(file: str, version: str | None, closed: bool) -> _Validators:
    """Return the validators of a file, with references among all files."""
    schemas = {}
    for name, source in _sources().items():
        prepared = _prepare(source, version, closed=closed)
        schemas[name] = {**_with_absolute_refs(prepared, _BASE + name), "$id": _BASE + name}

    registry = jsonschema_rs.Registry([(_BASE + name, schema) for name, schema in schemas.items()])
    fast = jsonschema_rs.Draft202012Validator(schemas[file], registry=registry)

    @cache
    def target(reference: str) -> Any:
        name, _, pointer = reference.removeprefix(_BASE).partition("#")
        return reduce(getitem, filter(None, pointer.split("/")), schemas[name])

    def follow(
        validator: Any, reference: str, instance: Any, _schema: Any
    ) -> Iterator[ValidationError]:
        yield from validator.descend(instance, target(reference))

    # The library would resolve a reference each time, which takes as long as everything else.
    following = validators.extend(  # type: ignore[no-untyped-call]
        ExplainingValidator, {"$ref": follow}
    )
    python_registry: Registry[Any] = Registry().with_resources(
        (_BASE + name, DRAFT202012.create_resource(schema)) for name, schema in schemas.items()
    )
    return _Validators(fast, following(schemas[file], registry=python_registry))


def _with_absolute_refs(node: Any, base: str) -> Any:
    """Return a copy of a schema whose references mean the same everywhere."""
    if isinstance(node, list):
        return [_with_absolute_refs(child, base) for child in node]
    if not isinstance(node, dict):
        return node

    copied = {}
    for key, child in node.items():
        if key == "$ref" and isinstance(child, str):
            copied[key] = urljoin(base, child)
        else:
            copied[key] = _with_absolute_refs(child, base)
    return copied


def _prepare(node: Obj, version: str | None, *, closed: bool) -> Obj:
    """Return a copy of a schema for one version of the API.

    If `closed`, the copy does not allow unknown fields.
    """
    patch = node.get("x-caphv-versions", {}).get(version, {})
    schema = {key: value for key, value in (node | patch).items() if value is not None}

    # Prepare the schemas below, which are values of a mapping, items of a list, or single values.
    for key in _SCHEMA_MAPS:
        if key in schema:
            is_closed = closed and key not in _PARTIAL
            schema[key] = {
                name: _prepare_child(child, version, closed=is_closed)
                for name, child in schema[key].items()
            }
    for key in _SCHEMA_LISTS:
        if key in schema:
            is_closed = closed and key not in _PARTIAL
            schema[key] = [
                _prepare_child(child, version, closed=is_closed) for child in schema[key]
            ]
    for key in _SCHEMAS:
        if isinstance(schema.get(key), dict):
            schema[key] = _prepare(schema[key], version, closed=closed and key not in _PARTIAL)

    is_open = "properties" in schema and not _CLOSING & schema.keys()
    if closed and is_open:
        keyword = "additionalProperties"
        if _IN_PLACE & schema.keys():
            keyword = "unevaluatedProperties"
        schema[keyword] = False
    return schema


def _prepare_child(node: Any, version: str | None, *, closed: bool) -> Any:
    return _prepare(node, version, closed=closed) if isinstance(node, dict) else node


def _error_findings(error: Any, root: FieldPath) -> Iterator[Finding]:
    """Yield the findings for one error of jsonschema."""
    keyword = str(error.validator)
    path = (*root, *error.absolute_path)
    if keyword == "type" and "enum" in error.schema:
        return  # the finding of the other keyword names the values that are allowed
    fault = _FAULTS.get(keyword, Fault.INVALID)
    rule = f"schema-{keyword}"

    if keyword == "required":
        for name in error.validator_value:
            if name not in error.instance:
                example = _example(at(error.schema, "properties", name))
                yield Finding((*path, name), fault, "must be set" + example, rule)
        return

    if fault is Fault.UNKNOWN:
        names = error.schema.get("properties", {})
        for name in _unknown(error):
            suggestion = did_you_mean(name, names) or ": correct its name or remove it"
            yield Finding((*path, name), fault, f"there is no such field{suggestion}", rule)
        return

    # Do not show a value that may be a secret.
    value = None if error.schema.get("writeOnly") else error.instance
    yield Finding(path, fault, _detail(error, keyword), rule, value)


def _unknown(error: Any) -> list[str]:
    """Return the unknown fields that an error reports."""
    properties = error.schema.get("properties", {})
    names = [name for name in error.instance if name not in properties]
    if error.validator != "additionalProperties":
        # Only the message tells which of them are unknown to the schemas applied in place.
        names = [name for name in names if repr(name) in error.message]
    return sorted(names)


def _detail(error: Any, keyword: str) -> str:
    """Return the requirement of a keyword, with an example if that helps."""
    text = _requirement(error, keyword)
    if keyword in ("type", "pattern", "minLength", "anyOf"):
        text += _example(error.schema)
    return text


def _requirement(error: Any, keyword: str) -> str:
    limit = error.validator_value
    if keyword in ("minLength", "minItems", "minProperties") and limit == 1:
        return "must not be empty"
    if types := _types(keyword, limit):
        return f"must be of type {_either(types)}"

    if keyword in ("enum", "const"):
        choices = limit if keyword == "enum" else [limit]
        return f"must be {_either([json.dumps(choice) for choice in choices])}"
    if keyword == "pattern" and _FORM in error.schema:
        return f"must be {error.schema[_FORM]}"
    if keyword == "dependentRequired":
        missing: set[str] = set()
        for name, needed in limit.items():
            if name in error.instance:
                missing.update(needed)
        return f"needs {_either(sorted(missing - error.instance.keys()), 'and')} as well"

    template = _TEXTS.get(keyword, "does not have the form that the schema describes")
    return template.format(limit)


def _types(keyword: str, limit: Any) -> list[str]:
    """Return the types that a keyword allows, none if it does not restrict the type."""
    if keyword == "type":
        return limit if isinstance(limit, list) else [limit]
    if keyword in ("anyOf", "oneOf"):
        types = [choice.get("type") for choice in limit]
        return types if all(isinstance(choice, str) for choice in types) else []
    return []


def _example(schema: Any) -> str:
    """Return the first example that fits into a sentence, empty for none."""
    for example in list_at(schema, "examples"):
        if not isinstance(example, dict | list):
            return f", for example {json.dumps(example, ensure_ascii=False)}"
    return ""


def _either(words: list[str], word: str = "or") -> str:
    """Return `a, b or c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {word} {words[-1]}"
