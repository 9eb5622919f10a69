"""Data folders are found next to the package and inside it."""

from pathlib import Path

import pytest

from caphv import data

pytestmark = pytest.mark.unit


def test_checkout_folder_is_found(checkout: Path) -> None:
    assert data.folder("schemas") == checkout / "schemas"
    assert data.folder("deploy/crds") == checkout / "deploy" / "crds"


def test_folder_of_an_installed_package_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_PACKAGE", tmp_path / "caphv")
    (tmp_path / "schemas").mkdir()
    inside = tmp_path / "caphv" / "_data" / "schemas"
    inside.mkdir(parents=True)
    assert data.folder("schemas") == inside


def test_missing_folder_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"'no-such-folder' not found .*install caphv again"):
        data.folder("no-such-folder")
