"""A repository that is pushed to, checked from outside with plain Git, and folders to push to it."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packager.contents.folders import Wanted, compare_folders
from packager.git.commit import Reason
from packager.git.folder import Folder
from packager.git.pruning import Pruning
from packager.git.repository import Repository
from packager.git.result import Result
from packager.planning.commitplan import log_result
from packager.tree import CLUSTER_ROOT

CLUSTERS = CLUSTER_ROOT
SYNCED = Pruning(complete=True, budget=100)
BUNDLES = ("ccm", "cni", "csi")
_AUTHOR = {f"GIT_{role}_{what}": "other@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_ENVIRONMENT = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", **_AUTHOR}


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> str:
    return _git(folder, *arguments, stdin=stdin).decode().strip()


def _git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, env=_ENVIRONMENT)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@dataclass
class Origin:
    """A bare repository."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Origin:
        folder.mkdir(parents=True)
        git(folder, "init", "--quiet", "--bare", "--initial-branch=main")
        with (folder / "config").open("a") as config:
            # Since 2.47, Git's maintenance continues in the background after a push has ended.
            config.write("[receive]\n\tautogc = false\n")
        return cls(folder)

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def files(self, branch: str = "main") -> dict[str, str]:
        """Contents by path; a symbolic link's is its target."""
        # One process, however many files: tests look again and again until they see what they wait for.
        content = _git(self.folder, "archive", "--format=tar", f"{branch}^{{tree}}")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            files = {entry.name: entry.linkname for entry in archive if entry.issym()}
            for entry in archive:
                if entry.isfile() and (file := archive.extractfile(entry)):
                    files[entry.name] = file.read().decode().strip()
        return files

    def tree(self, branch: str = "main") -> str:
        return git(self.folder, "rev-parse", f"{branch}^{{tree}}")

    def head(self, branch: str = "main") -> str:
        return git(self.folder, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")

    def branches(self) -> list[str]:
        return git(self.folder, "for-each-ref", "--format=%(refname:short)", "refs/heads").splitlines()

    def count(self, branch: str = "main") -> int:
        return int(git(self.folder, "rev-list", "--count", branch))

    def message(self, branch: str = "main") -> str:
        return git(self.folder, "log", "-1", "--format=%B", branch)

    def push(
        self, files: Mapping[str, str], branch: str = "main", mode: str = "100644", *, replace: bool = False
    ) -> str:
        """Commit as another client; with `again` without any history."""
        known = subprocess.run(
            ["git", "-C", str(self.folder), "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}"],
            capture_output=True, check=False, env=_ENVIRONMENT,
        )  # fmt: skip
        parent = "" if replace else known.stdout.decode().strip()
        lines = [f"reset refs/heads/{branch}\n\n"] if replace else []
        lines += [f"commit refs/heads/{branch}\ncommitter other <other@example.com> 1 +0000\ndata 4\nmine\n"]
        lines += [f"from {parent}\n"] if parent else []
        for path, content in files.items():
            lines.append(f"M {mode} inline {path}\ndata {len(content.encode())}\n{content}\n")
        lines.append("done\n")
        git(self.folder, "fast-import", "--quiet", "--done", "--force", stdin="".join(lines).encode())
        return self.head(branch)

    def remove_branch(self, branch: str) -> None:
        git(self.folder, "update-ref", "-d", f"refs/heads/{branch}")

    def remove(self, path: str) -> None:
        """Commit as another client, without a file."""
        lines = ["commit refs/heads/main\ncommitter other <other@example.com> 1 +0000\ndata 0\n"]
        lines += [f"from refs/heads/main^0\nD {path}\ndone\n"]
        git(self.folder, "fast-import", "--quiet", "--done", stdin="".join(lines).encode())


def damage_last_file(clone: Path) -> None:
    """Damage the content of the last file in a clone: Git announces its size, and cannot unpack all of it."""
    (pack,) = clone.glob("objects/pack/*.pack")
    content = bytearray(pack.read_bytes())
    content[-500:-100] = bytes(400)
    pack.chmod(0o600)
    pack.write_bytes(content)


def folder(cluster: str, mtu: int = 1500, bundles: tuple[str, ...] = BUNDLES) -> Folder:
    return Folder({f"{bundle}/fleet.yaml": f"name: {cluster}-{bundle}\nmtu: {mtu}\n".encode() for bundle in bundles})


def wanted(*names: str, mtu: int = 1500) -> dict[str, Folder]:
    return {name: folder(name, mtu) for name in names}


def put(
    repository: Repository, folders: Mapping[str, Folder], pruning: Pruning = SYNCED, why: str = "a test"
) -> Result:
    everything: Wanted = {CLUSTERS: folders}
    return log_result(repository.commit(lambda snapshot: compare_folders(snapshot, everything, pruning), Reason(why)))


def paths(*clusters: str) -> set[str]:
    """What these clusters have in a repository."""
    files = [*(f"{bundle}/fleet.yaml" for bundle in BUNDLES), ".caphv-files"]
    return {f"clusters/{cluster}/{file}" for cluster in clusters for file in files}
