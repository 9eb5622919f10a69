"""The quick start shows the bundles that its cluster has."""

import re

import pytest
from click.testing import CliRunner

from commands.main import cli
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit


def test_the_tree_of_bundles_is_that_of_the_cluster() -> None:
    page = (CHECKOUT / "docs" / "quick-start.md").read_text(encoding="utf-8")
    cluster = re.search(r"<<'YAML'\n(.*?)\nYAML\n", page, re.DOTALL)
    assert cluster
    result = CliRunner().invoke(cli, ["bundles", "render", "-", "-o", "tree"], input=cluster[1])
    assert result.exit_code == 0, result.output
    assert f"```text\n{result.stdout}```" in page
