"""Paths that cannot be written are refused before the work, and never end in a traceback."""

from __future__ import annotations

import errno
import inspect
import stat
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from commands import cloud_config, identity_create, main, support_bundle
from commands.options.outputfile import OutputFile, write_private

pytestmark = pytest.mark.unit


def never(*work: Any, **__: Any) -> Any:
    for each in work:
        if inspect.iscoroutine(each):
            each.close()
    raise AssertionError("the work was done")


COMMANDS = {
    "support-bundle": ["support-bundle", "-A"],
    "identity": ["identity", "create", "--harvester-kubeconfig", "harvester.yaml", "--expires-in", "90"],
    "cloud-config": ["cloud-config", "create", "shop", "-n", "vms", "--harvester-kubeconfig", "harvester.yaml"],
    "renew": ["cloud-config", "renew", "shop", "-n", "vms", "--harvester-kubeconfig", "harvester.yaml"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("file", "reason"),
    [("absent/x", "absent is not a directory"), ("file/x", "not a directory"), ("folder", "is a dir")],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, file: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("file", "harvester.yaml"):
        (tmp_path / name).touch()
    for module in (support_bundle, cloud_config):
        monkeypatch.setattr(module, "run", never)
    monkeypatch.setattr(identity_create, "_create", never)
    result = CliRunner().invoke(main.cli, [*COMMANDS[command], "--file", file])
    assert (result.exit_code, reason in result.output) == (2, True), result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_with_content_is_not_replaced_without_being_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("something")
    (tmp_path / "harvester.yaml").touch()
    for module in (support_bundle, cloud_config):
        monkeypatch.setattr(module, "run", never)
    monkeypatch.setattr(identity_create, "_create", never)
    result = CliRunner().invoke(main.cli, [*COMMANDS[command], "--file", "there"])
    assert (result.exit_code, "add --overwrite" in result.output) == (2, True), result.output
    with pytest.raises(AssertionError, match="the work was done"):
        CliRunner().invoke(main.cli, [*COMMANDS[command], "--file", "there", "--overwrite"])
    assert (tmp_path / "there").read_text() == "something"


def test_a_directory_without_the_right_to_write_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tests may run as root, whom no directory refuses."""
    (tmp_path / "there").touch()
    monkeypatch.setattr("os.access", lambda path, _mode: Path(path) != tmp_path)
    with pytest.raises(click.BadParameter, match="is not writable"):
        OutputFile().convert(str(tmp_path / "new"), None, None)
    assert OutputFile().convert(str(tmp_path / "there"), None, None) == tmp_path / "there"


def test_what_is_written_is_for_its_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("a longer content that was there")
    file.chmod(0o644)
    write_private(file, b"secret")
    assert (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) == (b"secret", 0o600)


def test_an_error_of_a_file_is_a_message_and_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(error: OSError) -> Any:
        def cli(**_: Any) -> None:
            raise error

        return cli

    monkeypatch.setattr(main, "cli", fails(IsADirectoryError(errno.EISDIR, "Is a directory", "some/file")))
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert (caught.value.code, capsys.readouterr().err) == (1, "Error: some/file: Is a directory\n")
    # So has a full disk, which has no name.
    monkeypatch.setattr(main, "cli", fails(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(SystemExit) as caught:
        main.main()
    assert (caught.value.code, capsys.readouterr().err) == (1, "Error: No space left on device\n")
    # One without a file is no mistake of the user.
    monkeypatch.setattr(main, "cli", fails(OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        main.main()
