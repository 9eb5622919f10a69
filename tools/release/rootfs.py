"""Write the root file system of the controller: `python -m tools.release.rootfs TARGET PREFIX`.

It has the interpreter that runs this module, the packages of PREFIX below /usr/local, and the
shared libraries and CA certificates that both need; no shell, no Git, no SSH and no package
manager. Scanners find the Debian packages of these files in /var/lib/dpkg/status.d. This module
only uses the standard library, because the image build runs it.
"""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from tools.release import sbom

# Parts of the standard library for tests, for building packages, and for terminals.
_EXCLUDED = (
    *("__pycache__", "config-*", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "venv"),
    *("site-packages", "test", "tests", "turtle.py", "turtledemo", "*.a", "*.pyc"),
    *("curses", "dbm", "sqlite3", "tkinter", "nis.*", "readline*", "xx*", "_crypt.*", "_curses*"),
    *("_dbm*", "_gdbm*", "_sqlite3*", "_test*", "_tkinter*"),
)
# Debian merged these folders into /usr, and left links.
_MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_CERTIFICATES = Path("/etc/ssl/certs")
_FILES = {
    "etc/passwd": (
        "root:x:0:0:root:/:/sbin/nologin\ncaphv:x:65532:65532:caphv:/tmp:/sbin/nologin\n"
    ),
    "etc/group": "root:x:0:\ncaphv:x:65532:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_LIBRARY = re.compile(r"(?:=> |\t)(?P<path>/\S+) \(0x[0-9a-f]+\)")
_MISSING = re.compile(r"\t(?P<name>\S+) => not found")
SBOM = Path("usr/share/caphv/sbom.cdx.json")


def assemble(target: Path, prefix: Path) -> None:
    """Write the root file system into `target`, which must not exist.

    Raises `RuntimeError` if a shared library is missing on this system.
    """
    target.mkdir(parents=True)
    # Programs name their loader below such a link: /lib64/ld-linux-x86-64.so.2.
    for name in _MERGED:
        if Path("/", name).is_symlink():
            (target / "usr" / name).mkdir(parents=True)
            (target / name).symlink_to(f"usr/{name}")

    interpreter = _copy_python(target)
    shutil.copytree(prefix, target / "usr/local", symlinks=True, dirs_exist_ok=True)
    # The libraries of the packages are known only after the packages are copied.
    sources = [*_copy_libraries(target, interpreter), *_copy_certificates(target)]

    for name, text in _FILES.items():
        (target / name).write_text(text, encoding="utf-8")
    # This file tells scanners which distribution's advisories apply.
    _copy(Path("/usr/lib/os-release"), target)
    (target / "etc/os-release").symlink_to("../usr/lib/os-release")
    # The umask limits the mode of mkdir, but not the mode of chmod.
    (target / "tmp").mkdir(mode=0o1777)
    (target / "tmp").chmod(0o1777)

    _describe(target, [*sources, Path("/usr/lib/os-release")])


def _copy_python(target: Path) -> Path:
    """Copy the interpreter, its links and its standard library; return the copy."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    interpreter = _copy(base / "bin" / version, target)
    for name in ("python", f"python{sys.version_info.major}"):
        (interpreter.parent / name).symlink_to(version)

    # Look up the path outside of the virtual environment that may run this module.
    names = ("installed_base", "installed_platbase", "base", "platbase")
    library = Path(sysconfig.get_path("stdlib", vars=dict.fromkeys(names, str(base))))
    shutil.copytree(library, _place(library, target), ignore=shutil.ignore_patterns(*_EXCLUDED))
    return interpreter


def _copy_libraries(target: Path, interpreter: Path) -> Iterator[Path]:
    """Copy the shared libraries of all programs in `target`; yield their paths on this system."""
    programs = [interpreter, *sorted(path for path in target.rglob("*.so*") if path.is_file())]
    # ldd fails for each file that is not dynamically linked, but its output is complete.
    command = ["ldd", *map(str, programs)]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if missing := sorted({match["name"] for match in _MISSING.finditer(output)}):
        raise RuntimeError(f"libraries are missing on this system: {', '.join(missing)}")

    for path in sorted({Path(match["path"]) for match in _LIBRARY.finditer(output)}):
        # Wheels bring libraries of their own.
        if not path.is_relative_to(target):
            _copy(path, target)
            yield path

    # The loader looks up its libraries here.
    if Path("/etc/ld.so.cache").is_file():
        _copy(Path("/etc/ld.so.cache"), target)


def _copy_certificates(target: Path) -> Iterator[Path]:
    """Copy the certificates of public authorities, and yield the files of their package."""
    for path in sorted(_CERTIFICATES.iterdir()):
        if path.is_file():
            _copy(path, target)
            yield path.resolve()

    # OpenSSL looks for the certificates here.
    link = target / "usr/lib/ssl/certs"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(_CERTIFICATES)


def _describe(target: Path, sources: Iterable[Path]) -> None:
    """Write the status and licence of each package with one of the files, and the bill."""
    packages = sbom.owners(sources)
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
    """Return the place of a path in `target`, after following the links of its folder."""
    return target / (path.parent.resolve() / path.name).relative_to("/")


def _copy(path: Path, target: Path) -> Path:
    place = _place(path, target)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, place)
    return place


if __name__ == "__main__":
    assemble(Path(sys.argv[1]), Path(sys.argv[2]))
