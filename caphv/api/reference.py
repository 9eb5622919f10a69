"""Generates `docs/reference`, one page per kind, from the JSON Schemas that validation uses.

`python -m caphv.api.reference` writes the pages; with `--check` it writes nothing and fails on stale ones.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from caphv import data
from caphv.api.names import GROUP
from caphv.api.object import Obj

# The last line of each page: pages without it are written by hand and left alone.
MARK = "<!-- Generated from schemas/: python -m caphv.api.reference -->"
_SHARED = "definitions.json"
# Keyword -> how a limit reads in the column of types.
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
    """A schema and the file it stands in, by which its references are resolved."""

    file: str
    node: Obj


def rendered() -> dict[str, str]:
    """Return the content of `docs/reference`: file name to Markdown, the same for the same schemas.

    Raises:
        FileNotFoundError: the schemas are not installed.
        KeyError: a `$ref` in them leads nowhere.
    """
    files = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in data.folder("schemas").glob("*.json")}
    shared = files[_SHARED]["x-caphv-crd"]
    kinds = {
        name: schema
        for name, schema in sorted(files.items())
        if "names" in schema.get("x-caphv-crd", {}) or "x-caphv-file" in schema
    }
    pages = {f"{Path(name).stem}.md": _page(files, name, schema, shared) for name, schema in kinds.items()}
    rows = [f"- [{schema['title']}]({Path(name).stem}.md): {schema['description']}" for name, schema in kinds.items()]
    pages["README.md"] = "\n".join(["# API fields", "", *rows, ""])
    return {name: f"{text}\n{MARK}\n" for name, text in pages.items()}


def stale(directory: Path) -> list[str]:
    """Return the sorted names of generated pages in `directory` that are missing, different or obsolete."""
    wanted = rendered()
    present = {path.name: path.read_text(encoding="utf-8") for path in directory.glob("*.md")}
    present = {name: text for name, text in present.items() if name in wanted or MARK in text}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def _page(files: dict[str, Obj], file: str, schema: Obj, shared: Obj) -> str:
    lines = [f"# {schema['title']}", "", schema["description"], ""]
    lines += [_where(schema, shared)]
    for part in ("metadata", "spec", "status"):
        if part in schema["properties"] and (part != "metadata" or "x-caphv-file" in schema):
            lines += ["", f"## {part}", ""]
            lines += ["| Field | Type | Required | Default | Meaning | Example |", "|---|---|---|---|---|---|"]
            lines += _rows(files, _resolved(files, _Place(file, schema["properties"][part])), part)
    for example in schema.get("examples", ()):
        lines += ["", "## Example", "", "```json", json.dumps(example, indent=2), "```"]
    return "\n".join([*lines, ""])


def _where(schema: Obj, shared: Obj) -> str:
    """Say where objects of a kind are: on the API server, or in files only."""
    if file := schema.get("x-caphv-file"):
        return f"A kind of file, `apiVersion: {file['apiVersion']}`; no API server knows it."
    names = schema["x-caphv-crd"]["names"]
    versions = ", ".join(f"`{name}`" + (" (stored)" if name == shared["stored"] else "") for name in shared["served"])
    shorts = "".join(f" or `{short}`" for short in names.get("shortNames", ()))
    return f"API group `{GROUP}`, versions {versions}; `kubectl get {names['plural']}`{shorts}."


def _rows(files: dict[str, Obj], place: _Place, path: str) -> Iterator[str]:
    required = place.node.get("required", ())
    for name, schema in sorted(place.node.get("properties", {}).items()):
        below = _resolved(files, _Place(place.file, schema))
        field = f"{path}.{name}"
        cells = (
            f"`{field}`",
            _type(files, below),
            "yes" if name in required else "",
            _code(below.node["default"]) if "default" in below.node else "",
            below.node.get("description", "") + _versions(below.node),
            _example(below.node),
        )
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
        items = _items(files, below)
        yield from _rows(files, items or below, f"{field}[]" if items else field)


def _resolved(files: dict[str, Obj], place: _Place) -> _Place:
    """Follow a reference; its siblings are more specific than its target."""
    file, node = place
    if "$ref" not in node:
        return place
    name, _, pointer = node["$ref"].partition("#")
    target = files[name or file]
    for part in filter(None, pointer.split("/")):
        target = target[part]
    found = _resolved(files, _Place(name or file, target))
    return _Place(found.file, found.node | {key: value for key, value in node.items() if key != "$ref"})


def _items(files: dict[str, Obj], place: _Place) -> _Place | None:
    items = place.node.get("items")
    return _resolved(files, _Place(place.file, items)) if isinstance(items, dict) else None


def _type(files: dict[str, Obj], place: _Place) -> str:
    node = place.node
    if items := _items(files, place):
        text = f"list of {_type(files, items)}"
    elif isinstance(node.get("additionalProperties"), dict):
        text = f"map of {_type(files, _resolved(files, _Place(place.file, node['additionalProperties'])))}"
    elif "anyOf" in node and all("type" in choice for choice in node["anyOf"]):
        text = " or ".join(choice["type"] for choice in node["anyOf"])
    else:
        text = str(node.get("type", ""))
    if "enum" in node:
        text += ": " + ", ".join(_code(value) for value in node["enum"])
    limits = [text.format(node[keyword]) for keyword, text in _LIMITS.items() if keyword in node]
    return ", ".join([text, *limits])


def _versions(node: Obj) -> str:
    parts = []
    for version, patch in node.get("x-caphv-versions", {}).items():
        changes = [f"no `{key}`" if value is None else f"`{key}` {_code(value)}" for key, value in patch.items()]
        parts.append(f" In {version}: {', '.join(changes)}.")
    return "".join(parts) + (" Deprecated." if node.get("deprecated") else "")


def _example(node: Obj) -> str:
    examples = node.get("examples", ())
    return _code(examples[0]) if examples and node.get("type") != "object" else ""


def _code(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def main(arguments: list[str] | None = None) -> int:
    """Write `docs/reference`, or with `--check` compare only; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m caphv.api.reference", description="Generate docs/reference.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name the pages that are stale")
    check = parser.parse_args(arguments).check
    directory = data.folder("docs") / "reference"
    names, wanted = stale(directory), rendered()
    for name in names:
        if check:
            sys.stderr.write(f"docs/reference/{name} is stale: run python -m caphv.api.reference\n")
        elif name in wanted:
            directory.mkdir(exist_ok=True)
            (directory / name).write_text(wanted[name], encoding="utf-8")
        else:
            (directory / name).unlink()
    return 1 if check and names else 0


if __name__ == "__main__":
    sys.exit(main())
