"""Cluster API provider for Harvester: the foundation that all parts share.

In a checkout the parts (`commands`, `reconciler`, `webhooks`, `packager`, `operations`, `sandbox`)
are folders next to this one. Names this common would overwrite files of other distributions in
`site-packages`, so the wheel keeps them in `caphv/_packages`, and importing `caphv` makes them
importable (docs/adr/0005-package-names.md).
"""

import sys
from pathlib import Path

_packages = Path(__file__).parent / "_packages"
if _packages.is_dir() and str(_packages) not in sys.path:
    sys.path.insert(0, str(_packages))
