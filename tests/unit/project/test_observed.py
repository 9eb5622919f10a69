"""Every record of a real program is replayed by a test."""

import pytest

from tests.support import observed
from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

FILES = sorted(path.relative_to(observed.FOLDER).as_posix() for path in observed.FOLDER.rglob("*.yaml"))


def test_each_file_of_records_is_complete_and_loaded_by_a_test() -> None:
    tests = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (CHECKOUT / "tests").rglob("test_*.py")
        if path.name != "test_observed.py"
    )
    for file in FILES:
        assert observed.records(file)
        assert f'"{file}"' in tests, f"no test loads tests/observed/{file}"
