"""The pins of requirements.lock, and the subset that caphv needs at run time.

`python -m tools.release.lock` prints this subset with hashes, for `pip install --require-hashes`;
with package names, it prints those packages and their dependencies. It only uses the standard
library, because the image build runs it first.
"""

import re
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

_PIN = re.compile(
    r"(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^ \\;]+)(?: ; (?P<marker>[^\\]+?))? \\"
)
_HASH = re.compile(r" {4}--hash=sha256:(?P<digest>[0-9a-f]{64})(?: \\)?")
# `# via name` on one line, or `# via` with one name per following line; the project's own name may
# have upper case.
_VIA = re.compile(r" {4}# via(?: (?P<parent>\S+).*)?|(?: {4}# {3})(?P<next>\S+).*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Package:
    """A pin: SHA-256 of all its files, environment marker, and the packages that need it."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    needed_by: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The pin in pip's syntax."""
        marker = f" ; {self.marker}" if self.marker else ""
        hashes = (f"--hash=sha256:{digest}" for digest in self.hashes)
        return " \\\n    ".join([f"{self.name}=={self.version}{marker}", *hashes])


def parse_lock(lock: str) -> list[Package]:
    """Return all pins of a lock file.

    Raises `ValueError` if a line is not part of a pin.
    """
    pins: list[Package] = []
    for number, line in enumerate(lock.splitlines(), 1):
        if pin := _PIN.fullmatch(line):
            pins.append(
                Package(
                    name=pin["name"],
                    version=pin["version"],
                    marker=pin["marker"] or "",
                    hashes=(),
                    needed_by=(),
                )
            )
            continue

        # The lines with the hashes and parents of a pin follow the line of the pin.
        last = pins[-1] if pins else None
        if last and (digest := _HASH.fullmatch(line)):
            pins[-1] = replace(last, hashes=(*last.hashes, digest["digest"]))
        elif last and (via := _VIA.fullmatch(line)):
            parents = [parent for parent in (via["parent"], via["next"]) if parent]
            pins[-1] = replace(last, needed_by=(*last.needed_by, *parents))
        elif line.strip() and not line.startswith("#"):
            msg = f"line {number} of the lock file is neither a pin nor a hash: {line!r}"
            raise ValueError(msg)
    return pins


def select(pins: list[Package], roots: set[str]) -> list[Package]:
    """Return the pins of `roots` and their dependencies, in order.

    Raises `ValueError` if a root has no pin.
    """
    missing = roots - {package.name for package in pins}
    if missing:
        names = ", ".join(sorted(missing))
        raise ValueError(f"requirements.lock does not pin {names}: run `make lock`")

    selected: set[str] = set()
    added = roots
    while added - selected:
        selected |= added
        added = {package.name for package in pins if selected & set(package.needed_by)}
    return [package for package in pins if package.name in selected]


def run_time_packages(checkout: Path) -> list[Package]:
    """Return the run time dependencies of caphv from pyproject.toml and requirements.lock."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = (_NAME.match(requirement) for requirement in project["dependencies"])
    # Pins have normalized names (PEP 503).
    roots = {name[0].lower().replace("_", "-") for name in names if name}
    return select(_read_pins(checkout), roots)


def _read_pins(checkout: Path) -> list[Package]:
    return parse_lock((checkout / "requirements.lock").read_text(encoding="utf-8"))


def _main(checkout: Path, roots: set[str]) -> None:
    selected = select(_read_pins(checkout), roots) if roots else run_time_packages(checkout)
    for package in selected:
        sys.stdout.write(f"{package.requirement}\n")


if __name__ == "__main__":
    _main(Path(__file__).resolve().parents[2], set(sys.argv[1:]))
