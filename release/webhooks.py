"""The manifest of the webhook configurations, made from what the webhooks' keeper restores, so that both say the same.

`python -m release.webhooks` writes it into `deploy/kustomize/base`; with `--check` it only fails when it is stale.
"""

import argparse
import sys
from pathlib import Path

from release import components
from webhooks.configuration import INJECT_ANNOTATION, SERVICE, client_config, configurations

MANIFEST = Path(__file__).resolve().parent.parent / "deploy" / "kustomize" / "base" / "webhook-configurations.yaml"
_NAMESPACE = "caphv-system"
_CERTIFICATE = "caphv-webhook-tls"
_HEADER = "# Made by python -m release.webhooks; cert-manager fills in the CA of the certificate.\n"


def manifest() -> str:
    """The file as it has to be."""
    target = client_config(f"{_NAMESPACE}/{SERVICE}")
    objects = configurations(target, annotations={INJECT_ANNOTATION: f"{_NAMESPACE}/{_CERTIFICATE}"})
    return _HEADER + components.dump(objects)


def main(arguments: list[str] | None = None) -> int:
    """Write the file, or with `--check` compare only; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m release.webhooks", description=f"Generate {MANIFEST.name}.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the file is stale")
    check = parser.parse_args(arguments).check
    wanted = manifest()
    if check and MANIFEST.read_text(encoding="utf-8") != wanted:
        sys.stderr.write(f"{MANIFEST.name} is stale: run python -m release.webhooks\n")
        return 1
    if not check:
        MANIFEST.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
