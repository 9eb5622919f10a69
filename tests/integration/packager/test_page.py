"""The commands in docs/fleet-addons.md do what the page says, one after the other."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.packager.repositories import Origin
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.integration

PAGE = (CHECKOUT / "docs" / "fleet-addons.md").read_text(encoding="utf-8")


def test_commands_of_the_page_work(tmp_path: Path) -> None:
    origin = Origin.make(tmp_path / "fleet.git")
    script = "set -e\n" + "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
    # GitRepos are only printed, and refused for a folder, which Fleet could not read.
    script = script.replace("-o gitrepo --repo $FLEET", "-o gitrepo --repo https://git.example.com/fleet.git")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "PYTHONPATH": str(CHECKOUT),
        "HOME": str(tmp_path),
        "FLEET": origin.url,
    }
    function = f'caphv() {{ "{sys.executable}" -m caphv "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-c", function + script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "+        mtu: 1400" in done.stdout
    assert "paths:" in done.stdout
    assert origin.count() == 2
    assert origin.message("main~1").splitlines()[2] == "The first cluster"
    assert origin.message().startswith("team-a/demo: mtu ")
