"""Certificate, port and options with which a provider in a sandbox serves its webhooks."""

from pathlib import Path

from sandbox.processes import children, pki
from sandbox.processes.apiserver import private_file


def provider_options(folder: Path) -> list[str]:
    """Write a certificate below `folder` and return the options of `caphv run` that serve webhooks with it."""
    own = folder / "provider-webhooks"
    own.mkdir(mode=0o700, exist_ok=True)
    ca = pki.CA.create("caphv-sandbox-provider-webhooks")
    pair = ca.server(["127.0.0.1"])
    for name, content in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", ca.certificate)):
        private_file(own / name, content)
    (port,) = children.free_ports(1)
    return [
        "--enable-webhooks",
        f"--webhook-cert-dir={own}",
        f"--webhook-bind-address=127.0.0.1:{port}",
        f"--webhook-url=https://127.0.0.1:{port}",
    ]
