"""A server of RKE2 or K3s in a folder, on which the steps of a restore run in a real shell.

Only the programs that would act on this computer are replaced: systemd, those that end processes,
and the distribution itself. `state` has a file for each thing that is so: `active`, `enabled`,
`reset-active`, `pods`; `active` has the state of the service.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from caphv.api.object import Obj
from sandbox.processes import pki

_TOOLS = (
    "sh",
    "sed",
    "grep",
    "mv",
    "cp",
    "mkdir",
    "touch",
    "readlink",
    "rm",
    "flock",
    "timeout",
    "basename",
    "cat",
    "tr",
    "date",
    "wc",
)
AUTHORITY = pki.CA.create("test").certificate.decode()
_HEAD = """#!/bin/sh
line="$(basename "$0") $*"
echo "$line" >> "$STATE/log"
case "$line" in $BROKEN) exit 1;; esac
"""
_PROGRAMS = {
    "systemctl": """
case "$line" in
  *"is-active --quiet caphv-etcd-restore-*") test -e "$STATE/reset-active";;
  *EnvironmentFiles*) sed 's/$/ (ignore_errors=yes)/' "$STATE/environment-files";;
  *show*) if test -e "$STATE/active"; then cat "$STATE/active"; else echo inactive; fi;;
  *disable*) rm -f "$STATE/enabled" "$STATE/active";;
  *enable*) touch "$STATE/enabled";;
  *start*) echo active > "$STATE/active"; touch "$STATE/pods"; mkdir -p "$DB/etcd/member"; rm -f "$DB/reset-flag";;
esac
""",
    "systemd-run": """
if test "$1" = --help; then echo "  --collect"; exit; fi
while test "${1#/}" = "$1"; do shift; done
exec "$@"
""",
    # A reset keeps its files when it is repeated.
    "rke2": """
mkdir -p "$DB/etcd/member"
echo restored > "$DB/etcd/content"
touch "$DB/reset-flag"
""",
    "pgrep": 'test -e "$STATE/pods"\n',
    "pkill": 'case "$line" in *"$MORTAL"*) rm -f "$STATE/pods";; esac\n',
    "sleep": "",
    # The server at any address answers.
    "curl": 'cat "$CACERTS"\n',
    "uname": 'echo "$NODE_NAME"\n',
}


class RestoreGuest:
    """A running server with a database."""

    def __init__(
        self,
        folder: Path,
        config: str = "token: x\n",
        program: str = "rke2",
        programs: Mapping[str, str] = MappingProxyType({}),
        name: str = "cp-2",
    ) -> None:
        self.folder = folder
        self.program = program
        self.name = name
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "config.yaml"
        self.config.write_text(config)
        self.state = folder / "state"
        self.data = folder / "data"
        self.database = self.data / "server" / "db"
        self.manifests = self.data / "agent" / "pod-manifests"
        for made in (self.state, self.database / "etcd" / "member", self.data / "server" / "tls", self.manifests):
            made.mkdir(parents=True)
        (self.database / "etcd" / "content").write_text("old\n")
        self.authority = self.data / "server" / "tls" / "server-ca.crt"
        self.authority.write_text(AUTHORITY)
        # What the server that it joins answers; a file that does not exist for no answer.
        self.cacerts = self.authority
        for name in ("etcd", "kube-apiserver", "own"):
            (self.manifests / f"{name}.yaml").touch()
        for name in ("enabled", "pods", "log"):
            (self.state / name).touch()
        (self.state / "active").write_text("active\n")
        self.mounts, self.sockets, self.environment = folder / "mounts", folder / "tcp", folder / "environment"
        self.environment.write_text("RKE2_SELINUX=true\n")
        (self.state / "environment-files").write_text(f"{folder}/none\n{self.environment}\n")
        self.mounts.write_text("/dev/vda1 / ext4 rw 0 0\n")
        self.sockets.write_text("   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00\n")

        self.programs = folder / "bin"
        self.programs.mkdir()
        for name in _TOOLS:
            path = shutil.which(name)
            assert path is not None, f"{name} is not installed"
            (self.programs / name).symlink_to(path)
        for name, text in {**_PROGRAMS, **programs}.items():
            file = self.programs / (program if name == "rke2" else name)
            file.write_text(_HEAD + text)
            file.chmod(0o755)

    @property
    def control_plane(self) -> Obj:
        return {"spec": {"agentConfig": {"dataDir": str(self.data)}}}

    def run(self, script: str, broken: str = "nothing", mortal: str = "-TERM") -> subprocess.CompletedProcess[str]:
        """Run a script as SSH does, with a program that fails, and with the signal that ends Pods."""
        for path, own in {
            f"/etc/rancher/{self.program}/config.yaml": self.config,
            f"/var/lib/rancher/{self.program}": self.data,
            "/run/caphv-etcd-restore.lock": self.folder / "lock",
            "/proc/net/tcp /proc/net/tcp6": self.sockets,
            "/proc/self/mounts": self.mounts,
        }.items():
            script = script.replace(path, str(own))
        environment = {
            "PATH": str(self.programs),
            "STATE": str(self.state),
            "DB": str(self.database),
            "NODE_NAME": self.name,
            "CACERTS": str(self.cacerts),
            "BROKEN": broken,
            "MORTAL": mortal,
        }
        shell = os.path.realpath(self.programs / "sh")
        return subprocess.run(
            [shell, "-s"], input=script, env=environment, check=False, text=True, capture_output=True, timeout=60
        )

    def has(self, name: str) -> bool:
        """Return whether something is so, for example `active`."""
        return (self.state / name).exists()

    @property
    def log(self) -> str:
        """What ran, a line for each program with its arguments."""
        return (self.state / "log").read_text()

    @property
    def resets(self) -> int:
        return sum(line.startswith(f"{self.program} server --cluster-reset") for line in self.log.splitlines())

    @property
    def content(self) -> str:
        """What the present database has: `old`, `restored`, or nothing."""
        file = self.database / "etcd" / "content"
        return file.read_text().strip() if file.exists() else ""

    @property
    def joined(self) -> list[str]:
        return [line for line in self.config.read_text().splitlines() if line.startswith("server:")]
