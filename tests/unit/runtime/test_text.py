"""Text of others is read within bounds: hostile text costs neither the process nor its time, and is never quoted."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from caphv.runtime.text import (
    DEFAULT,
    Limits,
    TextError,
    compose_yaml,
    construct_yaml,
    load_json,
    load_yaml,
    load_yaml_all,
    off_loop,
)

pytestmark = pytest.mark.unit

MIB = 1024 * 1024
# Text, and a word of the refusal.
HOSTILE = {
    "brackets in a line": ("a: " + "[" * 30_000 + "]" * 30_000, "deep"),
    "braces in a line": ("{a: " * 30_000 + "}" * 30_000, "deep"),
    "brackets without end": ("[" * (MIB - 1), "deep"),
    "compact lists": ("- " * 30_000 + "x", "deep"),
    "compact keys": ("? " * 30_000 + "x", "deep"),
    "indented mappings": ("\n".join(" " * depth + "a:" for depth in range(1000)), "deep"),
    "aliases of aliases": (
        "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 60))]),
        "aliases written out",
    ),
    "merged aliases": (
        "a: &a {" + ", ".join(f"k{n}: 1" for n in range(1000)) + "}\n"
        + "\n".join(f"b{n}: {{<<: [{', '.join(['*a'] * 100)}]}}" for n in range(100)),
        "aliases written out",
    ),
    "an alias inside its value": ("a: &a [*a]", "aliases inside"),
    "many values": ("[" + "1," * 300_000 + "1]", "more than 100,000 values"),
    "many documents": ("---\n" * 250_000, "more than 100,000 values"),
    "a long number": ("a: " + "9" * 900_000, "not valid YAML"),
    "a long number to base 60": ("a: 1" + ":1" * 400_000, "not valid YAML"),
    "a long tagged number": ("a: !!int '" + "1" * 900_000 + "'", "not valid YAML"),
    "a long fraction to base 60": ("a: 1" + ":1" * 400_000 + ".5", "not valid YAML"),
    "a tag of Python": ("a: !!python/object:os.system s3cret", "not valid YAML"),
    "a date that is none": ("a: 2026-13-45", "not valid YAML"),
    "more than a MiB": ("a" * (MIB + 1), "larger than 1,024 KiB"),
    "half a character": ("a: \ud800", "not UTF-8"),
    "a NUL byte": ("a: \x00", "not valid YAML"),
    "a quote that does not end": ("a: '" + "x\n" * 500_000, "not valid YAML"),
    "a flow key over many lines": ("{" + "x\n" * 500_000, "not valid YAML"),
    "colons": (":" * MIB, ""),
    "blanks": (" " * MIB, ""),
    "a comment": ("#" * MIB, ""),
    "anchors": ("&a " * 300_000, "not valid YAML"),
    "tags": ("!a " * 300_000, "not valid YAML"),
    "a directive": ("%" + "A" * 1_000_000, "not valid YAML"),
    "a block scalar": ("a: |\n" + " x\n" * 300_000, ""),
    "escapes": ('a: "' + "\\x41" * 250_000 + '"', ""),
}  # fmt: skip


def refused(read: Callable[[str, Limits], Any], text: str) -> str:
    """Read a text, and construct what is only composed; return why it is refused."""
    try:
        found = read(text, DEFAULT)
        if read is compose_yaml and found is not None:
            construct_yaml(found)
    except TextError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_or_read_in_time(name: str) -> None:
    text, word = HOSTILE[name]
    for read in (load_yaml, load_yaml_all, compose_yaml):
        started = time.process_time()
        refusal = refused(read, text)
        if refusal:
            assert word in refusal
            assert "s3cret" not in refusal
        else:
            assert word in ("", "not UTF-8") or (read is not load_yaml and "not valid" in word)
        # A MiB of plain YAML takes a second of a slow machine; what is quadratic takes minutes.
        assert time.process_time() - started < 5


def test_sixty_kilobytes_of_brackets_do_not_end_the_process() -> None:
    """The composer of libyaml would take the whole process with it, so this one is another's."""
    program = (
        "from caphv.runtime.text import TextError, load_yaml\n"
        "try: load_yaml('a: ' + '[' * 30000 + ']' * 30000)\n"
        "except TextError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "is nested more than 100 levels deep" in done.stdout


def test_harmless_text_is_read() -> None:
    assert load_yaml("a: &a [1, 0x10, 1.5, 1:30]\nb: *a\n") == {"a": [1, 16, 1.5, 90], "b": [1, 16, 1.5, 90]}
    assert load_yaml(b"\xef\xbb\xbf{}") == {}
    assert load_yaml("") is None
    assert load_yaml_all("a: 1\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    node = compose_yaml("a: [1]")
    assert node is not None
    assert construct_yaml(node) == {"a": [1]}
    assert load_yaml("x: " + "[" * 99 + "]" * 99) is not None


def test_anchors_and_aliases_can_be_forbidden() -> None:
    assert load_yaml("a: &a 1", Limits(aliases=False)) == {"a": 1}
    with pytest.raises(TextError, match="must not use YAML aliases"):
        load_yaml("a: &a 1\nb: *a", Limits(aliases=False))
    with pytest.raises(TextError, match="anchors"):
        load_yaml("a: &a 1", Limits(anchors=False))


def test_reading_takes_only_its_time() -> None:
    with pytest.raises(TextError, match="takes more than 0 s"):
        load_yaml("[" + "1," * 5000 + "]", Limits(seconds=0))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[" * 101 + "]" * 101, "nested more than 100 levels"),
        ('{"a":' * 900 + "1" + "}" * 900, "nested more than 100 levels"),
        ("[" * 50_000, "not valid JSON"),
        ("[" * 50_000 + "]" * 50_000, "not valid JSON"),
        ("[" * 500_000 + "]" * 500_000, "more than 100,000 values"),
        (" " * (MIB + 1), "larger than"),
        ('{"token": "s3cret"', "not valid JSON"),
        ("NaN", "not valid JSON"),
        ("[" + "{}," * 100_000 + "{}]", "more than 100,000 values"),
        ('{"a": ' + '"x",' * 100_001, "more than 100,000 values"),
        ('"' + '\\",' * 300_000, "not valid JSON"),
        ('[1, "' + "\\" * 300_000 + "," * 300_000, "not valid JSON"),
        ("[" + "," * 90_000 + '"' * 100_001, "not valid JSON"),
        ("\ud800", "not valid JSON"),
    ],
)
def test_hostile_json_is_refused(text: str, word: str) -> None:
    started = time.process_time()
    with pytest.raises(TextError, match=word) as caught:
        load_json(text)
    assert "s3cret" not in str(caught.value)
    assert time.process_time() - started < 1


def test_harmless_json_is_read() -> None:
    assert load_json(b'{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    assert load_json("[" * 100 + "]" * 100) is not None
    assert len(load_json("[" + "1," * 99_990 + "1]")) == 99_991
    # Only commas and brackets outside of strings separate values.
    text = ',[{\\"' * 100_000
    assert load_json(f'["{text}", "{text}"]') == [',[{"' * 100_000] * 2


async def test_large_text_leaves_the_event_loop_free() -> None:
    text = "\n".join(f"key{n}: [a, b, c]" for n in range(12_000))
    reading = asyncio.ensure_future(off_loop(len(text), lambda: load_yaml(text)))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert len(await reading) == 12_000
    # On the loop there would be one; how many there are here is up to the machine.
    assert turns > 5
