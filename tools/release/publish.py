"""Build, push and sign the images and files of a release: `python -m tools.release.publish --help`.

Needed: docker with buildx, cosign, and a login to the registry. cosign signs with the identity of
the workflow that runs it (keyless), or with COSIGN_KEY.
"""

import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import click

from tools.release import components, krew
from tools.release.__main__ import (
    CHECKOUT,
    SUMS,
    contents,
    plugin_archive,
    project_version,
    with_provenance,
)

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
  python -m tools.release.publish --dry-run
  python -m tools.release.publish --repository registry.example.com/caphv \
--wheel dist/caphv-0.12.0-py3-none-any.whl
""",
    help="""Push both images with provenance, sign them, attest their bills of materials, and \
write and sign the files.

    The manifests name the images by the digests that were pushed. A failed run can be repeated:
    nothing is signed before it was pushed, and the check sums, which cover the wheel, the bills of
    materials and the provenance of all files, are signed last.
    """,
)
@click.option(
    "--repository", default=components.IMAGE, help="Repository of the images, without tag."
)
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
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the commands, and neither build, push, sign nor write anything.",
)
def main(repository: str, wheel: Path | None, output: Path, *, dry_run: bool) -> None:
    """Publish images and files of a release."""
    steps = Steps(dry_run)
    version = project_version()
    wheel = wheel or CHECKOUT / "dist" / krew.wheel_name(version)
    if not dry_run:
        output.mkdir(parents=True, exist_ok=True)
    plugin = plugin_archive(output)

    images = {
        target: _push_image(steps, f"{repository}:v{version}{suffix}", target, output)
        for target, suffix in TARGETS.items()
    }

    if not dry_run:
        files = contents(images["controller"], images["packager"], wheel)
        files |= {path.name: path.read_bytes() for path in [*output.glob("sbom-*.cdx.json"), wheel]}
        files |= plugin
        for name, content in with_provenance(files).items():
            (output / name).write_bytes(content)

    bundle = output / f"{SUMS}.sigstore.json"
    options = ("--yes", *_key_options(), "--bundle", str(bundle))
    steps.run("cosign", "sign-blob", *options, str(output / SUMS))


def _push_image(steps: Steps, name: str, target: str, output: Path) -> str:
    """Build, push, sign and attest an image for all platforms; return its name with digest."""
    metadata = output / f"{target}.json"
    bills = output / f"{target}-bills"
    build = ["docker", "buildx", "build", f"--platform={','.join(PLATFORMS)}"]

    steps.run(
        *(*build, f"--target={target}", f"--tag={name}", "--provenance=mode=max", "--sbom=true"),
        *(f"--metadata-file={metadata}", "--push", "."),
    )
    digest = "sha256:DIGEST"
    if not steps.dry_run:
        digest = json.loads(metadata.read_text())["containerimage.digest"]
    # Sign the digest, because the tag may move between the push and the signature.
    pinned = f"{name}@{digest}"

    # Export the bill of each platform from the same layers into a separate folder.
    steps.run(*build, f"--target={target}-bill", f"--output=type=local,dest={bills}", ".")

    steps.run("cosign", "sign", "--yes", "--recursive", *_key_options(), pinned)
    for platform in PLATFORMS:
        dashed = platform.replace("/", "-")
        bill = output / f"sbom-{target}-{dashed}.cdx.json"
        if not steps.dry_run:
            bill.write_bytes((bills / platform.replace("/", "_") / "sbom.cdx.json").read_bytes())
        steps.run(
            "cosign",
            "attest",
            "--yes",
            *_key_options(),
            "--type=cyclonedx",
            f"--predicate={bill}",
            pinned,
        )
    return pinned


def _key_options() -> list[str]:
    return ["--key", "env://COSIGN_KEY"] if os.environ.get("COSIGN_KEY") else []


if __name__ == "__main__":
    main(prog_name="python -m tools.release.publish")
