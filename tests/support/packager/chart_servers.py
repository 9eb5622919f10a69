"""A chart repository and an OCI registry with charts, over TLS on this machine."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

from tests.support.packager.git_servers import LOCALHOST, running

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_LAYER = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
_Answer = tuple[int, bytes, str]


@dataclass
class ChartServer:
    """Serves archives `<name>-<version>.tgz` below `/charts`: their index over HTTP, and as artefacts of a registry.

    With `password`, the registry asks for basic authentication as `helm`. With `swapped`, its archives have another
    content than their digest says. `paths` are the requests that were answered.
    """

    archives: dict[tuple[str, str], bytes]
    password: str = ""
    swapped: bool = False
    paths: list[str] = field(default_factory=list)
    host: str = ""

    @classmethod
    def of_folder(cls, folder: Path) -> ChartServer:
        found = {}
        for path in folder.glob("*.tgz"):
            name, _, version = path.stem.rpartition("-")
            found[name, version] = path.read_bytes()
        return cls(found)

    @property
    def repository(self) -> str:
        return f"https://{self.host}/charts"

    @property
    def registry(self) -> str:
        return f"oci://{self.host}/charts"

    @contextlib.contextmanager
    def serve(self, tls: ssl.SSLContext) -> Iterator[ChartServer]:
        served = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Print nothing."""

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                status, content, kind = served.answer(self.path, self.headers.get("Authorization", ""))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Docker-Content-Digest", _digest(content))
                if status == 401:
                    self.send_header("WWW-Authenticate", 'Basic realm="charts"')
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(content)

        server = ThreadingHTTPServer((LOCALHOST, 0), Handler)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        self.host = f"{LOCALHOST}:{server.server_address[1]}"
        with running(server):
            yield self

    def answer(self, path: str, authorization: str) -> _Answer:
        parts = path.strip("/").split("/")
        if parts[0] == "v2":
            expected = f"Basic {base64.b64encode(f'helm:{self.password}'.encode()).decode()}"
            if self.password and authorization != expected:
                return 401, b"{}", "application/json"
            found = self._of_registry(parts[1:])
        else:
            found = self._of_repository(parts)
        if found is None:
            return 404, b"{}", "application/json"
        self.paths.append(path)
        return found

    def _of_repository(self, parts: list[str]) -> _Answer | None:
        if parts == ["charts", "index.yaml"]:
            entries: dict[str, list[object]] = {}
            for (name, version), content in self.archives.items():
                row = {"apiVersion": "v2", "name": name, "version": version, "urls": [f"{name}-{version}.tgz"]}
                entries.setdefault(name, []).append({**row, "digest": _digest(content).partition(":")[2]})
            return 200, yaml.safe_dump({"apiVersion": "v1", "entries": entries}).encode(), "text/yaml"
        for (name, version), content in self.archives.items():
            if parts == ["charts", f"{name}-{version}.tgz"]:
                return 200, content, "application/gzip"
        return None

    def _of_registry(self, parts: list[str]) -> _Answer | None:
        if not parts:
            return 200, b"{}", "application/json"
        for (name, version), content in self.archives.items():
            config = json.dumps({"apiVersion": "v2", "name": name, "version": version}).encode()
            layers = [{"mediaType": _LAYER, "digest": _digest(content), "size": len(content)}]
            head = {"mediaType": _CONFIG, "digest": _digest(config), "size": len(config)}
            document = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": head, "layers": layers}
            manifest = json.dumps(document).encode()
            top = ["charts", name]
            if parts in ([*top, "manifests", version], [*top, "manifests", _digest(manifest)]):
                return 200, manifest, _MANIFEST
            if parts == [*top, "blobs", _digest(config)]:
                return 200, config, _CONFIG
            if parts == [*top, "blobs", _digest(content)]:
                return 200, content[::-1] if self.swapped else content, _LAYER
        return None


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
