"""The repository stands by itself: no package registry, no folder of one machine, nothing next to the checkout."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

# Folders at the top that hold no sources; those that begin with a dot are not either, but for .ci.
NO_SOURCES = {"out", "dist"}
# What Python and npm make, anywhere.
NOT_OURS = {"__pycache__", "node_modules", "dist", ".eslintcache"}
FORBIDDEN = {
    "the host of a package registry": re.compile(
        r"\b(pypi\.org|pythonhosted\.org|(proxy|sum)\.golang\.org|registry\.npmjs\.(org|com)|crates\.io|rubygems\.org)\b"
    ),
    "a folder of one machine": re.compile(
        r"(?<![\w.$}~-])/(work|root|home/\w+|Users/\w+|tmp/(?!k8s-webhook-server/))\b"
    ),
    "something outside the checkout": re.compile(r"\.\./shared\b|\"shared\" /"),
}
OUTSIDE = "something outside the checkout"


def sources(checkout: Path) -> list[Path]:
    tops = [path for path in checkout.iterdir() if path.name not in NO_SOURCES]
    tops = [path for path in tops if not path.name.startswith(".") or path.name in (".ci", ".gitignore")]
    found = [path for top in tops for path in ([top] if top.is_file() else top.rglob("*"))]
    return [path for path in found if path.is_file() and not NOT_OURS & set(path.parts)]


def findings(text: str, *, in_tests: bool) -> list[str]:
    patterns = {what: pattern for what, pattern in FORBIDDEN.items() if not (in_tests and what == OUTSIDE)}
    return [f"{what}: {match[0]}" for what, pattern in patterns.items() for match in pattern.finditer(text)]


def test_sources_are_found(checkout: Path) -> None:
    names = {str(path.relative_to(checkout)) for path in sources(checkout)}
    assert {"Makefile", ".ci/run", "caphv/data.py", "docs/quick-start.md"} <= names


def test_repository_stands_by_itself(checkout: Path) -> None:
    found = []
    for path in sources(checkout):
        where = path.relative_to(checkout)
        # Bytes of a picture that are not text cannot name anything.
        errors = "replace" if path.suffix in (".png", ".webp") else "strict"
        text = path.read_text(encoding="utf-8", errors=errors)
        found += [f"{where} names {what}" for what in findings(text, in_tests=where.parts[0] == "tests")]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "https://" + "pypi" + ".org/simple",
        "GOPROXY=https://proxy" + ".golang.org",
        "cd /" + "work/main",
        "ls /" + "root/.cache",
        "open('/" + "tmp/file')",
        "see ../" + "shared/reference",
    ],
)
def test_violations_are_found(text: str) -> None:
    assert len(findings(text, in_tests=False)) == 1


@pytest.mark.parametrize("text", ["deploy/work/x", "/network", "~/.kube/config", "$HOME/tmp/x"])
def test_other_paths_are_fine(text: str) -> None:
    assert findings(text, in_tests=False) == []


def test_lock_file_holds_only_pins_with_hashes(checkout: Path) -> None:
    """The user decides where packages come from: no address and no option is in the lock."""
    lines = (checkout / "requirements.lock").read_text(encoding="utf-8").splitlines()
    content = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    pin, digest = re.compile(r"[a-z0-9-]+==\S+( ; .+)? \\"), re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")
    assert [line for line in content if not pin.fullmatch(line) and not digest.fullmatch(line)] == []


def test_modules_that_texts_tell_to_run_exist(checkout: Path) -> None:
    """A stale file is reported with the command that writes it, which must outlive a move of its module."""
    command = re.compile(r"python -m ((?:caphv|sandbox|tools)(?:\.\w+)*)")
    names = {
        name
        for path in sources(checkout)
        if path.suffix in (".py", ".md", ".yaml") or path.name in ("Makefile", "Dockerfile")
        for name in command.findall(path.read_text(encoding="utf-8"))
    }
    places = {name: checkout.joinpath(*name.split(".")) for name in names}
    missing = [name for name, place in places.items() if not place.with_suffix(".py").is_file()]
    assert [name for name in missing if not (places[name] / "__main__.py").is_file()] == []
    assert "tools.generate.reference" in names
