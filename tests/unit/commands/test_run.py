"""The switches of `caphv run` in the notation of Go: their values are those of Go's `strconv.ParseBool`."""

import pytest
from click.testing import CliRunner, Result

from caphv.runtime import logs
from commands.main import cli
from reconciler import manager

pytestmark = pytest.mark.unit

SWITCHES = (
    *("leader-elect", "enable-webhooks", "with-packager", "allow-insecure-identities", "cross-namespace-refs"),
    *("metrics-secure", "zap-devel"),
)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[manager.ProviderOptions]:
    """Options of the providers that were started."""
    options: list[manager.ProviderOptions] = []

    async def run(given: manager.ProviderOptions, *_: object) -> None:
        options.append(given)

    monkeypatch.setattr(manager, "run", run)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    return options


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["run", *arguments], prog_name="caphv")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((value, True) for value in ("1", "t", "T", "true", "TRUE", "True")),
        *((value, False) for value in ("0", "f", "F", "false", "FALSE", "False")),
    ],
)
@pytest.mark.parametrize("dash", ["-", "--"])
def test_values_of_go_are_accepted(
    dash: str, value: str, expected: bool, started: list[manager.ProviderOptions]
) -> None:
    result = call(f"{dash}leader-elect={value}", f"{dash}metrics-secure={value}", f"{dash}cross-namespace-refs={value}")
    assert result.exit_code == 0, result.output
    (options,) = started
    assert (options.leader_elect, options.secure_metrics, options.cross_namespace_refs) == (expected,) * 3


@pytest.mark.parametrize("value", ["yes", "on", "banana", "tRUE", "2", "", " true"])
@pytest.mark.parametrize("name", SWITCHES)
def test_another_value_is_a_usage_error(name: str, value: str, started: list[manager.ProviderOptions]) -> None:
    result = call(f"-{name}={value}")
    assert result.exit_code == 2
    assert started == []
    assert f"--{name}" in result.output
    assert repr(value) in result.output
    assert "1, t, T, true, TRUE, True, 0, f, F, false, FALSE, False" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        (["--zap-devel"], "debug"),
        (["-zap-devel=1"], "debug"),
        (["--zap-devel=TRUE"], "debug"),
        (["--zap-devel=false"], "info"),
        (["--zap-log-level=DEBUG"], "debug"),
        (["--zap-log-level=panic"], "error"),
        (["--zap-log-level=3"], "debug"),
        (["--zap-log-level=0"], "info"),
        (["--zap-log-level=²"], "info"),
        ([], "info"),
    ],
)
def test_levels_of_the_go_provider_set_the_level(
    arguments: list[str],
    level: str,
    monkeypatch: pytest.MonkeyPatch,
    started: list[manager.ProviderOptions],
) -> None:
    levels: list[str] = []
    monkeypatch.setattr(logs, "configure", lambda level, _format: levels.append(level))
    assert call(*arguments).exit_code == 0
    assert len(started) == 1
    assert levels == [level]


def test_an_unknown_level_of_the_go_provider_is_named_and_does_not_stop_the_start(
    started: list[manager.ProviderOptions],
) -> None:
    result = call("--zap-log-level=warn")
    assert (result.exit_code, len(started)) == (0, 1)
    assert "--zap-log-level 'warn' is none of debug, info, error, panic and no number" in result.output
    assert "zap" not in call("--zap-log-level=error").output
