"""Tables of versions with an older release: the shipped one has what was released last.

As a program, `python -m tests.support.packager.tables`, it is caphv with such a table.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caphv import data
from caphv.__main__ import main as run
from packager.addons import versions
from packager.rendering.bundler import Bundler

_OLDER_CHARTS = {"harvester-cloud-provider": "0.2.14", "harvester-csi-driver": "0.1.30"}


def older_table(folder: Path) -> Path:
    """The shipped table as an earlier release had it: other charts."""
    table = Bundler().renderer.table
    release = table.newest.as_data()
    row = {
        "name": "older",
        "charts": dict.fromkeys(release["charts"], "0.0.1"),
        "supports": table.supports[release["release"]],
    }
    path = folder / "versions.json"
    path.write_text(json.dumps({"releases": [row], "repositories": table.repositories}))
    return path


def _with_an_older_release() -> dict[str, Any]:
    """The shipped table with a second release, 2026.11, of other charts."""
    content: dict[str, Any] = json.loads((data.folder(versions.BUNDLES_FOLDER) / "versions.json").read_text())
    (newest,) = content["releases"]
    content["releases"] = [newest, {**newest, "name": "2026.11", "charts": newest["charts"] | _OLDER_CHARTS}]
    return content


@pytest.fixture(scope="module", autouse=True)
def two_releases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have the shipped table hold an older release, too: upgrades lead from one to the other."""
    file = tmp_path_factory.mktemp("table") / "versions.json"
    file.write_text(json.dumps(_with_an_older_release()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "TABLE", str(file))
        versions.load_table.cache_clear()
        yield
    versions.load_table.cache_clear()


def main() -> None:
    """Run caphv with a table of two releases."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(_with_an_older_release(), file)
        file.flush()
        versions.TABLE = file.name
        run()


if __name__ == "__main__":
    main()
