"""A pytest plugin that records which tests call which functions.

Load it with `-p callrecorder` and `tools/ci` on PYTHONPATH.

CAPHV_RECORDED_FOLDERS names the folders of the functions, CAPHV_RECORDS the folder for one JSON
file a process: by file and name of each function, the tests that called it. Functions are recorded
for all threads and coroutines of the process, so tests that share a running provider have what it
did during each of them.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

_ROOT = f"{Path.cwd()}/"
_FOLDERS = tuple(f"{_ROOT}{folder}/" for folder in os.environ["CAPHV_RECORDED_FOLDERS"].split())
_calls: dict[str, dict[str, None]] = {}
_called: set[CodeType] = set()


def _record(frame: FrameType, _event: str, _argument: object) -> None:
    _called.add(frame.f_code)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record what a test and its fixtures call."""
    _called.clear()
    threading.settrace(_record)
    sys.settrace(_record)
    yield
    sys.settrace(None)

    # Threads of a provider that tests share continue, and add to the set while it is read.
    for code in tuple(_called):
        if code.co_filename.startswith(_FOLDERS):
            file = code.co_filename.removeprefix(_ROOT)
            place = f"{file}:{code.co_qualname.replace('.<locals>', '')}"
            _calls.setdefault(place, {})[item.nodeid] = None


def pytest_sessionfinish() -> None:
    """Write the records of this process."""
    folder = Path(os.environ["CAPHV_RECORDS"])
    folder.mkdir(parents=True, exist_ok=True)
    records = {place: list(tests) for place, tests in sorted(_calls.items())}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(records), encoding="utf-8")
