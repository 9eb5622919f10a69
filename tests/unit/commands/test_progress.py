"""What commands write to a pipe while a user waits."""

from __future__ import annotations

import pytest

from commands.output import progress

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("patience", [0.0, 3600.0])
def test_a_pipe_gets_no_step(
    patience: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", patience)
    with progress.patient_progress() as step:
        step("reading")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("seconds", "shown"), [(0.0, ""), (5.0, ""), (5.1, "second …\n")])
def test_a_pipe_gets_a_line_of_the_packager_when_it_takes_long(
    seconds: float, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 1.0, seconds, seconds, seconds])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with progress.progress() as step:
        step("first")
        step("second")
    assert capsys.readouterr().err == shown
