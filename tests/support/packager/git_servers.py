"""Real Git servers for tests, on ports of their own: `git daemon`, `git http-backend` behind HTTP, and ssh."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ipaddress
import os
import select
import shlex
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer
from typing import Any

import asyncssh
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandbox.processes import children

LOCALHOST = "127.0.0.1"


@contextlib.contextmanager
def running(server: BaseServer) -> Iterator[None]:
    """Answer requests in a thread for as long as the block lasts."""
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def git_daemon(folder: Path) -> Iterator[str]:
    """Serve all repositories of a folder, for everybody to read and write; gives the URL of the folder."""
    # None that the kernel may give to a connection before Git listens.
    (port,) = children.free_ports(1)
    options = [f"--listen={LOCALHOST}", f"--port={port}", f"--base-path={folder}", "--export-all", "--reuseaddr"]
    process = subprocess.Popen(
        ["git", "daemon", *options, "--enable=receive-pack", "--max-connections=0", str(folder)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_for(port)
        yield f"git://{LOCALHOST}:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_for(port: int) -> None:
    until = time.monotonic() + 30
    while True:
        with contextlib.suppress(OSError), socket.create_connection((LOCALHOST, port), 1):
            return
        if time.monotonic() > until:
            raise TimeoutError(f"nothing listens on port {port}")
        time.sleep(0.02)


@dataclass
class HttpBackend:
    """`git http-backend` behind basic authentication; `seen` holds the Authorization headers that came."""

    folder: Path
    user: str = "packager"
    password: str = ""
    redirect: str = ""
    seen: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""

    @contextlib.contextmanager
    def serve(self, tls: ssl.SSLContext | None = None) -> Iterator[HttpBackend]:
        backend = self

        class Handler(_GitHandler):
            served = backend

        server = ThreadingHTTPServer((LOCALHOST, 0), Handler)
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://{LOCALHOST}:{server.server_address[1]}"
        with running(server):
            yield self


class _GitHandler(BaseHTTPRequestHandler):
    served: HttpBackend
    protocol_version = "HTTP/1.1"

    def log_request(self, *_: object) -> None:
        pass

    def log_error(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self._body()
        served = self.served
        header = self.headers.get("Authorization", "")
        served.paths.append(self.path)
        if header:
            served.seen.append(header)
        if served.redirect:
            self._reply(302, {"Location": served.redirect + self.path}, b"")
            return
        expected = base64.b64encode(f"{served.user}:{served.password}".encode()).decode()
        if served.password and header != f"Basic {expected}":
            self._reply(401, {"WWW-Authenticate": 'Basic realm="git"'}, f"wrong: {header}".encode())
            return
        # A proxy is asked for whole addresses.
        path = "/" + self.path.split("://", 1)[-1].split("/", 1)[-1]
        path, _, query = path.partition("?")
        variables = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(served.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "REMOTE_USER": served.user,
            "REMOTE_ADDR": LOCALHOST,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        out = subprocess.run(
            ["git", "http-backend"], input=body, env=variables, capture_output=True, check=False
        ).stdout
        head, _, content = out.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines() if ": " in line)
        self._reply(int(headers.pop("Status", "200").split()[0]), headers, content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _reply(self, status: int, headers: dict[str, str], content: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)


@dataclass
class Tunnel:
    """A proxy for https that asks for a password; `asked` are the places named, `passed` what went through."""

    password: str
    asked: list[str] = field(default_factory=list)
    passed: bytes = b""
    url: str = ""

    @contextlib.contextmanager
    def serve(self) -> Iterator[Tunnel]:
        tunnel = self

        class Handler(BaseHTTPRequestHandler):
            # Git asks without a password first, and continues in the same connection.
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_CONNECT(self) -> None:
                expected = base64.b64encode(f"packager:{tunnel.password}".encode()).decode()
                if self.headers.get("Proxy-Authorization") != f"Basic {expected}":
                    self.send_response(407)
                    self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                tunnel.asked.append(self.path)
                host, _, port = self.path.partition(":")
                with socket.create_connection((host, int(port)), 10) as behind:
                    self.send_response(200)
                    self.end_headers()
                    tunnel.passed += _pumped(self.connection, behind)
                self.close_connection = True

        server = ThreadingHTTPServer((LOCALHOST, 0), Handler)
        self.url = f"http://packager:{self.password}@{LOCALHOST}:{server.server_address[1]}"
        with running(server):
            yield self


def _pumped(one: socket.socket, other: socket.socket) -> bytes:
    """Pass bytes on both ways until a side ends; answers with all of them."""
    seen = b""
    while True:
        for source in select.select([one, other], [], [], 10)[0]:
            data = source.recv(65536)
            if not data:
                return seen
            seen += data
            (other if source is one else one).sendall(data)


def tls_context(folder: Path) -> tuple[ssl.SSLContext, str]:
    """Give a server's TLS context for 127.0.0.1, and the PEM of its authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "git")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOCALHOST))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.pem").write_bytes(private + pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context, pem.decode()


@dataclass
class SshServer:
    """An ssh server that runs Git's two services for one key. `key` is the client's, `known_hosts` names the server."""

    folder: Path
    key: str = ""
    known_hosts: str = ""
    url: str = ""

    @contextlib.contextmanager
    def serve(self) -> Iterator[SshServer]:
        host, client = asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-ed25519")
        self.key = client.export_private_key().decode()
        allowed = asyncssh.import_authorized_keys(client.export_public_key().decode())
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        async def listen() -> asyncssh.SSHAcceptor:
            return await asyncssh.listen(
                LOCALHOST,
                0,
                server_host_keys=[host],
                authorized_client_keys=allowed,
                process_factory=self._run,
                encoding=None,
            )

        server = asyncio.run_coroutine_threadsafe(listen(), loop).result(30)
        port = server.get_port()
        public = " ".join(host.export_public_key().decode().split()[:2])
        self.known_hosts = f"[{LOCALHOST}]:{port} {public}\n"
        self.url = f"ssh://git@{LOCALHOST}:{port}"
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(server.close)
            asyncio.run_coroutine_threadsafe(server.wait_closed(), loop).result(30)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _run(self, process: Any) -> None:
        # Closed here, because its tasks write what is left of Git's output.
        async with process:
            await self._serve(process)

    async def _serve(self, process: Any) -> None:
        service, path = shlex.split(process.command or "")
        if service not in ("git-upload-pack", "git-receive-pack"):
            process.exit(1)
            return
        variables = {"PATH": os.environ["PATH"], "GIT_PROTOCOL": process.env.get("GIT_PROTOCOL", "")}
        git = await asyncio.create_subprocess_exec(
            "git",
            service.removeprefix("git-"),
            str(self.folder / path.strip("/")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=variables,
        )
        await process.redirect(stdin=git.stdin, stdout=git.stdout, stderr=git.stderr)
        process.exit(await git.wait())


@contextlib.contextmanager
def silence() -> Iterator[int]:
    """Listen, take what comes and answer nothing: a hung remote. Gives its port."""
    with socket.create_server((LOCALHOST, 0)) as server:
        yield server.getsockname()[1]
