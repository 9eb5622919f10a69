"""One line an event: JSON for machines, text for people, with the fields of the work around it."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caphv.runtime import logs

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    levels = {name: logging.getLogger(name).level for name in ("aiohttp", "kubernetes", "urllib3", "asyncio")}
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def test_json_line_has_time_level_logger_message_and_fields() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    with logs.context(controller="harvestermachine", object="ns/m"):
        logging.getLogger("caphv.test").warning("disk %d is full", 3)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "caphv.test",
        "message": "disk 3 is full",
        "controller": "harvestermachine",
        "object": "ns/m",
    }


def test_json_keeps_a_traceback_on_the_line() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    try:
        raise ZeroDivisionError("what")
    except ZeroDivisionError:
        logging.getLogger("caphv.test").exception("failed")
    (text,) = stream.getvalue().splitlines()
    assert "ZeroDivisionError: what" in json.loads(text)["error"]


def test_text_line_names_the_object() -> None:
    stream = io.StringIO()
    logs.configure("info", "text", stream)
    with logs.context(object="ns/m"):
        logging.getLogger("caphv.test").info("created")
    logging.getLogger("caphv.test").info("idle")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("INFO [ns/m] created")
    assert second.endswith("INFO idle")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"server": "https://harvester"}, "[https://harvester]"),
        ({"cluster": "ns/c"}, "[ns/c]"),
        ({"cluster": "ns/c", "object": "ns/m"}, "[ns/m]"),
    ],
)
def test_text_line_names_the_cluster_or_server_outside_a_reconcile(fields: dict[str, str], place: str) -> None:
    stream = io.StringIO()
    logs.configure("info", "text", stream)
    with logs.context(**fields):
        logging.getLogger("caphv.test").info("created")
    assert stream.getvalue().endswith(f"INFO {place} created\n")


def test_repeated_failure_is_one_line() -> None:
    stream = io.StringIO()
    logs.configure("info", "text", stream)
    for _ in range(50):
        logging.getLogger("caphv.test").warning("server is unreachable")
        logging.getLogger("caphv.test").info("machine is Ready")
    lines = stream.getvalue().splitlines()
    assert sum("unreachable" in line for line in lines) == 1
    assert sum("Ready" in line for line in lines) == 50


def test_auto_is_json_where_no_terminal_is() -> None:
    stream = io.StringIO()
    logs.configure("info", "auto", stream)
    logging.getLogger("caphv.test").info("hello")
    assert json.loads(stream.getvalue())["message"] == "hello"


def test_lines_below_the_level_are_left_out() -> None:
    stream = io.StringIO()
    logs.configure("warning", "text", stream)
    logging.getLogger("caphv.test").info("quiet")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("library", ["aiohttp.client", "kubernetes.aio", "urllib3", "asyncio"])
def test_libraries_never_log_requests_even_at_debug(library: str) -> None:
    stream = io.StringIO()
    logs.configure("debug", "json", stream)
    logging.getLogger(library).debug("Authorization: Bearer canary")
    logging.getLogger("caphv.test").debug("ours")
    assert "canary" not in stream.getvalue()
    assert "ours" in stream.getvalue()


async def test_fields_belong_to_their_own_piece_of_work() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)

    async def work(name: str) -> None:
        with logs.context(object=name):
            await asyncio.sleep(0)
            with logs.context(step="inner"):
                await asyncio.sleep(0)
                logging.getLogger("caphv.test").info(name)

    await asyncio.gather(work("ns/a"), work("ns/b"))
    logging.getLogger("caphv.test").info("outside")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["message"], line.get("object"), line.get("step")) for line in lines] == [
        ("ns/a", "ns/a", "inner"),
        ("ns/b", "ns/b", "inner"),
        ("outside", None, None),
    ]


@given(st.text(st.characters()))
def test_any_message_is_one_json_line(message: str) -> None:
    record = logging.makeLogRecord({"msg": message})
    line = logs._JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == message
