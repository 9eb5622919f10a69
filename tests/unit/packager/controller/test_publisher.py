"""The order of commits that a publisher knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.controller.open_repository import RepositoryConfig
from packager.controller.publisher import Publisher, PublisherOptions
from packager.git.remote import Remote

pytestmark = pytest.mark.unit


def test_no_commit_is_before_itself_even_an_unknown_one(tmp_path: Path) -> None:
    # A condition may name a commit that is older than all that a restarted packager has read.
    publisher = Publisher(PublisherOptions(RepositoryConfig(Remote("https://git.example.com/fleet.git"), tmp_path)))
    commit = "a" * 40
    assert not publisher.is_before(commit, commit)
    assert not publisher.may_be_before(commit, commit)
    assert publisher.may_be_before("b" * 40, commit)
