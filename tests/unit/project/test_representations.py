"""What is secret is not in the representation of an object, which a log or a traceback may show."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.unit

PACKAGES = ("caphv", "reconciler", "packager", "webhooks", "operations", "commands", "sandbox")
SECRET = re.compile(
    r"(^|_)(token|password|passphrase|secret|credential|kubeconfig|private|key|user_?data|bootstrap)s?$"
)
TEXT = re.compile(r"\b(str|bytes)\b")
# Names of Secrets and of keys in them, and paths of files.
HARMLESS = {
    ("Account", "token"),
    ("CloudConfig", "secret_key"),
    ("Existing", "token"),
    ("Identity", "secret"),
    ("PackagerFlags", "client_secret"),
    ("PackagerFlags", "git_credentials"),
    ("PackagerFlags", "helm_secret"),
    ("PackagerFlags", "kubeconfig"),
    ("PackagerFlags", "source_credentials"),
    ("PackagerRunOptions", "client_secret"),
    ("PackagerRunOptions", "helm_secret"),
    ("PrintOptions", "client_secret"),
    ("PrintOptions", "helm_secret"),
    ("SyncOptions", "client_secret"),
    ("SyncOptions", "helm_secret"),
    ("ServiceAccountToken", "secret"),
    ("RotationPlan", "secret"),
}


# Groups of options of commands have the paths of files.
PATHS = re.compile(r"(^|_)kubeconfig$")


def is_path_of_an_option(kind: type, field: str) -> bool:
    return kind.__name__.endswith("Options") and PATHS.search(field) is not None


def dataclasses_of_the_product() -> Iterator[type]:
    for package in PACKAGES:
        folder = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(folder, f"{package}."):
            if module.name.endswith("__main__"):
                continue
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and value.__module__ == module.name and dataclasses.is_dataclass(value):
                    yield value


def shown(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass that look secret and are in its representation."""
    if not kind.__dataclass_params__.repr:  # type: ignore[attr-defined]
        return
    for field in dataclasses.fields(kind):
        if field.repr and SECRET.search(field.name) and TEXT.search(str(field.type)):
            if is_path_of_an_option(kind, field.name):
                continue
            yield kind.__name__, field.name


def test_no_secret_is_in_a_representation() -> None:
    fields = {field for kind in dataclasses_of_the_product() for field in shown(kind)}
    assert fields - HARMLESS == set()
    assert HARMLESS - fields == set(), "fields that are there no more"


def test_a_field_with_a_secret_is_noticed() -> None:
    @dataclasses.dataclass
    class Login:
        name: str
        password: str
        token: str = dataclasses.field(default="", repr=False)

    assert list(shown(Login)) == [("Login", "password")]
