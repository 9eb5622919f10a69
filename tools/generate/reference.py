"""Generate `docs/reference`, one page per kind, from the JSON Schemas that validation uses.

`python -m tools.generate.reference` writes the pages; with `--check` it writes nothing and fails on
stale ones.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from caphv import data
from caphv.api import generated
from caphv.api.names import GROUP
from caphv.api.object import Obj

# The last line of each generated page. Pages without it are written by hand and left unchanged.
MARK = "<!-- Generated from schemas/: python -m tools.generate.reference -->"
_SHARED = "definitions.json"
# The text for each keyword of a limit in the column of types.
_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}


class _Place(NamedTuple):
    """A schema and its file, to which the references in the schema are relative."""

    file: str
    node: Obj


def render() -> dict[str, str]:
    """Return the content of `docs/reference`: file name to Markdown, the same for the same schemas.

    Raises `FileNotFoundError` if the schemas are not installed, and `KeyError` if a `$ref` in them
    has no target.
    """
    files = {
        path.name: json.loads(path.read_text(encoding="utf-8"))
        for path in data.folder("schemas").glob("*.json")
    }
    shared = files[_SHARED]["x-caphv-crd"]

    # Other files only hold definitions that these refer to.
    kinds = {
        name: schema
        for name, schema in sorted(files.items())
        if "names" in schema.get("x-caphv-crd", {}) or "x-caphv-file" in schema
    }
    pages = {
        f"{Path(name).stem}.md": _page(files, name, schema, shared)
        for name, schema in kinds.items()
    }

    rows = [
        f"- [{schema['title']}]({Path(name).stem}.md): {schema['description']}"
        for name, schema in kinds.items()
    ]
    pages["README.md"] = "\n".join(["# API fields", "", *rows, ""])
    return {name: f"{text}\n{MARK}\n" for name, text in pages.items()}


def files(directory: Path) -> dict[Path, str | None]:
    """Return the generated pages of a folder, None for those whose schema no longer exists."""
    present = {path: path.read_text(encoding="utf-8") for path in directory.glob("*.md")}
    return {
        **dict.fromkeys(path for path, text in present.items() if MARK in text),
        **{directory / name: text for name, text in render().items()},
    }


def _page(files: dict[str, Obj], file: str, schema: Obj, shared: Obj) -> str:
    lines = [f"# {schema['title']}", "", schema["description"], ""]
    lines += [_describe_location(schema, shared)]

    for part in ("metadata", "spec", "status"):
        # The metadata of all objects is the same, but the metadata of a file has other fields.
        if part in schema["properties"] and (part != "metadata" or "x-caphv-file" in schema):
            lines += ["", f"## {part}", ""]
            lines += [
                "| Field | Type | Required | Default | Meaning | Example |",
                "|---|---|---|---|---|---|",
            ]
            lines += _rows(files, _resolve(files, _Place(file, schema["properties"][part])), part)

    for example in schema.get("examples", ()):
        lines += ["", "## Example", "", "```json", json.dumps(example, indent=2), "```"]
    return "\n".join([*lines, ""])


def _describe_location(schema: Obj, shared: Obj) -> str:
    """Describe the place of a kind's objects: the API server, or only files."""
    if file := schema.get("x-caphv-file"):
        return f"A kind of file, `apiVersion: {file['apiVersion']}`; no API server knows it."
    names = schema["x-caphv-crd"]["names"]
    versions = ", ".join(
        f"`{name}`" + (" (stored)" if name == shared["stored"] else "") for name in shared["served"]
    )
    shorts = "".join(f" or `{short}`" for short in names.get("shortNames", ()))
    return f"API group `{GROUP}`, versions {versions}; `kubectl get {names['plural']}`{shorts}."


def _rows(files: dict[str, Obj], place: _Place, path: str) -> Iterator[str]:
    """Yield a line for each field below a place, followed by the lines for its own fields."""
    required = place.node.get("required", ())
    for name, schema in sorted(place.node.get("properties", {}).items()):
        field = f"{path}.{name}"
        target = _resolve(files, _Place(place.file, schema))
        cells = (
            f"`{field}`",
            _type(files, target),
            "yes" if name in required else "",
            _code(target.node["default"]) if "default" in target.node else "",
            target.node.get("description", "") + _versions(target.node),
            _example(target.node),
        )
        # A bar or the end of a line would end the cell.
        escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
        yield "| " + " | ".join(escaped) + " |"

        items = _items(files, target)
        yield from _rows(files, items or target, f"{field}[]" if items else field)


def _resolve(files: dict[str, Obj], place: _Place) -> _Place:
    """Follow a reference; its siblings are more specific than its target."""
    file, node = place
    if "$ref" not in node:
        return place

    name, _, pointer = node["$ref"].partition("#")
    target = files[name or file]
    for part in filter(None, pointer.split("/")):
        target = target[part]

    # The target may itself be a reference.
    end = _resolve(files, _Place(name or file, target))
    siblings = {key: value for key, value in node.items() if key != "$ref"}
    return _Place(end.file, end.node | siblings)


def _items(files: dict[str, Obj], place: _Place) -> _Place | None:
    items = place.node.get("items")
    return _resolve(files, _Place(place.file, items)) if isinstance(items, dict) else None


def _type(files: dict[str, Obj], place: _Place) -> str:
    """Return the text for the column of types: the type, its values and its limits."""
    node = place.node
    values = node.get("additionalProperties")
    if items := _items(files, place):
        text = f"list of {_type(files, items)}"
    elif isinstance(values, dict):
        text = f"map of {_type(files, _resolve(files, _Place(place.file, values)))}"
    elif "anyOf" in node and all("type" in choice for choice in node["anyOf"]):
        text = " or ".join(choice["type"] for choice in node["anyOf"])
    else:
        text = str(node.get("type", ""))

    if "enum" in node:
        text += ": " + ", ".join(_code(value) for value in node["enum"])
    limits = [limit.format(node[keyword]) for keyword, limit in _LIMITS.items() if keyword in node]
    return ", ".join([text, *limits])


def _versions(node: Obj) -> str:
    """Return sentences about differences in other API versions and about a deprecation."""
    sentences = []
    for version, patch in node.get("x-caphv-versions", {}).items():
        changes = [
            f"no `{key}`" if value is None else f"`{key}` {_code(value)}"
            for key, value in patch.items()
        ]
        sentences.append(f" In {version}: {', '.join(changes)}.")
    return "".join(sentences) + (" Deprecated." if node.get("deprecated") else "")


def _example(node: Obj) -> str:
    examples = node.get("examples", ())
    return _code(examples[0]) if examples and node.get("type") != "object" else ""


def _code(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def main(arguments: list[str] | None = None) -> int:
    """Write `docs/reference`, or with `--check` compare only; return the exit status."""
    pages = files(data.folder("docs") / "reference")
    return generated.main(arguments, "tools.generate.reference", pages)


if __name__ == "__main__":
    sys.exit(main())
