"""The wheels that tests install, downloaded once for a lock file: pip then needs neither an index nor the network.

Tests that ask an index fail when it is slow. `python -m tests.support.wheels` downloads the wheels before the tests.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from sandbox.processes import binaries
from tests.support.paths import CHECKOUT
from tools.release import lock

# What builds the wheel of caphv in the image.
BUILD = {"build", "hatchling"}


def folder() -> Path:
    """The folder with all wheels, downloaded if it does not exist yet."""
    pinned = lock.parse_lock((CHECKOUT / "requirements.lock").read_text(encoding="utf-8"))
    names = {package.name for package in [*lock.run_time_packages(CHECKOUT), *lock.select(pinned, BUILD)]}
    text = "".join(f"{package.requirement}\n" for package in pinned if package.name in names)
    key = hashlib.sha256(f"{sysconfig.get_platform()} {sys.version} {text}".encode()).hexdigest()[:12]
    target = binaries.cache_folder() / f"wheels-{key}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            requirements, found = Path(scratch, "requirements.txt"), Path(scratch, "wheels")
            requirements.write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            command += ["--only-binary=:all:", "--require-hashes", f"--requirement={requirements}", f"--dest={found}"]
            subprocess.run(command, check=True)
            # Another worker may have been faster.
            if not target.is_dir():
                found.rename(target)
    return target


def environment() -> dict[str, str]:
    """Variables with which pip takes nothing but these wheels; without those that lead to this checkout's packages."""
    ours = {"PYTHONPATH", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return kept | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder()), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


if __name__ == "__main__":
    folder()
