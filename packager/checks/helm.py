"""The real `helm`: pulls charts and renders them, in a separate environment and with a time limit.

`helm template` reads no cluster. Charts may be hostile: it runs nothing of theirs, and its output is bounded.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import orjson

from caphv.api.object import Obj
from caphv.runtime.text import Limits, TextError, load_yaml
from packager.checks.contents import ChartRef, Release
from packager.git.paths import fault_of
from packager.tree import Tree

_SECONDS = 120.0
_LARGEST = 32 * 1024 * 1024
_LIMITS = Limits(size=_LARGEST, nodes=1_000_000, seconds=30.0)
_SOURCE = re.compile(r"^# Source: [^/\n]*/(.*)$", re.MULTILINE)
_SEPARATOR = re.compile(r"^---\s*$", re.MULTILINE)
_PASSED_ON = ("PATH", "HOME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "HELM_REGISTRY_CONFIG", "DOCKER_CONFIG")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")


class HelmError(Exception):
    """Helm cannot render or pull a chart; the message is Helm's own."""


class Helm:
    """One program `helm`, and a folder for what it pulls. Safe to use from several threads."""

    def __init__(self, program: Path, scratch: Path) -> None:
        self._program, self._scratch = program, scratch

    def pull(self, chart: ChartRef) -> Path:
        """Download a chart, and return its archive. Raises HelmError."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            address = [f"{chart.repo}/{chart.name}"]
            if not chart.repo.startswith("oci://"):
                address = [chart.name, "--repo", chart.repo]
            self._run(["pull", *address, "--version", chart.version, "--destination", folder])
            (archive,) = Path(folder).iterdir()
            return archive.rename(self._scratch / f"{archive.name}-{Path(folder).name}.tgz")

    def write(self, files: Tree, name: str) -> Path:
        """Write the files of a chart into a folder for `template`. Raises HelmError for a path outside of it."""
        top = self._scratch / name
        for path, content in files.items():
            if fault := fault_of(path):
                raise HelmError(f"{path}: {fault}")
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(content)
        return top

    def template(
        self, chart: Path, release: Release, values: Obj, version: str, served: Iterable[str]
    ) -> list[tuple[str, Obj]]:
        """Return the objects of a release with the files of the chart that make them; tests are left out.

        `version` is that of Kubernetes, and may be empty; `served` are the API versions that templates may ask for.
        """
        options = ["--kube-version", version] if version else []
        options += [option for one in sorted(served) for option in ("--api-versions", one)]
        arguments = ["template", release.name, str(chart), "--namespace", release.namespace, "--values", "-"]
        text = self._run([*arguments, "--include-crds", "--skip-tests", *options], orjson.dumps(values))
        return list(_objects(text))

    def _run(self, arguments: Sequence[str], stdin: bytes = b"") -> str:
        passed = {name: os.environ[name] for name in (*_PASSED_ON, *_PROXIES) if name in os.environ}
        own = {f"HELM_{name}_HOME": str(self._scratch / name.lower()) for name in ("CONFIG", "CACHE", "DATA")}
        with tempfile.TemporaryFile(dir=self._scratch) as output:
            try:
                done = subprocess.run(
                    [str(self._program), *arguments],
                    env={**passed, **own, "KUBECONFIG": "/dev/null"},
                    input=stdin,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    timeout=_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise HelmError(f"helm {arguments[0]} took more than {_SECONDS:g} s") from None
            if done.returncode:
                raise HelmError(_message(done.stderr.decode(errors="replace")))
            if output.tell() > _LARGEST:
                raise HelmError(f"the chart renders to more than {_LARGEST >> 20} MiB")
            output.seek(0)
            return output.read().decode(errors="replace")


def _message(text: str) -> str:
    """Helm's error in one line, without its warnings."""
    lines = [line for line in text.splitlines() if line and not line.startswith(("WARNING", "level="))]
    return " ".join(" ".join(lines).removeprefix("Error: ").split())[:1000] or "helm failed without a message"


def _objects(text: str) -> Iterator[tuple[str, Obj]]:
    for part in _SEPARATOR.split(text):
        found = _SOURCE.search(part)
        try:
            obj = load_yaml(part, _LIMITS)
        except TextError as error:
            raise HelmError(f"{found[1] if found else 'the output'} {error}") from None
        if isinstance(obj, dict) and obj.get("kind"):
            items = obj.get("items") if str(obj["kind"]).endswith("List") else None
            for one in items if isinstance(items, list) else [obj]:
                yield found[1] if found else "", one
