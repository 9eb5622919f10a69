"""The root file system of the controller's image: `python -m release.rootfs TARGET PREFIX`.

It has the interpreter that runs this module, the packages of PREFIX below /usr/local, and the shared libraries and CA
certificates that both need; no shell, no Git, no SSH and no package manager. Scanners find the Debian packages of these
files in /var/lib/dpkg/status.d. This module only uses the standard library, because the image build runs it.
"""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from release import sbom

# Parts of the standard library for tests, for building packages, and for terminals.
_LEFT_OUT = (
    *("__pycache__", "config-*", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests"),
    *("curses", "dbm", "sqlite3", "tkinter", "turtledemo", "turtle.py", "venv", "*.a", "*.pyc"),
    *("_crypt.*", "_curses*", "_dbm*", "_gdbm*", "_sqlite3*", "_test*", "_tkinter*", "nis.*", "readline*", "xx*"),
)
_MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_CERTIFICATES = Path("/etc/ssl/certs")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/:/sbin/nologin\ncaphv:x:65532:65532:caphv:/tmp:/sbin/nologin\n",
    "etc/group": "root:x:0:\ncaphv:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_LIBRARY = re.compile(r"(?:=> |\t)(?P<path>/\S+) \(0x[0-9a-f]+\)")
_MISSING = re.compile(r"\t(?P<name>\S+) => not found")
SBOM = Path("usr/share/caphv/sbom.cdx.json")


def assemble(target: Path, prefix: Path) -> None:
    """Write the root file system into `target`, which must not exist. Raises RuntimeError for a missing library."""
    target.mkdir(parents=True)
    for name in _MERGED:
        if Path("/", name).is_symlink():
            (target / "usr" / name).mkdir(parents=True)
            (target / name).symlink_to(f"usr/{name}")
    interpreter = _python(target)
    shutil.copytree(prefix, target / "usr/local", symlinks=True, dirs_exist_ok=True)
    taken = [*_libraries(target, interpreter), *_certificates(target), Path("/usr/lib/os-release")]
    for name, text in _FILES.items():
        (target / name).write_text(text, encoding="utf-8")
    _copy(Path("/usr/lib/os-release"), target)
    (target / "etc/os-release").symlink_to("../usr/lib/os-release")
    (target / "tmp").mkdir(mode=0o1777)
    (target / "tmp").chmod(0o1777)
    _describe(target, taken)


def _python(target: Path) -> Path:
    """Copy the interpreter, its links and its standard library; return the copy."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    interpreter = _copy(base / "bin" / version, target)
    for name in ("python", f"python{sys.version_info.major}"):
        (interpreter.parent / name).symlink_to(version)
    variables = {"installed_base": str(base), "installed_platbase": str(base), "base": str(base), "platbase": str(base)}
    library = Path(sysconfig.get_path("stdlib", vars=variables))
    shutil.copytree(library, _place(library, target), ignore=shutil.ignore_patterns(*_LEFT_OUT))
    return interpreter


def _libraries(target: Path, interpreter: Path) -> Iterator[Path]:
    """Copy the shared libraries of all programs in `target`, and yield their paths on this system."""
    programs = [interpreter, *sorted(path for path in target.rglob("*.so*") if path.is_file())]
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False)
    if missing := sorted({found["name"] for found in _MISSING.finditer(done.stdout)}):
        raise RuntimeError(f"libraries are missing on this system: {', '.join(missing)}")
    for path in sorted({Path(found["path"]) for found in _LIBRARY.finditer(done.stdout)}):
        # Wheels bring libraries of their own.
        if not path.is_relative_to(target):
            _copy(path, target)
            yield path
    if Path("/etc/ld.so.cache").is_file():
        _copy(Path("/etc/ld.so.cache"), target)


def _certificates(target: Path) -> Iterator[Path]:
    """Copy the certificates of public authorities, and yield the files of the package that has them."""
    for path in sorted(_CERTIFICATES.iterdir()):
        if path.is_file():
            _copy(path, target)
            yield path.resolve()
    link = target / "usr/lib/ssl/certs"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(_CERTIFICATES)


def _describe(target: Path, taken: Iterable[Path]) -> None:
    """Write the status and the licence of the packages that the files are from, and the bill of materials."""
    packages = sbom.owners(taken)
    folder = target / "var/lib/dpkg/status.d"
    folder.mkdir(parents=True)
    for package in packages:
        (folder / package.name).write_text(package.status, encoding="utf-8")
        copyright_file = Path("/usr/share/doc", package.name, "copyright")
        if copyright_file.is_file():
            _copy(copyright_file, target)
    (site,) = (target / "usr/local").glob("lib/python*/site-packages")
    bill = sbom.image_bill(packages, sbom.distributions([str(site)]))
    (target / SBOM).parent.mkdir(parents=True, exist_ok=True)
    (target / SBOM).write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


def _place(path: Path, target: Path) -> Path:
    """Where a path of this system is in `target`, with the folder's links followed."""
    return target / (path.parent.resolve() / path.name).relative_to("/")


def _copy(path: Path, target: Path) -> Path:
    place = _place(path, target)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, place)
    return place


if __name__ == "__main__":
    assemble(Path(sys.argv[1]), Path(sys.argv[2]))
