"""One version of Kubernetes in all examples, and one to upgrade to: `versions.json` has both.

`python tools/website/versions.py KUBERNETES UPGRADE` writes new versions into the file and into all
pages, examples and defaults.
"""

import json
import re
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_suffix(".json")
COVERED = (
    "README.md",
    "docs/*.md",
    "docs/tasks/*.md",
    "clusterclass/README.md",
    "examples/*.*",
    "schemas/clusterdefinition.json",
    # The default of `caphv generate`, help texts and comments, and what the sandbox and the
    # benchmarks run.
    "commands/**/*.py",
    "packager/**/*.py",
    "sandbox/cluster.py",
    "tools/bench/*.py",
)
_VERSION = re.compile(r"\bv1\.[3-9]\d\.\d+\b")


def read_versions() -> dict[str, str]:
    """Return the versions by name: `kubernetes` and `upgrade`."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def files() -> list[Path]:
    """Return all files with examples and defaults."""
    return sorted(path for pattern in COVERED for path in CHECKOUT.glob(pattern))


def find_other_versions() -> list[str]:
    """Return `file: version` for each version in an example that is not one of the two."""
    allowed = set(read_versions().values())
    return [
        f"{path.relative_to(CHECKOUT)}: {version}"
        for path in files()
        for version in _VERSION.findall(path.read_text(encoding="utf-8"))
        if version not in allowed
    ]


def write(kubernetes: str, upgrade: str) -> None:
    """Replace the current versions everywhere."""
    new = {"kubernetes": kubernetes, "upgrade": upgrade}
    mapping = {old: new[name] for name, old in read_versions().items()}

    # Replace both in one pass, because the new Kubernetes version may be the old upgrade version.
    for path in files():
        text = path.read_text(encoding="utf-8")
        text = _VERSION.sub(lambda match: mapping.get(match[0], match[0]), text)
        path.write_text(text, encoding="utf-8")
    FILE.write_text(json.dumps(new, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(*sys.argv[1:])
