"""docs/gitops.md shows a definition that holds."""

import re
from pathlib import Path

import pytest
import yaml

from packager.definitions import model

pytestmark = pytest.mark.unit


def test_the_definition_in_the_page_is_valid(checkout: Path) -> None:
    page = (checkout / "docs" / "gitops.md").read_text(encoding="utf-8")
    definitions = [
        obj
        for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        for obj in yaml.safe_load_all(block)
        if model.is_definition(obj)
    ]
    assert definitions
    assert [str(finding) for obj in definitions for finding in model.check(obj)] == []


def test_every_way_of_delivery_is_explained(checkout: Path) -> None:
    page = (checkout / "docs" / "gitops.md").read_text(encoding="utf-8")
    for way in (model.FLEET, model.CLUSTER_RESOURCE_SET, model.NONE):
        assert f"| `{way}` |" in page
