"""The clone on disk. It is only a cache: everything in it can be fetched again.

It is bare and shallow, and one process at a time owns it, by a lock on its folder that ends with the process and its
children. The next owner cleans up after a killed process; a corrupt clone is recreated.
"""

from __future__ import annotations

import configparser
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import git
from git.exc import GitError as GitPythonError

from packager.git.credentials import PRIVATE, Credentials, handed_over, private_file
from packager.git.errors import CloneLocked, CorruptClone, GitError, Redactor, UnusableContent, UnverifiedCommit
from packager.git.process import environment, run
from packager.git.remote import Remote
from packager.git.signers import SIGNATURE_HEADER, Signers, refusal
from packager.git.snapshot import Objects

_CLONE = "clone.git"
_MIB = 1024 * 1024


class Clone:
    """A bare repository below `folder`, and calls of Git in it. Between `open` and `close` it holds the lock."""

    def __init__(self, remote: Remote, folder: Path, credentials: Credentials) -> None:
        self.remote = remote
        self.credentials = credentials
        # Git runs in folders of its own, where a relative path would lead elsewhere.
        self._folder = folder.absolute()
        self._path = self._folder / _CLONE
        self._variables = environment(self._folder, self._path, remote.scheme)
        self._redact = Redactor(credentials.secrets)
        self._lock: int | None = None
        self._repository: git.Repo | None = None
        self._objects: Objects | None = None

    def open(self) -> None:
        """Take the lock and remove what killed processes left. Raises CloneLocked."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self._folder / "lock", self.remote.timeout)
        _clean(self._folder, self._path)

    def close(self) -> None:
        """Release the lock and end the process that reads objects."""
        self._close_objects()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Delete everything: the next access recreates it."""
        self._close_objects()
        shutil.rmtree(self._path, ignore_errors=True)

    @property
    def objects(self) -> Objects:
        """The objects of the clone, which is created if it does not exist. Raises CorruptClone."""
        if self._objects is None:
            if not self._path.is_dir():
                fresh = self._folder / f"{_CLONE}.new"
                shutil.rmtree(fresh, ignore_errors=True)
                arguments = ["init", "--bare", "--quiet", "--template="]
                self.locally("creating the clone", arguments, variables={"GIT_DIR": str(fresh)})
                fresh.rename(self._path)
            try:
                self._repository = git.Repo(self._path, expand_vars=False)
            except (GitPythonError, OSError, ValueError, configparser.Error) as error:
                raise CorruptClone(f"the clone cannot be opened: {type(error).__name__}") from None
            # GitPython passes on this process's environment, whose GIT_ variables may point to another repository.
            strange = dict.fromkeys((name for name in os.environ if name.startswith("GIT_")), "")
            own = {"GIT_COMMON_DIR": str(self._path), "GIT_OBJECT_DIRECTORY": str(self._path / "objects")}
            self._repository.git.update_environment(**{**strange, **own, **self._variables})
            self._objects = Objects(self._repository)
        return self._objects

    @property
    def is_shallow(self) -> bool:
        """Whether its history was cut once; later fetches then bring only what came after."""
        return (self._path / "shallow").exists()

    def is_cut_at(self, commit: str) -> bool:
        """Whether the history was cut at a commit: what came before it is not known."""
        shallow = self._path / "shallow"
        return shallow.exists() and commit in shallow.read_text(encoding="ascii").split()

    def ref(self, name: str) -> str:
        """Return the commit of a ref of the clone, empty where there is none."""
        out = self.locally("reading the clone", ["for-each-ref", "--format=%(objectname)", name])
        return out.decode().strip()

    def locally(
        self,
        action: str,
        arguments: Sequence[str],
        *,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
    ) -> bytes:
        """Run Git without the remote. Raises DiskFull, or CorruptClone for any other failure."""
        return self._run(action, arguments, stdin, (), variables or {}, local=True)

    def remotely(self, action: str, arguments: Sequence[str], *, with_messages: bool = False) -> bytes:
        """Run Git with credentials for the remote, within the limit for what it brings. Raises GitErrors.

        `with_messages` adds what Git and the remote say on standard error.
        """
        try:
            with handed_over(self.remote, self.credentials, self._folder) as (variables, settings):
                return self._run(action, arguments, b"", settings, variables, local=False, with_messages=with_messages)
        except GitError:
            received = max((path.stat().st_size for path in self._path.glob("objects/**/tmp_*")), default=0)
            # Each attempt would leave another one.
            _remove_leftovers(self._path)
            if received >= self.remote.max_size * _MIB:
                raise UnusableContent(
                    f"{action} ({self.remote.shown}) failed: it brings more than --git-max-size {self.remote.max_size} "
                    "(MiB); remove large files from the branch, or raise --git-max-size"
                ) from None
            raise

    def same_tree(self, commit: str, text: str, variables: Mapping[str, str], parent: str = "") -> str:
        """Write a commit with the files of another one, signed if there is a key; return its id. Raises GitError."""
        arguments = [*(["-p", parent] if parent else []), f"{commit}^{{tree}}"]
        if not self.credentials.signing_key:
            command = ["commit-tree", *arguments]
            return (
                self.locally("writing the commit", command, stdin=text.encode(), variables=variables).decode().strip()
            )
        with self._private("signing") as private:
            key = private_file(private, "key", self.credentials.signing_key)
            settings = ["gpg.format=ssh", f"user.signingKey={key}"]
            command = ["commit-tree", "-S", *arguments]
            out = self._run("signing the commit", command, text.encode(), settings, variables, local=False)
        return out.decode().strip()

    def verify(self, commit: str, signers: Signers) -> str:
        """Return who signed a commit. Raises UnverifiedCommit unless it was a listed signer."""
        # Not in this folder: gpg refuses a home whose path is longer than that of a socket may be.
        with tempfile.TemporaryDirectory(prefix="caphv-signers-") as private:
            variables, settings = signers.settings(Path(private))

            def git(*arguments: str) -> str:
                out = self._run("verifying the commit", arguments, b"", settings, variables, local=False)
                return out.decode(errors="replace")

            try:
                git("verify-commit", commit)
            except GitError:
                verdict, key = git("log", "-1", "--format=%G?%n%GK", commit, "--").splitlines()[:2]
                if verdict == "N" and SIGNATURE_HEADER in git("cat-file", "commit", commit).partition("\n\n")[0]:
                    # Git says the same where it has no program for the format.
                    verdict = "E"
                raise UnverifiedCommit(refusal(verdict, key)) from None
            return git("log", "-1", "--format=%GS", commit, "--").strip()

    @contextlib.contextmanager
    def _private(self, name: str) -> Iterator[Path]:
        private = self._folder / f"{PRIVATE}{name}"
        private.mkdir(mode=0o700)
        try:
            yield private
        finally:
            shutil.rmtree(private, ignore_errors=True)

    def _run(
        self,
        action: str,
        arguments: Sequence[str],
        stdin: bytes,
        settings: Sequence[str],
        variables: Mapping[str, str],
        *,
        local: bool,
        with_messages: bool = False,
    ) -> bytes:
        if self._lock is None:
            raise RuntimeError("the clone is not open")
        return run(
            f"{action} ({self.remote.shown})",
            arguments,
            variables={**self._variables, **variables},
            settings=settings,
            stdin=stdin,
            timeout=self.remote.timeout,
            redact=self._redact,
            local=local,
            most_bytes=0 if local else self.remote.max_size * _MIB,
            with_messages=with_messages,
            # Children of a killed process may still write for a while: they hold the lock, too.
            inherit=(self._lock,),
        )

    def _close_objects(self) -> None:
        if self._repository is not None:
            self._repository.close()
        self._repository = self._objects = None


def _locked(path: Path, timeout: float) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(descriptor)
                raise CloneLocked(
                    f"{path.parent} is in use by another process; give each its own cache folder"
                ) from None
            time.sleep(0.05)
        else:
            return descriptor


def _clean(folder: Path, clone: Path) -> None:
    for left in folder.glob(f"{PRIVATE}*"):
        shutil.rmtree(left, ignore_errors=True)
    _remove_leftovers(clone)


def _remove_leftovers(clone: Path) -> None:
    """Remove what a killed Git process left."""
    for pattern in ("**/*.lock", "objects/**/tmp_*", "fast_import_crash_*"):
        for path in list(clone.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
