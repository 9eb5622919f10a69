"""Build, push and sign the images and files of a release: `python -m release.publish --help`.

Needed: docker with buildx, cosign, and a login to the registry. cosign signs with the identity of the workflow that
runs it (keyless), or with COSIGN_KEY.
"""

import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import click

from release import components, krew
from release.__main__ import CHECKOUT, contents, project_version, sums

PLATFORMS = ("linux/amd64", "linux/arm64")
TARGETS = {"controller": "", "packager": components.PACKAGER_SUFFIX}


@dataclass(frozen=True)
class Steps:
    """Runs commands in the checkout, or with `dry_run` only prints them."""

    dry_run: bool

    def run(self, *command: str) -> None:
        """Print a command and run it. Raises `click.ClickException` if it fails."""
        click.echo(shlex.join(command))
        if not self.dry_run and subprocess.run(command, cwd=CHECKOUT, check=False).returncode:
            raise click.ClickException(f"{command[0]} failed; nothing after it was done")


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="""\b
Examples:
  python -m release.publish --dry-run
  python -m release.publish --repository registry.example.com/caphv --wheel dist/caphv-0.12.0-py3-none-any.whl
""",
)
@click.option("--repository", default=components.IMAGE, help="Repository of the images, without tag.")
@click.option(
    "--wheel",
    type=click.Path(path_type=Path),
    help="Wheel of this version.",
    show_default="dist/caphv-VERSION-py3-none-any.whl",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=CHECKOUT / "out",
    help="Output folder.",
    show_default="out",
)
@click.option("--dry-run", is_flag=True, help="Print the commands, and neither build, push, sign nor write anything.")
def main(repository: str, wheel: Path | None, output: Path, *, dry_run: bool) -> None:
    """Push both images with provenance, sign them, attest their bills of materials, and write and sign the files.

    The manifests name the images by the digests that were pushed. A failed run can be repeated: nothing is signed
    before it was pushed, and the check sums, which cover the wheel and the bills of materials, are signed last.
    """
    steps, version = Steps(dry_run), project_version()
    if not dry_run:
        output.mkdir(parents=True, exist_ok=True)
    wheel = wheel or CHECKOUT / "dist" / krew.wheel_name(version)
    images = {
        target: _image(steps, f"{repository}:v{version}{suffix}", target, output) for target, suffix in TARGETS.items()
    }
    if not dry_run:
        files = contents(images["controller"], images["packager"], wheel)
        files |= {path.name: path.read_bytes() for path in [*output.glob("sbom-*.cdx.json"), wheel]}
        del files["SHA256SUMS"]
        for name, content in {**files, "SHA256SUMS": sums(files)}.items():
            (output / name).write_bytes(content)
    bundle = output / "SHA256SUMS.sigstore.json"
    steps.run("cosign", "sign-blob", "--yes", *_key(), "--bundle", str(bundle), str(output / "SHA256SUMS"))


def _image(steps: Steps, name: str, target: str, output: Path) -> str:
    """Build and push an image for all platforms, sign and attest it; return its name with digest."""
    metadata, bills = output / f"{target}.json", output / f"{target}-bills"
    build = ["docker", "buildx", "build", f"--platform={','.join(PLATFORMS)}"]
    steps.run(
        *(*build, f"--target={target}", f"--tag={name}", "--provenance=mode=max", "--sbom=true"),
        *(f"--metadata-file={metadata}", "--push", "."),
    )
    digest = "sha256:DIGEST" if steps.dry_run else json.loads(metadata.read_text())["containerimage.digest"]
    pinned = f"{name}@{digest}"
    # From the same layers, by platform in a folder of its own.
    steps.run(*build, f"--target={target}-bill", f"--output=type=local,dest={bills}", ".")
    steps.run("cosign", "sign", "--yes", "--recursive", *_key(), pinned)
    for platform in PLATFORMS:
        dashed = platform.replace("/", "-")
        bill = output / f"sbom-{target}-{dashed}.cdx.json"
        if not steps.dry_run:
            bill.write_bytes((bills / platform.replace("/", "_") / "sbom.cdx.json").read_bytes())
        steps.run("cosign", "attest", "--yes", *_key(), "--type=cyclonedx", f"--predicate={bill}", pinned)
    return pinned


def _key() -> list[str]:
    return ["--key", "env://COSIGN_KEY"] if os.environ.get("COSIGN_KEY") else []


if __name__ == "__main__":
    main(prog_name="python -m release.publish")
