"""Write the release artifacts: `python -m tools.release --help`."""

import hashlib
import json
import tomllib
from pathlib import Path

import click

from tools.release import chart, components, krew, lock, provenance, sbom

CHECKOUT = Path(__file__).resolve().parents[2]
DEPLOY = CHECKOUT / "deploy"
SUMS = "SHA256SUMS"
PLUGIN = "caphv-headlamp"
"""Folder of the Headlamp plugin that `make headlamp` leaves in the output folder."""


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="""\b
Examples:
  python -m tools.release
  python -m tools.release --image registry.example.com/caphv:test \
&& kubectl apply --server-side -f out/caphv.yaml
""",
    help=(
        "Write manifests for kubectl, clusterctl and Turtles, Helm chart, krew plugin, bill of "
        "materials, provenance and checksums; and the Headlamp plugin, if make headlamp has built "
        "it."
    ),
)
@click.option(
    "--image",
    default="",
    help="Image of the provider; default: the released image of this version.",
)
@click.option(
    "--packager-image",
    default="",
    help=(
        "Image of the packager; default: that of the provider if it is given, otherwise the "
        "released one."
    ),
)
@click.option(
    "--wheel",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Wheel of this version, for the krew plugin; without it, the plugin is left out.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=CHECKOUT / "out",
    help="Output folder.",
    show_default="out",
)
def main(image: str, packager_image: str, wheel: Path | None, output: Path) -> None:
    """Write the release artifacts into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    files = with_provenance(contents(image, packager_image, wheel) | plugin_archive(output))
    for name, content in sorted(files.items()):
        (output / name).write_bytes(content)
        click.echo(f"{output.name}/{name}")


def contents(
    image: str = "", packager_image: str = "", wheel: Path | None = None
) -> dict[str, bytes]:
    """Return all release artifacts by file name, reproducible byte for byte.

    Args:
        image: the image of the provider; default: the released one.
        packager_image: the image of the packager; default: `image` if it is given, otherwise the
            released one.
        wheel: the wheel of this version, for the krew plugin, which is left out without it.
    """
    version = project_version()
    release_image = f"{components.IMAGE}:v{version}"
    packager_image = packager_image or image or f"{release_image}{components.PACKAGER_SUFFIX}"
    image = image or release_image

    kustomize = DEPLOY / "kustomize"
    objects = components.with_image(components.objects(kustomize / "base"), image)
    packager = components.with_image(components.objects(kustomize / "packager"), packager_image)
    monitoring = components.objects(kustomize / "monitoring")
    bill = sbom.bill(lock.run_time_packages(CHECKOUT), version)

    files = {
        "caphv.yaml": components.dump(objects).encode(),
        "infrastructure-components.yaml": (
            components.dump(components.with_variables(objects)).encode()
        ),
        "packager.yaml": components.dump(packager).encode(),
        "monitoring.yaml": components.dump(monitoring).encode(),
        "monitoring-turtles.yaml": (
            components.dump(components.with_certificate_of_turtles(monitoring)).encode()
        ),
        "caphv-alerts.yaml": components.dump([{"groups": components.alerts(monitoring)}]).encode(),
        "caphv-dashboard.json": (kustomize / "monitoring" / "caphv-dashboard.json").read_bytes(),
        "sbom.cdx.json": json.dumps(bill, indent=2).encode() + b"\n",
        f"caphv-{version}.tgz": chart.archive(DEPLOY / "chart"),
        "harvester-clusterroles.yaml": (DEPLOY / "harvester" / "clusterroles.yaml").read_bytes(),
    }

    templates = components.templates(DEPLOY / "clusterctl" / "parts")
    files |= {name: text.encode() for name, text in templates.items()}
    for name in ("clusterctl", "turtles"):
        files |= {path.name: path.read_bytes() for path in sorted((DEPLOY / name).glob("*.yaml"))}

    # clusterctl looks for a Cluster's class in the file clusterclass-NAME.yaml.
    for folder in sorted(path for path in (CHECKOUT / "clusterclass").iterdir() if path.is_dir()):
        parts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.yaml"))]
        files[f"clusterclass-{folder.name}.yaml"] = "---\n".join(parts).encode()

    if wheel:
        files |= krew.files(version, CHECKOUT / "LICENSE", wheel)
    return {**files, SUMS: sums(files)}


def plugin_archive(output: Path) -> dict[str, bytes]:
    """Return the archive of the Headlamp plugin; nothing if it was not built.

    :param output: the folder of the release files

    Raises `click.ClickException` if the plugin is of another version.
    """
    folder = output / PLUGIN
    if not folder.is_dir():
        return {}

    version = json.loads((folder / "package.json").read_text(encoding="utf-8"))["version"]
    if version != project_version():
        message = f"{folder} has version {version}, not {project_version()}: run make headlamp"
        raise click.ClickException(message)
    return {f"{PLUGIN}-{version}.tar.gz": chart.archive(folder, PLUGIN)}


def with_provenance(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return the files with their provenance, and with the check sums of all of them.

    The provenance depends on the commit, and in a workflow on its run.
    """
    derived = (provenance.NAME, SUMS)
    subjects = {name: content for name, content in files.items() if name not in derived}
    source = provenance.source(CHECKOUT)
    statement = provenance.document(subjects, project_version(), CHECKOUT, source)
    subjects[provenance.NAME] = statement
    return {**subjects, SUMS: sums(subjects)}


def project_version() -> str:
    """Return the version of this checkout."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def sums(files: dict[str, bytes]) -> bytes:
    """Return the check sums of files in the format that `sha256sum --check` reads."""
    lines = [
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in sorted(files.items())
    ]
    return "".join(lines).encode()


if __name__ == "__main__":
    main(prog_name="python -m tools.release")
