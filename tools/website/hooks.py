"""MkDocs hooks: pages from the whole repository, links to its files, and self-hosted assets.

Pages keep their paths, so that links between them work in the repository and on the site.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = ("*.md", "clusterclass/*.md", "examples/*.md", "docs/**/*.md", "docs/images/*")
# Pages of which `make docs` writes a longer form, with generated lists.
GENERATED = {"docs/validation.md"}
GENERATED_PAGES = CHECKOUT / "out" / "pages"
STYLE = "style.css"
HOME = "README.md"
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")
_ASSET = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//[^\"]+\""
    r"|<link\b[^>]*\bhref=\"(?:https?:)?//[^\"]+\"[^>]*>"
)
_SCRIPT_HOST = re.compile(r"https://unpkg\.com/[\w./@-]*")


def on_files(files: Files, config: Any) -> Files:
    """Add all pages and images under their paths in the repository to the files of the theme."""
    # Drop the pages that MkDocs found in docs/, because their paths are relative to that folder.
    docs = str(CHECKOUT / "docs")
    site = Files([file for file in files if not (file.abs_src_path or "").startswith(docs)])

    for page in sorted({path for pattern in PAGES for path in CHECKOUT.glob(pattern)}):
        path = page.relative_to(CHECKOUT).as_posix()
        source = GENERATED_PAGES / path if path in GENERATED else page
        if not source.is_file():
            raise PluginError(f"{source} does not exist: run make docs, which writes it")
        site.append(File.generated(config, path, abs_src_path=str(source)))

    style = Path(__file__).with_name(STYLE)
    site.append(File.generated(config, STYLE, abs_src_path=str(style)))
    return site


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to files outside of the site to the repository; give the README its template."""
    folder = posixpath.dirname(page.file.src_uri)
    if page.file.src_uri == HOME:
        page.meta = {**page.meta, "template": "home.html", "hide": ["navigation", "toc"]}

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        if files.get_file_from_path(path) is not None or not (CHECKOUT / path).exists():
            return match[1]

        kind = "tree" if (CHECKOUT / path).is_dir() else "blob"
        return f"{config['repo_url']}/{kind}/main/{path}"

    return _LINK.sub(target, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Fail if a page loads a script, style or image from another host."""
    foreign = foreign_assets(output)
    if foreign:
        raise PluginError(f"{page.file.src_uri} loads from another host: {foreign[0]}")
    return output


def on_post_build(config: Any) -> None:
    """Remove the theme's fallbacks for old browsers and diagrams, which load from another host."""
    for script in Path(config["site_dir"]).glob("assets/javascripts/*.js"):
        text = script.read_text(encoding="utf-8")
        script.write_text(_SCRIPT_HOST.sub("", text), encoding="utf-8")


def foreign_assets(html: str) -> list[str]:
    """Return the tags of a page that load something from another host."""
    return [match[0] for match in _ASSET.finditer(html)]
