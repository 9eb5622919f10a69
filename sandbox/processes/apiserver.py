"""etcd and kube-apiserver processes of a sandbox, on loopback addresses.

One etcd serves all API servers of a sandbox, each below its own prefix. It listens on a Unix socket
in the sandbox's folder, so it needs neither a port nor credentials. This folder is the working
directory of the API servers.
"""

import contextlib
import csv
import dataclasses
import io
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from caphv.api.object import Obj
from caphv.runtime.client import ApiClient
from caphv.runtime.kubeconfig import Kubeconfig
from sandbox.processes import children, pki
from sandbox.processes.binaries import binary
from sandbox.processes.children import Process

# etcd requires the form host:port; this Unix socket is a file `etcd:0` in the working directory.
ETCD_ENDPOINT = "unix://etcd:0"
ETCD_PEER = "unix://etcd:1"
START_SECONDS = 90.0
PORT_ATTEMPTS = 5
ADMIN = ("admin", ("system:masters",))
AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""
# Both plugins rely on controllers of kube-controller-manager, which create tokens and remove a
# finalizer.
DISABLED_ADMISSION = "ServiceAccount,StorageObjectInUseProtection"
# These kinds have no watch cache, because a sandbox has few watches of them. A watch cache has a
# timer of a second and a watch on etcd.
NOT_CACHED = """
limitranges namespaces persistentvolumes podtemplates replicationcontrollers resourcequotas
serviceaccounts services endpoints endpointslices.discovery.k8s.io
controllerrevisions.apps daemonsets.apps deployments.apps replicasets.apps statefulsets.apps
cronjobs.batch jobs.batch horizontalpodautoscalers.autoscaling poddisruptionbudgets.policy
leases.coordination.k8s.io priorityclasses.scheduling.k8s.io runtimeclasses.node.k8s.io
certificatesigningrequests.certificates.k8s.io
apiservices.apiregistration.k8s.io customresourcedefinitions.apiextensions.k8s.io
clusterrolebindings.rbac.authorization.k8s.io clusterroles.rbac.authorization.k8s.io
rolebindings.rbac.authorization.k8s.io roles.rbac.authorization.k8s.io
flowschemas.flowcontrol.apiserver.k8s.io prioritylevelconfigurations.flowcontrol.apiserver.k8s.io
ingressclasses.networking.k8s.io ingresses.networking.k8s.io ipaddresses.networking.k8s.io
networkpolicies.networking.k8s.io servicecidrs.networking.k8s.io
deviceclasses.resource.k8s.io resourceclaims.resource.k8s.io resourceclaimtemplates.resource.k8s.io
resourceslices.resource.k8s.io
csidrivers.storage.k8s.io csinodes.storage.k8s.io csistoragecapacities.storage.k8s.io
storageclasses.storage.k8s.io volumeattachments.storage.k8s.io
volumeattributesclasses.storage.k8s.io
mutatingadmissionpolicies.admissionregistration.k8s.io
mutatingadmissionpolicybindings.admissionregistration.k8s.io
mutatingwebhookconfigurations.admissionregistration.k8s.io
validatingadmissionpolicies.admissionregistration.k8s.io
validatingadmissionpolicybindings.admissionregistration.k8s.io
validatingwebhookconfigurations.admissionregistration.k8s.io
"""


@dataclass(frozen=True)
class Token:
    """A static bearer token and its user."""

    value: str = field(repr=False)
    user: str
    groups: tuple[str, ...] = ()

    @classmethod
    def new(cls, user: str, groups: Sequence[str] = ()) -> "Token":
        """Create a random token."""
        return cls(secrets.token_urlsafe(24), user, tuple(groups))


