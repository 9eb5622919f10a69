"""Every Python package that a task or the image installs is pinned to the hashes of its files."""

import re
from pathlib import Path

import pytest

from tools.release import krew, lock
from tools.release.__main__ import project_version

pytestmark = pytest.mark.unit

LOCKS = {
    "requirements.lock": None,
    "tools/website/requirements.lock": "tools/website/requirements.in",
    "tools/release/uv.lock": "tools/release/uv.in",
}


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_a_hash(checkout: Path, name: str) -> None:
    pins = lock.parse_lock((checkout / name).read_text())
    assert pins
    assert [pin.name for pin in pins if not pin.hashes] == []


@pytest.mark.parametrize(("name", "source"), [(name, source) for name, source in LOCKS.items() if source])
def test_locks_have_what_is_asked_for(checkout: Path, name: str, source: str) -> None:
    pins = {f"{pin.name}=={pin.version}" for pin in lock.parse_lock((checkout / name).read_text())}
    assert set((checkout / source).read_text().split()) <= pins


def test_makefile_and_image_install_by_hash_only(checkout: Path) -> None:
    makefile = (
        (checkout / "Makefile")
        .read_text()
        .replace("\\\n", " ")
        .replace("$(PIP_INSTALL)", "-m pip install --require-hashes")
    )
    dockerfile = (checkout / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install(?: [^&\n]*)?", makefile) + re.findall(r"pip install(?: [^&\n]*)?", dockerfile)
    assert len(installs) > 4
    # What is built here has no hash, and nothing else comes with it.
    own = ("--no-deps", "--no-index")
    assert [line for line in installs if "--require-hashes" not in line and not any(word in line for word in own)] == []


def test_docs_and_examples_install_the_wheel_of_this_release_by_its_hash(checkout: Path) -> None:
    """The project publishes to no package index: by name alone, pip would install the package of another project."""
    version = project_version()
    wheel = f"{krew.REPOSITORY}/releases/download/v{version}/{krew.wheel_name(version)}"
    found = 0
    for path in (path for folder in ("docs", "examples") for path in (checkout / folder).rglob("*.*")):
        if path.suffix not in (".md", ".yaml"):
            continue
        text = path.read_text()
        # Without a hash, pip compares nothing: an empty variable has to end the command.
        installs = re.findall(r"pip install[^\n]*", text)
        assert [line for line in installs if '"$CAPHV_WHEEL#sha256=${CAPHV_WHEEL_SHA256:?}"' not in line] == [], path
        # Jobs of one pipeline share it.
        assert {*re.findall(r"CAPHV_WHEEL: (\S+)", text)} == ({wheel} if installs else set()), path
        found += len(installs)
    assert found >= 3
