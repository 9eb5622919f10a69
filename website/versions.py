"""One version of Kubernetes in all examples: `versions.json` has it, with the version that examples upgrade to.

`python website/versions.py KUBERNETES UPGRADE` writes new versions into the file and into all pages, examples and
defaults.
"""

import json
import re
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
FILE = Path(__file__).with_suffix(".json")
COVERED = (
    "README.md",
    "docs/*.md",
    "docs/tasks/*.md",
    "clusterclass/README.md",
    "examples/*.*",
    "schemas/clusterdefinition.json",
    # The default of `caphv generate`, help texts and comments, and what the sandbox and the benchmarks run.
    "commands/**/*.py",
    "packager/**/*.py",
    "sandbox/cluster.py",
    "bench/*.py",
)
_VERSION = re.compile(r"\bv1\.[3-9]\d\.\d+\b")


def current() -> dict[str, str]:
    """Return the versions by name: `kubernetes` and `upgrade`."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))  # noqa: TID251 - runs without caphv, on its own file


def covered() -> list[Path]:
    """Return all files with examples and defaults."""
    return sorted(path for pattern in COVERED for path in CHECKOUT.glob(pattern))


def others() -> list[str]:
    """Return `file: version` for each version in an example that is not one of the two."""
    wanted = set(current().values())
    return [
        f"{path.relative_to(CHECKOUT)}: {version}"
        for path in covered()
        for version in _VERSION.findall(path.read_text(encoding="utf-8"))
        if version not in wanted
    ]


def write(kubernetes: str, upgrade: str) -> None:
    """Replace the current versions everywhere."""
    new = {"kubernetes": kubernetes, "upgrade": upgrade}
    mapping = {old: new[name] for name, old in current().items()}
    for path in covered():
        text = path.read_text(encoding="utf-8")
        path.write_text(_VERSION.sub(lambda found: mapping.get(found[0], found[0]), text), encoding="utf-8")
    FILE.write_text(json.dumps(new, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(*sys.argv[1:])
