"""Finds the commit that last changed a file or a line. Only messages use it.

Another user may have written `.git/config` in a checkout, or in a folder above it. Git would run
the programs that this file names for signatures, filters and differences. So a temporary repository
with our own configuration reads the objects of the checkout. The checkout's own configuration is
used only to find the current commit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packager.git.clone import Clone
from packager.git.errors import GitError, Redactor
from packager.git.process import environment, run
from packager.git.remote import Remote

# `_parse` reads the output of these arguments.
_LOG = ("log", "-1", "--format=%H %cs %s")
# Most changes are among the newest commits, and the whole history may be large.
_DEPTHS = ("--depth=100", "--depth=1000", "--unshallow")
_TIMEOUT_SECONDS = 30.0
_UNCOMMITTED = "0" * 40


@dataclass(frozen=True)
class Change:
    """A commit with its date and subject; without `commit` the change is not committed yet."""

    commit: str
    date: str = ""
    subject: str = ""

    def __str__(self) -> str:
        """Return a description for messages."""
        if not self.commit:
            return "not committed yet"
        return f"commit {self.commit[:12]} of {self.date}: {self.subject}"


def _parse(out: str) -> Change | None:
    """Parse the output of `git log`; None if it printed no commit."""
    commit, _, line = out.strip().partition(" ")
    date, _, subject = line.partition(" ")
    return Change(commit, date, subject) if commit else None


def of_path(path: Path) -> Change | None:
    """Return the commit that last changed a file or folder of a checkout.

    Returns None outside of a checkout, and if it has no commits.
    """
    with _checkout(path) as checkout:
        return _parse(checkout.git([*_LOG, "--", str(path.resolve())])) if checkout else None


def of_line(file: Path, line: int) -> Change | None:
    """Return the commit that last changed a line of a file in a checkout, as `of_path` does."""
    with _checkout(file) as checkout:
        if checkout is None:
            return None
        out = checkout.git(
            ["blame", "--porcelain", "-L", f"{line},{line}", "--", str(file.resolve())]
        )
        commit = out.partition(" ")[0]
        if commit == _UNCOMMITTED:
            return Change("")
        return _parse(checkout.git([*_LOG, commit])) if commit else None


def of_branch(clone: Clone, remote: Remote, ref: str, path: str) -> Change | None:
    """Return the newest commit of a branch that changed a path, or None.

    Fetches more history until the commit is found. Raises `GitError`.

    :param clone: the clone, whose history may be cut
    :param remote: the repository and its branch
    :param ref: the ref of the clone that holds the branch
    :param path: path from the root of the repository
    """
    for depth in _DEPTHS:
        change = _newest_in_clone(clone, ref, path)
        if change is None or not clone.is_cut_at(change.commit):
            return change

        # Git shows the commit at which the history was cut as if it had created all files.
        options = ["--quiet", "--no-tags", "--no-write-fetch-head", depth]
        refs = f"+refs/heads/{remote.branch}:{ref}"
        clone.run_with_remote("fetching the history", ["fetch", *options, "--", remote.url, refs])
    return _newest_in_clone(clone, ref, path)


def _newest_in_clone(clone: Clone, ref: str, path: str) -> Change | None:
    output = clone.run_locally("reading the history", [*_LOG, ref, "--", path])
    return _parse(output.decode(errors="replace"))


@dataclass(frozen=True)
class _Checkout:
    """A checkout at `top`, and variables of a repository with its objects and our configuration."""

    top: Path
    variables: Mapping[str, str]

    def git(self, arguments: Sequence[str]) -> str:
        return _git(self.top, self.variables, arguments)


@contextmanager
def _checkout(path: Path) -> Iterator[_Checkout | None]:
    """Yield the checkout that holds a path; None outside of a checkout, and without commits."""
    top = next((parent for parent in path.resolve().parents if (parent / ".git").exists()), None)
    with tempfile.TemporaryDirectory(prefix="caphv-") as folder:
        yield _open(top, Path(folder)) if top else None


def _open(top: Path, folder: Path) -> _Checkout | None:
    """Make a repository in a folder with the objects and the HEAD of the checkout at `top`."""
    theirs = environment(folder, top / ".git", "file")
    # `rev-parse` reads the checkout's configuration, and runs no program that it names.
    arguments = ["rev-parse", "HEAD", "--git-path", "objects", "--git-path", "shallow"]
    lines = _git(top, theirs, arguments).splitlines()
    if len(lines) != 3 or not lines[0]:
        return None
    head, objects, shallow = lines

    clone = folder / "clone.git"
    ours = environment(folder, clone, "file") | {"GIT_OBJECT_DIRECTORY": str(top / objects)}
    _git(top, ours, ["init", "--bare", "--quiet", "--template="])
    (clone / "HEAD").write_text(f"{head}\n")
    if (top / shallow).is_file():
        (clone / "shallow").write_bytes((top / shallow).read_bytes())
    return _Checkout(top, ours | {"GIT_WORK_TREE": str(top)})


def _git(top: Path, variables: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return what Git prints; empty when it fails."""
    try:
        out = run(
            "reading the history",
            ["-C", str(top), "--no-pager", *arguments],
            variables=variables,
            timeout=_TIMEOUT_SECONDS,
            redact=Redactor(()),
            local=False,
        )
    except GitError:
        return ""
    return out.decode(errors="replace")
