"""MkDocs hooks: pages from the whole repository, and links to files that the site does not contain.

Pages keep their paths, so that links between them work in the repository and on the site.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

CHECKOUT = Path(__file__).resolve().parent.parent
PAGES = ("*.md", "clusterclass/*.md", "examples/*.md", "docs/**/*.md", "docs/images/*")
STYLE = "style.css"
_LINK = re.compile(r"(?<=\]\()([^)#:\s]+)(?=[)#])")


def on_files(files: Files, config: Any) -> Files:
    """Add all pages and images under their paths in the repository to the files of the theme."""
    found = Files([file for file in files if not (file.abs_src_path or "").startswith(str(CHECKOUT / "docs"))])
    for page in sorted({path for pattern in PAGES for path in CHECKOUT.glob(pattern)}):
        found.append(File.generated(config, page.relative_to(CHECKOUT).as_posix(), abs_src_path=str(page)))
    style = Path(__file__).with_name(STYLE)
    found.append(File.generated(config, STYLE, abs_src_path=str(style)))
    return found


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to files that the site does not contain to the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def target(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        if files.get_file_from_path(path) is not None or not (CHECKOUT / path).exists():
            return match[1]
        kind = "tree" if (CHECKOUT / path).is_dir() else "blob"
        return f"{config['repo_url']}/{kind}/main/{path}"

    return _LINK.sub(target, markdown)
