"""The real `helm`, which pulls and renders charts in its own environment and with a time limit.

Charts may be hostile. `helm template` reads no cluster and runs no program of a chart, and its
output is bounded.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from caphv.api.object import Obj
from caphv.runtime.text import Limits, TextError, load_yaml
from packager.checks.contents import ChartRef, Release
from packager.git.paths import fault_of
from packager.tree import Tree

_TIMEOUT_SECONDS = 120.0
_MAX_BYTES = 32 * 1024 * 1024
_LIMITS = Limits(size=_MAX_BYTES, nodes=1_000_000, seconds=30.0)
_SOURCE = re.compile(r"^# Source: [^/\n]*/(.*)$", re.MULTILINE)
_SEPARATOR = re.compile(r"^---\s*$", re.MULTILINE)
_PASSED_ON = (
    "PATH",
    "HOME",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HELM_REGISTRY_CONFIG",
    "DOCKER_CONFIG",
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)


class HelmError(Exception):
    """Helm cannot render or pull a chart; the message is Helm's own."""


class TemplateObject(NamedTuple):
    """An object of a release, and the file of its template in the chart."""

    file: str
    obj: Obj


class Helm:
    """One program `helm`, and a folder for charts that it pulls. Thread-safe."""

    def __init__(self, program: Path, scratch: Path) -> None:
        self._program = program
        self._scratch = scratch

    def pull(self, chart: ChartRef) -> Path:
        """Download a chart, and return its archive. Raises `HelmError`."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            address = [f"{chart.repo}/{chart.name}"]
            if not chart.repo.startswith("oci://"):
                address = [chart.name, "--repo", chart.repo]
            self._run(["pull", *address, "--version", chart.version, "--destination", folder])
            (archive,) = Path(folder).iterdir()
            # Keep it under a unique name, because two repositories may have charts of one name and
            # version.
            return archive.rename(self._scratch / f"{archive.name}-{Path(folder).name}.tgz")

    def write(self, files: Tree, name: str) -> Path:
        """Write a chart into a folder for `template`.

        Raises `HelmError` for a path outside of it.
        """
        top = self._scratch / name
        for path, content in files.items():
            if fault := fault_of(path):
                raise HelmError(f"{path}: {fault}")
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(content)
        return top

    def template(
        self, chart: Path, release: Release, values: Obj, version: str, served: Iterable[str]
    ) -> list[TemplateObject]:
        """Return the objects of a release, each with its template in the chart, without tests.

        `version` is the Kubernetes version, and may be empty. `served` are the API versions that
        templates see in `.Capabilities.APIVersions`.
        """
        arguments = ["template", release.name, str(chart), "--namespace", release.namespace]
        arguments += ["--values", "-", "--include-crds", "--skip-tests"]
        if version:
            arguments += ["--kube-version", version]
        for api_version in sorted(served):
            arguments += ["--api-versions", api_version]

        text = self._run(arguments, orjson.dumps(values))
        return list(_objects(text))

    def _run(self, arguments: Sequence[str], stdin: bytes = b"") -> str:
        variables = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        for name in ("CONFIG", "CACHE", "DATA"):
            variables[f"HELM_{name}_HOME"] = str(self._scratch / name.lower())
        # Templates with `lookup` must find no cluster.
        variables["KUBECONFIG"] = "/dev/null"

        # Use a file and not a pipe, so that hostile output fills the scratch folder and not memory.
        with tempfile.TemporaryFile(dir=self._scratch) as output:
            try:
                process = subprocess.run(
                    [str(self._program), *arguments],
                    env=variables,
                    input=stdin,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    timeout=_TIMEOUT_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise HelmError(
                    f"helm {arguments[0]} took more than {_TIMEOUT_SECONDS:g} s"
                ) from None

            if process.returncode:
                raise HelmError(_message(process.stderr.decode(errors="replace")))
            if output.tell() > _MAX_BYTES:
                raise HelmError(f"the chart renders to more than {_MAX_BYTES >> 20} MiB")
            output.seek(0)
            return output.read().decode(errors="replace")


def _message(text: str) -> str:
    """Return Helm's error in one line, without its warnings."""
    lines = [
        line for line in text.splitlines() if line and not line.startswith(("WARNING", "level="))
    ]
    message = " ".join(" ".join(lines).removeprefix("Error: ").split())
    return message[:1000] or "helm failed without a message"


def _objects(text: str) -> Iterator[TemplateObject]:
    """Yield the objects in Helm's output, each with the file of its template."""
    for part in _SEPARATOR.split(text):
        source = _SOURCE.search(part)
        file = source[1] if source else ""
        try:
            obj = load_yaml(part, _LIMITS)
        except TextError as error:
            raise HelmError(f"{file if source else 'the output'} {error}") from None
        if isinstance(obj, dict) and obj.get("kind"):
            # A chart may also write a List of objects.
            items = obj.get("items") if str(obj["kind"]).endswith("List") else None
            for item in items if isinstance(items, list) else [obj]:
                if isinstance(item, dict):
                    yield TemplateObject(file, item)
