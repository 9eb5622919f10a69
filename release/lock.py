"""The pins of requirements.lock, and the subset that caphv needs at run time, for the image and bill of materials.

`python -m release.lock` prints these pins with hashes, for `pip install --require-hashes`; with package names, it
prints those packages and their dependencies. It only uses the standard library, because the image build runs it first.
"""

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

_PIN = re.compile(r"(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^ \\;]+)(?: ; (?P<marker>[^\\]+?))? \\")
_HASH = re.compile(r" {4}--hash=sha256:(?P<digest>[0-9a-f]{64})(?: \\)?")
# `# via name` on one line, or `# via` with one name per following line; the project's own name may have upper case.
_VIA = re.compile(r" {4}# via(?: (?P<parent>\S+).*)?|(?: {4}# {3})(?P<next>\S+).*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Package:
    """A pin: SHA-256 `hashes` of all its files, environment `marker`, and the packages it is `needed_by`."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    needed_by: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The pin in pip's syntax."""
        marker = f" ; {self.marker}" if self.marker else ""
        return " \\\n    ".join([f"{self.name}=={self.version}{marker}", *(f"--hash=sha256:{d}" for d in self.hashes)])


def packages(lock: str) -> list[Package]:
    """All pins of a lock file. Raises ValueError for an unknown line."""
    found: list[Package] = []
    for number, line in enumerate(lock.splitlines(), 1):
        if pin := _PIN.fullmatch(line):
            found.append(Package(pin["name"], pin["version"], pin["marker"] or "", (), ()))
            continue
        last = found[-1] if found else None
        if last and (digest := _HASH.fullmatch(line)):
            found[-1] = Package(last.name, last.version, last.marker, (*last.hashes, digest["digest"]), last.needed_by)
        elif last and (via := _VIA.fullmatch(line)):
            parents = [parent for parent in (via["parent"], via["next"]) if parent]
            found[-1] = Package(last.name, last.version, last.marker, last.hashes, (*last.needed_by, *parents))
        elif line.strip() and not line.startswith("#"):
            raise ValueError(f"line {number} of the lock file is neither a pin nor a hash: {line!r}")
    return found


def needed(pinned: list[Package], roots: set[str]) -> list[Package]:
    """The pins of `roots` and their dependencies, in order. Raises ValueError for a root without a pin."""
    missing = roots - {package.name for package in pinned}
    if missing:
        raise ValueError(f"requirements.lock does not pin {', '.join(sorted(missing))}: run `make lock`")
    wanted: set[str] = set()
    added = roots
    while added - wanted:
        wanted |= added
        added = {package.name for package in pinned if wanted & set(package.needed_by)}
    return [package for package in pinned if package.name in wanted]


def at_run_time(checkout: Path) -> list[Package]:
    """The run time dependencies of caphv, from pyproject.toml and requirements.lock."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = (_NAME.match(requirement) for requirement in project["dependencies"])
    return needed(_pins(checkout), {name[0].lower().replace("_", "-") for name in names if name})


def _pins(checkout: Path) -> list[Package]:
    return packages((checkout / "requirements.lock").read_text(encoding="utf-8"))


def _main(checkout: Path, roots: set[str]) -> None:
    for package in needed(_pins(checkout), roots) if roots else at_run_time(checkout):
        sys.stdout.write(f"{package.requirement}\n")


if __name__ == "__main__":
    _main(Path(__file__).resolve().parent.parent, set(sys.argv[1:]))
