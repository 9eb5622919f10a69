"""Certificate, port and options with which a provider in a sandbox serves its webhooks."""

from pathlib import Path

from sandbox.processes import children, pki
from sandbox.processes.apiserver import private_file


def provider_options(folder: Path) -> list[str]:
    """Write a certificate below `folder` and return options of `caphv run` that serve webhooks."""
    certificates = folder / "provider-webhooks"
    certificates.mkdir(mode=0o700, exist_ok=True)

    ca = pki.CA.create("caphv-sandbox-provider-webhooks")
    pair = ca.server(["127.0.0.1"])
    private_file(certificates / "tls.crt", pair.certificate)
    private_file(certificates / "tls.key", pair.key)
    private_file(certificates / "ca.crt", ca.certificate)

    port, extension = children.free_ports(2)
    # The webhooks need a URL, because the API server runs outside of a cluster without Services.
    return [
        "--enable-webhooks",
        f"--webhook-cert-dir={certificates}",
        f"--webhook-bind-address=127.0.0.1:{port}",
        f"--webhook-url=https://127.0.0.1:{port}",
        # Nothing calls the extension before a user registers it by an ExtensionConfig.
        f"--runtime-extension-bind-address=127.0.0.1:{extension}",
    ]
