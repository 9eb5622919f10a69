"""A Pod as a kubelet would run it, as far as that needs no container engine: for what a Deployment asks of its image.

One container, of the image that the Dockerfile describes: the stages that build are run (`tests.support.image`). The
controller has the root file system that they assemble; the rest of the packager's is this machine's /usr and /etc. The
process has namespaces of its own for users and mounts, a read-only root, an unprivileged user without capabilities, the
volumes, arguments and environment of the Pod, and nothing else. The network is that of the machine.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from caphv.api.object import CONFIG_MAPS, SECRETS, Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.errors import NotFound
from sandbox.processes import children
from sandbox.processes.apiserver import ApiServer
from sandbox.processes.children import Process
from tests.support.image import controller, stages
from tests.support.paths import CHECKOUT
from tests.support.process import LOOPBACK

_TOKENS = "/var/run/secrets/kubernetes.io/serviceaccount"
# As root of namespaces of its own it builds the root, and then becomes the user of the Pod, who may do nothing of that.
_ROOT = """\
set -e
# Of pivot_root, which not every user's PATH has.
PATH=$PATH:/usr/sbin:/sbin
mount -t tmpfs root {root}
cd {root}
mkdir usr etc proc dev old
mount --rbind {image}/usr usr
mount -o remount,bind,ro usr
# A copy, because volumes may be mounted below it; what only root may read is not needed.
cp --archive {image}/etc/. etc 2>/dev/null || true
for folder in bin lib lib64 sbin; do [ ! -e {image}/$folder ] || ln -s usr/$folder $folder; done
mount --rbind /proc proc
mount --rbind /dev dev
{mounts}
pivot_root . old
cd /
exec {python} -I -c {enter} {user} {group} "$@"
"""
# In Python, because the controller's root has no other program: it leaves the former root, makes its own read-only, and
# becomes the user of the Pod. The last argument but the command is the environment.
_ENTER = """\
import ctypes, json, os, sys
user, group, variables, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
check(libc.umount2(b"/old", 2))
os.rmdir("/old")
check(libc.mount(None, b"/", None, 4096 | 32 | 1, None))
check(libc.unshare(0x10000000))
for name, text in ("setgroups", "deny"), ("uid_map", user + " 0 1"), ("gid_map", group + " 0 1"):
    with open("/proc/self/" + name, "w") as file:
        file.write(text)
environment = json.loads(variables)
os.environ["PATH"] = environment["PATH"]
os.execvpe(command[0], command, environment)
"""


def require_namespaces() -> None:
    """Skip a test where this user may not make namespaces, as on machines that forbid it to all but root."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no user namespaces here: {done.stderr.strip()}")


