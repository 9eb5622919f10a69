"""Validates objects by JSON Schemas, compiled once. Reports all errors of an object, worded as Kubernetes words them.

Two validators share the work. Most objects are valid, and jsonschema-rs says so in microseconds; only an invalid one
goes through jsonschema, which explains itself a hundred times more slowly.

All references are resolved among the files of `schemas/` and never over a network. The keywords `x-caphv-versions`
and `x-caphv-form` are explained in `schemas/definitions.json`.
"""

import copy
import json
import re
from collections.abc import Iterator
from functools import cache, reduce
from itertools import islice
from operator import getitem
from typing import Any
from urllib.parse import urljoin

import jsonschema_rs
from jsonschema import Draft202012Validator, ValidationError, validators
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from caphv import data
from caphv.api.object import Obj
from caphv.validation.finding import Fault, FieldPath, Finding, did_you_mean, in_order

# Says in words what a pattern wants.
_FORM = "x-caphv-form"
# Where the files seem to be, for references among them: a scheme that both libraries can join paths to.
_BASE = "file:///schemas/"
# Keywords that apply other schemas to the same value: only `unevaluatedProperties` sees through them.
_IN_PLACE = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "patternProperties"}
)
_SCHEMA_MAPS = ("properties", "$defs", "patternProperties", "dependentSchemas")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
# Below these, properties are parts of an object that is closed further up.
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


# No one reads more, and each costs time.
_MOST_ERRORS = 1000