class Etcd:
    """The etcd of all API servers of one sandbox folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: Process | None = None

    async def start(self, pass_fds: Sequence[int] = ()) -> None:
        """Start etcd. `pass_fds` stay open while it runs. Raises `ProcessError`."""
        command: list[str | Path] = [
            binary("etcd"),
            "--name=sandbox",
            f"--data-dir={self.folder / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={ETCD_ENDPOINT}",
            f"--advertise-client-urls={ETCD_ENDPOINT}",
            f"--listen-peer-urls={ETCD_PEER}",
            f"--initial-advertise-peer-urls={ETCD_PEER}",
            f"--initial-cluster=sandbox={ETCD_PEER}",
        ]

        # etcd is rarely busy, and takes a third less CPU time without a second thread to wake.
        env = {"GOMAXPROCS": "1"}
        self.process = children.start(
            self.folder,
            "etcd",
            command,
            env=env,
            pass_fds=pass_fds,
            timer_slack=children.TIMER_SLACK_SECONDS,
        )
        await children.wait_ready(self.process, self._listens, START_SECONDS)

    async def stop(self) -> None:
        """Stop etcd if it is running."""
        if self.process:
            await children.end(self.process)

    async def _listens(self) -> bool:
        # The socket is enough, because API servers retry until etcd answers.
        return (self.folder / ETCD_ENDPOINT.removeprefix("unix://")).is_socket()


class ApiServer:
    """One kube-apiserver with its own CA, in a sandbox folder whose etcd is running.

    `name` is unique in the folder. It is the prefix in etcd, and the name of the log and of the
    folder with certificates. `address` is any loopback address. Without `port`, the server chooses
    a free port at its first start and keeps it. `ca` signs server and client certificates.

    The administrator has a token. Further `tokens` are for users with many requests, because the
    API server verifies the signature of a client certificate with each request, which takes a tenth
    of its CPU time. With `audit`, the server writes a JSON line for each request to `audit_log`.
    `service_account_key` is the file with the key that signs service account tokens.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        ca: pki.CA | None = None,
        client_authority: bytes = b"",
        address: str = "127.0.0.1",
        port: int = 0,
        extra_sans: Sequence[str] = (),
        service_range: str = "10.96.0.0/16",
        tokens: Sequence[Token] = (),
        audit: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.name = name
        self.ca = ca or pki.CA.create(f"caphv-sandbox-{name}")
        self.address = address
        self.port = port
        self.process: Process | None = None
        self._keeps_port = bool(port)

        self._files = folder / name
        self.audit_log = self._files / "audit.log"
        self.service_account_key = self._files / "service-account.key"
        self._client_authority = client_authority
        self._service_range = service_range
        self._audit = audit
        self._flags = tuple(flags)
        self._tokens = [Token.new(*ADMIN), *tokens]

        names = [
            address,
            "127.0.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ]
        self._write_files(self.ca.server(list(dict.fromkeys([*names, *extra_sans]))))

    @property
    def url(self) -> str:
        """Return the URL for clients."""
        return f"https://{self.address}:{self.port}"

    async def start(self) -> None:
        """Start the server with the data of earlier runs, and wait until it is ready.

        Raises `ProcessError`.
        """
        for _ in range(PORT_ATTEMPTS):
            # Another process may take the port until the server binds it.
            if not self._keeps_port:
                (self.port,) = children.free_ports(1)

            self.process = children.start(
                self.folder, self.name, self._command(), timer_slack=children.TIMER_SLACK_SECONDS
            )
            try:
                async with _probe(self.url, self.ca.certificate) as ready:
                    await children.wait_ready(self.process, ready, START_SECONDS)
            except children.ProcessError:
                if self._keeps_port or not children.port_was_taken(self.process):
                    raise
            else:
                self._keeps_port = True
                return

        raise children.ProcessError(
            f"{self.name}: all {PORT_ATTEMPTS} ports that were tried were taken meanwhile"
        )

    async def stop(self) -> None:
        """Stop the server if it is running. Its data stays in etcd."""
        if self.process:
            # Do not wait for clients to end their watches, because the data is safe in etcd.
            await children.end(self.process, grace=0.5)

    @contextlib.asynccontextmanager
    async def client(
        self, user: str = ADMIN[0], groups: Sequence[str] = ADMIN[1]
    ) -> AsyncIterator[ApiClient]:
        """Lend a client for any user, by default for an administrator, and close it afterwards."""
        kubeconfig = Kubeconfig(server=self.url, ca=self.ca.certificate.decode())
        if token := self._token(user, groups):
            kubeconfig = dataclasses.replace(kubeconfig, token=token.value)
        else:
            pair = self.ca.client(user, groups)
            kubeconfig = dataclasses.replace(
                kubeconfig,
                client_certificate=pair.certificate.decode(),
                client_key=pair.key.decode(),
            )

        client = kubeconfig.client(
            name=self.name, user_agent="caphv-sandbox", timeout=60.0, untrusted=False
        )
        try:
            yield client
        finally:
            await client.close()

    def kubeconfig(self, user: str = ADMIN[0], groups: Sequence[str] = ADMIN[1]) -> Obj:
        """Build a kubeconfig for any user, by default for an administrator."""
        token = self._token(user, groups)
        credentials = (
            {"token": token.value} if token else pki.certificate_user(self.ca.client(user, groups))
        )
        return pki.kubeconfig(
            self.url, self.ca.certificate, name=self.name, user=user, credentials=credentials
        )

    def _token(self, user: str, groups: Sequence[str]) -> Token | None:
        account = (user, tuple(groups))
        matches = (token for token in self._tokens if (token.user, token.groups) == account)
        return next(matches, None)

    def _command(self) -> list[str | Path]:
        files = self._files
        audit = [
            f"--audit-log-path={self.audit_log}",
            f"--audit-policy-file={files / 'audit-policy.yaml'}",
        ]

        return [
            binary("kube-apiserver"),
            f"--etcd-servers={ETCD_ENDPOINT}",
            f"--etcd-prefix=/{self.name}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.port}",
            f"--cert-dir={files}",
            f"--tls-cert-file={files / 'tls.crt'}",
            f"--tls-private-key-file={files / 'tls.key'}",
            f"--client-ca-file={files / 'clients.crt'}",
            f"--token-auth-file={files / 'tokens.csv'}",
            f"--service-account-key-file={self.service_account_key}",
            f"--service-account-signing-key-file={self.service_account_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-cluster-ip-range={self._service_range}",
            "--authorization-mode=RBAC",
            f"--disable-admission-plugins={DISABLED_ADMISSION}",
            # The reconciler rejects loopback addresses as endpoints of the Service `kubernetes`,
            # which is not used here.
            "--endpoint-reconciler-type=none",
            # Benchmarks must not measure throttling by the server. The next two flags require that
            # this feature is off.
            "--enable-priority-and-fairness=false",
            "--max-requests-inflight=0",
            "--max-mutating-requests-inflight=0",
            f"--watch-cache-sizes={','.join(f'{resource}#0' for resource in NOT_CACHED.split())}",
            "--profiling=false",
            "--allow-privileged=true",
            *(audit if self._audit else []),
            *self._flags,
        ]

    def _write_files(self, server: pki.KeyPair) -> None:
        self._files.mkdir(mode=0o700, exist_ok=True)
        private_file(self._files / "ca.crt", self.ca.certificate)
        private_file(self._files / "clients.crt", self.ca.certificate + self._client_authority)
        private_file(self._files / "tls.crt", server.certificate)
        private_file(self._files / "tls.key", server.key)
        private_file(self._files / "audit-policy.yaml", AUDIT_POLICY.encode())
        private_file(self.service_account_key, pki.create_signing_key())

        table = io.StringIO()
        rows = (
            [token.value, token.user, token.user, ",".join(token.groups)] for token in self._tokens
        )
        csv.writer(table).writerows(rows)
        private_file(self._files / "tokens.csv", table.getvalue().encode())


async def is_ready(url: str, ca: bytes) -> bool:
    """Return whether an API server is ready.

    The probe is anonymous. RBAC allows it when the default roles exist, which the server creates
    last at its start.
    """
    async with _probe(url, ca) as ready:
        return await ready()


@contextlib.asynccontextmanager
async def _probe(url: str, ca: bytes) -> AsyncIterator[Callable[[], Awaitable[bool]]]:
    """Lend a probe of one API server, whose connection serves the forty probes of a start."""
    context = pki.client_context(ca)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:

        async def ready() -> bool:
            try:
                async with session.get(f"{url}/readyz", ssl=context) as response:
                    return response.status == 200
            except (aiohttp.ClientError, TimeoutError):
                return False

        yield ready


def private_file(path: Path, content: bytes) -> None:
    """Atomically write a file that only its owner can read."""
    scratch = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    scratch.replace(path)