@dataclass
class Pod:
    """One Pod of a Deployment; `folder` holds what is mounted, `prefix` is what the image has from its build stage.

    Where `target` is the controller, all of its root is from the stages that build.
    """

    server: ApiServer
    deployment: Obj
    prefix: Path
    folder: Path
    target: str = "controller"
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> Obj:
        """The Pod's own."""
        return dict(self.deployment["spec"]["template"]["spec"])

    @property
    def container(self) -> Obj:
        """Its only container."""
        (container,) = self.spec["containers"]
        return dict(container)

    @property
    def image(self) -> Path | None:
        """Root file system of its image, None for that of this machine."""
        return controller(self.prefix) if self.target == "controller" else None

    @property
    def python(self) -> str:
        """Its interpreter."""
        return f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"

    @property
    def namespace(self) -> str:
        """Where it is."""
        return str(self.deployment["metadata"]["namespace"])

    async def mount(self, client: ApiClient) -> None:
        """Fetch what its volumes hold, and a token of its account."""
        for volume in self.spec["volumes"]:
            if "secret" in volume:
                self._write(self.folder / volume["name"], await self._secret(client, volume["secret"]))
            elif "configMap" in volume:
                config_map = await client.get(CONFIG_MAPS, volume["configMap"]["name"], self.namespace)
                content = {name: value.encode() for name, value in config_map["data"].items()}
                self._write(self.folder / volume["name"], content)
        for source in self.container.get("envFrom", ()):
            config_map = await client.get(CONFIG_MAPS, source["configMapRef"]["name"], self.namespace)
            self.settings |= config_map["data"]
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.spec['serviceAccountName']}/token"
        answer = await client.request("POST", path, body={"spec": {}})
        token = {"token": answer["status"]["token"].encode(), "namespace": self.namespace.encode()}
        self._write(self.folder / "account", {**token, "ca.crt": self.server.ca.certificate})

    async def _secret(self, client: ApiClient, source: Obj) -> dict[str, bytes]:
        try:
            secret = await client.get(SECRETS, source["secretName"], self.namespace)
        except NotFound:
            if source.get("optional"):
                return {}
            raise
        return {name: base64.b64decode(value) for name, value in secret["data"].items()}

    def start(self) -> Process:
        """Start it with the arguments of the Pod."""
        return children.start(self.folder, self.container["name"], self._command(*self._entrypoint()))

    def run(self, *command: str) -> str:
        """Run something else in it, whatever its exit status; answers what it printed, errors included."""
        done = subprocess.run(
            self._command(*command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.stdout

    def port(self, name: str) -> int:
        """A port of its container."""
        return next(int(port["containerPort"]) for port in self.container["ports"] if port["name"] == name)

    def _command(self, *command: str) -> list[str]:
        root = self.folder / "root"
        root.mkdir(exist_ok=True)
        context = self.spec["securityContext"]
        security = self.container["securityContext"]
        assert (context["runAsNonRoot"], security["readOnlyRootFilesystem"]) == (True, True)
        assert security["allowPrivilegeEscalation"] is False
        script = _ROOT.format(
            root=shlex.quote(str(root)),
            image=shlex.quote(str(self.image)) if self.image else "",
            mounts="\n".join(self._mounts()),
            python=shlex.quote(self.python),
            enter=shlex.quote(_ENTER),
            user=context["runAsUser"],
            group=context["runAsGroup"],
        )
        outer = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script, "bash"]
        return [*outer, json.dumps(self._environment()), *command]

    def _mounts(self) -> list[str]:
        """What the image and the Pod put into the root, as lines of a shell."""
        python = Path(sys.base_prefix)
        source = Path(f"{self.image or ''}{python}")
        lines = [] if python.is_relative_to("/usr") else [_bind(source, python)]
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(python)}))
        if packages.is_dir() and not self.image:
            # Not those of the image.
            lines.append(f"mount -t tmpfs none .{shlex.quote(str(packages))}")
        if not self.image:
            lines.append(_bind(self.prefix, Path("/usr/local")))
        link = self.prefix.parent.parent / "programs" / "python"
        volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        # Outer folders first.
        for mount in sorted(self.container["volumeMounts"], key=lambda mount: str(mount["mountPath"])):
            lines.append(self._volume(volumes[mount["name"]], Path(mount["mountPath"])))
        lines.append(_bind(self.folder / "account", Path(_TOKENS)))
        # The first line of the entry point names it.
        lines += [f"mkdir -p .{shlex.quote(str(link.parent))}", f"ln -s {self.python} .{shlex.quote(str(link))}"]
        return lines

    def _volume(self, volume: Obj, place: Path) -> str:
        if "emptyDir" not in volume:
            return _bind(self.folder / volume["name"], place)
        limit = re.fullmatch(r"(\d+)([KMG])i", volume["emptyDir"].get("sizeLimit", "1Gi"))
        assert limit
        options = f"size={limit[1]}{limit[2].lower()},mode=1777"
        return f"mkdir -p .{place}\nmount -t tmpfs -o {options} {volume['name']} .{place}"

    @property
    def _stage(self) -> list[str]:
        return stages((CHECKOUT / "Dockerfile").read_text())[self.target]

    def _environment(self) -> dict[str, str]:
        packages = next(self.prefix.glob("lib/python*/site-packages")).relative_to(self.prefix)
        (line,) = [line for line in self._stage if line.startswith("ENV ")]
        found = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": f"/usr/local/{packages}"}
        found |= dict(word.split("=", 1) for word in line.removeprefix("ENV ").split())
        found |= {"KUBERNETES_SERVICE_HOST": self.server.address, "KUBERNETES_SERVICE_PORT": str(self.server.port)}
        found |= self.settings
        for variable in self.container["env"]:
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            found[variable["name"]] = self.namespace if field == "metadata.namespace" else variable.get("value", "")
        # By it the process is found again when a test fails.
        return {**found, children.MARK: str(self.folder)}

    def _entrypoint(self) -> list[str]:
        (line,) = [line for line in self._stage if line.startswith("ENTRYPOINT ")]
        arguments = self.container["args"]
        return [
            *json.loads(line.removeprefix("ENTRYPOINT ")),
            *arguments,
            *([LOOPBACK] if arguments[0] == "run" else []),
        ]

    def _write(self, target: Path, files: dict[str, bytes]) -> None:
        """Files of a volume, by a link that can be moved, as a kubelet has them."""
        version = target / "..first"
        version.mkdir(parents=True)
        (target / "..data").symlink_to(version.name)
        for name, content in files.items():
            (version / name).write_bytes(content)
            os.symlink(Path("..data") / name, target / name)


def _bind(source: Path, target: Path) -> str:
    what, where = shlex.quote(str(source)), f".{shlex.quote(str(target))}"
    return f"mkdir -p {where}\nmount --bind {what} {where}\nmount -o remount,bind,ro {where}"
