"""Tables of versions that users wrote for older releases."""

from __future__ import annotations

import json
from pathlib import Path

from packager.bundler import Bundler


def older_table(folder: Path) -> Path:
    """The shipped table as an earlier release had it: other charts."""
    table = Bundler().renderer.table
    release = table.newest.as_data()
    row = {
        "name": "older",
        "templates": release["templates"],
        "charts": dict.fromkeys(release["charts"], "0.0.1"),
        "supports": table.supports[release["release"]],
    }
    path = folder / "versions.json"
    path.write_text(json.dumps({"releases": [row], "repositories": table.repositories}))
    return path
