"""The REST client of the `kubernetes` package, without the rest of the package.

`kubernetes/__init__.py` and `kubernetes/aio/__init__.py` import every client, all loaders and their libraries: 19 MiB
that no process of ours uses. So these two files are not run. Their subpackages are imported as soon as they are used,
by us or by anyone else in the process.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


def _without_running(name: str) -> None:
    """Put a package into `sys.modules` whose attributes are its submodules, each imported at its first use."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None:
        return
    package = importlib.util.module_from_spec(spec)

    def attribute(wanted: str) -> ModuleType:
        if not wanted.startswith("_") and importlib.util.find_spec(f"{name}.{wanted}"):
            return importlib.import_module(f"{name}.{wanted}")
        raise AttributeError(f"module {name!r} has no attribute {wanted!r}")

    package.__getattr__ = attribute  # type: ignore[method-assign]
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


for _package in ("kubernetes", "kubernetes.aio"):
    _without_running(_package)

Configuration: Any = importlib.import_module("kubernetes.aio.client.configuration").Configuration
RESTClientObject: Any = importlib.import_module("kubernetes.aio.client.rest").RESTClientObject


def kube_config() -> Any:
    """The loader of kubeconfigs, whose libraries take 9 MiB: imported where one is read."""
    return importlib.import_module("kubernetes.aio.config.kube_config")
