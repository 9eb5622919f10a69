"""Where the passphrase of a backup comes from, and which one is refused."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import click
import pytest

from commands.errors import InputError
from commands.options.passphrase import VARIABLE, read_passphrase
from operations.backup.sealing import MIN_PASSPHRASE_LENGTH

pytestmark = pytest.mark.unit

LONG = "x" * MIN_PASSPHRASE_LENGTH


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "passphrase"


@pytest.mark.parametrize("text", [LONG, f"{LONG}\n", f"{LONG}\r\n"])
def test_a_file_has_one_line_and_precedes_the_variable(file: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "another passphrase")
    file.write_bytes(text.encode())
    assert read_passphrase(file) == LONG
    assert read_passphrase(None) == "another passphrase"


@pytest.mark.parametrize("text", [f"{LONG}\n", f"{LONG}\r\n", f"\n{LONG}"])
@pytest.mark.parametrize("new", [False, True])
def test_a_variable_and_a_file_of_the_same_text_open_the_same_backup(
    file: Path, text: str, new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    file.write_bytes(text.encode())
    assert read_passphrase(None, new=new) == read_passphrase(file, new=new) == LONG


@pytest.mark.parametrize("text", ["\n", f"{LONG}\n{LONG}", "x" * 4097])
def test_a_variable_that_is_not_one_line_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(InputError, match=f"variable {VARIABLE}: expected one line with the passphrase"):
        read_passphrase(None)


def test_the_longest_passphrase_fits_and_more_is_refused(file: Path) -> None:
    file.write_text("x" * 4096)
    assert len(read_passphrase(file)) == 4096
    for text in ("x" * 4097, "", "\n", f"{LONG}\n{LONG}"):
        file.write_text(text)
        with pytest.raises(InputError, match="expected one line with the passphrase"):
            read_passphrase(file)


def test_a_file_that_cannot_be_read_says_why(file: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        read_passphrase(file)
    file.write_bytes(b"\xff")
    with pytest.raises(InputError, match="is not text"):
        read_passphrase(file)


def test_only_a_new_passphrase_has_to_be_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, LONG[1:])
    assert read_passphrase(None) == LONG[1:]
    with pytest.raises(InputError, match=f"has {len(LONG) - 1} characters: use at least {len(LONG)}"):
        read_passphrase(None, new=True)
    monkeypatch.setenv(VARIABLE, LONG)
    assert read_passphrase(None, new=True) == LONG


@pytest.mark.parametrize("new", [False, True])
def test_without_a_terminal_there_is_no_question(new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{LONG}\n{LONG}\n"))
    with pytest.raises(click.UsageError) as caught:
        read_passphrase(None, new=new)
    assert ("--unencrypted" in caught.value.message) is new


@pytest.mark.parametrize("new", [False, True])
def test_on_a_terminal_a_new_passphrase_is_asked_for_twice(new: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def prompt(text: str, *, hide_input: bool, confirmation_prompt: bool, err: bool) -> str:
        assert err
        asked.append((text, hide_input, confirmation_prompt))
        return LONG

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(click, "prompt", prompt)
    assert read_passphrase(None, new=new) == LONG
    assert asked == [("Passphrase of the backup", True, new)]


def test_questions_and_what_is_wrong_with_answers_leave_standard_output_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([LONG, f"{LONG}y", LONG, LONG])
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(click.termui, "hidden_prompt_func", lambda _question: next(answers))
    assert read_passphrase(None, new=True) == LONG
    output = capsys.readouterr()
    assert (output.out, "do not match" in output.err) == ("", True)