def _pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Evaluate a pattern as the API server does: `$` is the end of the text, and not before a line feed at its end."""
    if isinstance(instance, str) and not _compiled(pattern).search(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(_END.sub(lambda found: found[0] if found[0] != "$" else r"\Z", pattern))


# An escaped character, a class of characters, or the end of the text.
_END = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+\]?|\$", re.DOTALL)
ExplainingValidator = validators.extend(Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call]


class Schema:
    """One file of `schemas/`; get it with `load`."""

    def __init__(self, file: str) -> None:
        self._file = file
        _sources()[file]

    def example(self) -> Obj:
        """Return a copy of the first example of the file, a right object."""
        return copy.deepcopy(_sources()[self._file]["examples"][0])

    def findings(
        self, obj: Any, *, version: str | None = None, unknown_fields: bool = True, root: FieldPath = ()
    ) -> list[Finding]:
        """Return what is wrong with `obj`, all at once, in order of fields; empty for a valid one.

        `version` is the version of the API the object is written in, where versions differ. With `unknown_fields`,
        fields that the schema does not know are findings, as with `kubectl --validate=strict`; objects without any
        described property, such as `metadata`, stay open. `root` is put before each path.
        """
        fast, slow = _validators(self._file, version, unknown_fields)
        if fast.is_valid(obj):
            return []
        errors = islice(slow.iter_errors(obj), _MOST_ERRORS)
        found = in_order(finding for error in errors for finding in _of_error(error, root))
        if not found:
            # Doubt refuses: an object that only one of the two accepts is none that was meant to be accepted.
            detail = "does not have the form that the schema describes: compare it with the reference"
            return [Finding(root, Fault.INVALID, detail, "schema-disagreement")]
        return found


@cache
def load(file: str) -> Schema:
    """Return the schema in `schemas/<file>`. Raises KeyError when there is no such file."""
    return Schema(file)


@cache
def _sources() -> dict[str, Obj]:
    folder = data.folder("schemas")
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}  # noqa: TID251 - our own files


@cache
def _validators(file: str, version: str | None, closed: bool) -> tuple[Any, Any]:
    schemas = {
        name: {**_absolute(_prepared(schema, version, closed=closed), _BASE + name), "$id": _BASE + name}
        for name, schema in _sources().items()
    }

    @cache
    def target(reference: str) -> Any:
        name, _, pointer = reference.removeprefix(_BASE).partition("#")
        return reduce(getitem, filter(None, pointer.split("/")), schemas[name])

    def follow(validator: Any, reference: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
        yield from validator.descend(instance, target(reference))

    rust = jsonschema_rs.Registry([(_BASE + name, schema) for name, schema in schemas.items()])
    python: Registry[Any] = Registry().with_resources(
        (_BASE + name, DRAFT202012.create_resource(schema)) for name, schema in schemas.items()
    )
    fast = jsonschema_rs.Draft202012Validator(schemas[file], registry=rust)
    # To resolve each reference again takes as long as the rest.
    explaining = validators.extend(ExplainingValidator, {"$ref": follow})  # type: ignore[no-untyped-call]
    return fast, explaining(schemas[file], registry=python)


def _absolute(node: Any, base: str) -> Any:
    """Return a copy of a schema whose references mean the same everywhere."""
    if isinstance(node, list):
        return [_absolute(child, base) for child in node]
    if not isinstance(node, dict):
        return node
    return {
        key: urljoin(base, child) if key == "$ref" and isinstance(child, str) else _absolute(child, base)
        for key, child in node.items()
    }


def _prepared(node: Obj, version: str | None, *, closed: bool) -> Obj:
    """Return a copy of a schema as one version of the API has it, and with no room for unknown fields if `closed`."""
    patch = node.get("x-caphv-versions", {}).get(version, {})
    found = {key: value for key, value in (node | patch).items() if value is not None}
    for key in _SCHEMA_MAPS:
        if key in found:
            inner = closed and key not in _PARTIAL
            found[key] = {name: _child(child, version, closed=inner) for name, child in found[key].items()}
    for key in _SCHEMA_LISTS:
        if key in found:
            inner = closed and key not in _PARTIAL
            found[key] = [_child(child, version, closed=inner) for child in found[key]]
    for key in _SCHEMAS:
        if isinstance(found.get(key), dict):
            found[key] = _child(found[key], version, closed=closed and key not in _PARTIAL)
    if closed and "properties" in found and not {"additionalProperties", "unevaluatedProperties"} & found.keys():
        found["unevaluatedProperties" if _IN_PLACE & found.keys() else "additionalProperties"] = False
    return found


def _child(node: Any, version: str | None, *, closed: bool) -> Any:
    return _prepared(node, version, closed=closed) if isinstance(node, dict) else node


def _of_error(error: Any, root: FieldPath) -> Iterator[Finding]:
    """Return the findings that one error of jsonschema stands for."""
    keyword, path = str(error.validator), (*root, *error.absolute_path)
    fault, rule = _FAULTS.get(keyword, Fault.INVALID), f"schema-{keyword}"
    if keyword == "required":
        for name in error.validator_value:
            if name not in error.instance:
                yield Finding((*path, name), fault, _wanted(_property(error.schema, name)), rule)
        return
    if fault is Fault.UNKNOWN:
        known = error.schema.get("properties", {})
        for name in _unknown(error):
            near = did_you_mean(name, known) or ": correct its name or remove it"
            yield Finding((*path, name), fault, f"there is no such field{near}", rule)
        return
    # What may be a secret is not shown.
    value = None if error.schema.get("writeOnly") else error.instance
    yield Finding(path, fault, _detail(error, keyword), rule, value)


def _unknown(error: Any) -> list[str]:
    known = error.schema.get("properties", {})
    if error.validator == "additionalProperties":
        return sorted(name for name in error.instance if name not in known)
    # Only the message says which of them a schema applied in place knows.
    return sorted(name for name in error.instance if name not in known and repr(name) in error.message)


def _property(schema: Obj, name: str) -> Obj:
    found = schema.get("properties", {}).get(name)
    return found if isinstance(found, dict) else {}


def _detail(error: Any, keyword: str) -> str:
    wanted = error.validator_value
    if keyword in ("minLength", "minItems", "minProperties") and wanted == 1:
        text = "must not be empty"
    elif keyword == "type":
        text = f"must be of type {_either(wanted if isinstance(wanted, list) else [wanted])}"
    elif keyword in ("enum", "const"):
        text = f"must be {_either([json.dumps(value) for value in (wanted if keyword == 'enum' else [wanted])])}"
    elif keyword in ("anyOf", "oneOf") and all(isinstance(choice.get("type"), str) for choice in wanted):
        text = f"must be of type {_either([choice['type'] for choice in wanted])}"
    elif keyword == "pattern" and _FORM in error.schema:
        text = f"must be {error.schema[_FORM]}"
    elif keyword == "dependentRequired":
        missing = {name for have, names in wanted.items() if have in error.instance for name in names}
        text = f"needs {_either(sorted(missing - error.instance.keys()), 'and')} as well"
    else:
        text = _TEXTS.get(keyword, "does not have the form that the schema describes").format(wanted)
    return text + (_example(error.schema) if keyword in ("type", "pattern", "minLength", "anyOf") else "")


def _wanted(schema: Obj) -> str:
    return "must be set" + _example(schema)


def _example(schema: Obj) -> str:
    examples = [example for example in schema.get("examples") or () if not isinstance(example, dict | list)]
    return f", for example {json.dumps(examples[0], ensure_ascii=False)}" if examples else ""


def _either(words: list[str], word: str = "or") -> str:
    return f" {word} ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
