"""`caphv run`: its switches in the notation of Go, what they mean, and its exit status.

Their values are those of Go's `strconv.ParseBool`.
"""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from caphv.runtime import logs
from caphv.runtime.errors import ApiError
from caphv.runtime.kubeconfig import KubeconfigError
from caphv.runtime.manager import LeaseLost
from commands.main import cli
from reconciler import manager
from tools.release.__main__ import contents

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


@pytest.mark.parametrize(("address", "expected"), [(":9444", ":9444"), ("", ""), ("0", ""), (":0", "")])
def test_the_runtime_extension_is_served_only_at_an_address(
    address: str, expected: str, started: list[manager.ProviderOptions]
) -> None:
    result = call(f"--runtime-extension-bind-address={address}")
    assert result.exit_code == 0, result.output
    assert started[0].extension_address == expected
    result = call("--runtime-extension-bind-address=here")
    assert (result.exit_code, "--runtime-extension-bind-address: 'here' is not of the form" in result.output) == (
        2,
        True,
    )


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


def test_components_that_kubectl_has_applied_start_it_with_their_defaults(
    monkeypatch: pytest.MonkeyPatch, started: list[manager.ProviderOptions]
) -> None:
    """clusterctl and Turtles fill in the variables, `kubectl apply` leaves them."""
    levels: list[str] = []
    monkeypatch.setattr(logs, "configure", lambda level, _format: levels.append(level))
    components = contents()["infrastructure-components.yaml"].decode().split("\n---\n")
    deployment = yaml.safe_load(next(text for text in components if "\nkind: Deployment\n" in text))
    command, *arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert {"--log-level=${CAPHV_LOG_LEVEL:=info}", "--concurrency=${CAPHV_CONCURRENCY:=32}"} <= set(arguments)
    result = CliRunner().invoke(cli, [command, *arguments])
    assert result.exit_code == 0, result.output
    assert (levels, [options.concurrency for options in started]) == (["info"], [32])


@pytest.mark.parametrize("argument", ["--concurrency=${CAPHV_CONCURRENCY}", "--concurrency=${CAPHV_CONCURRENCY:=many}"])
def test_a_variable_without_a_fitting_default_is_a_usage_error(
    argument: str, started: list[manager.ProviderOptions]
) -> None:
    assert (call(argument).exit_code, started) == (2, [])


# Its options and its end


def test_every_option_reaches_the_provider(started: list[manager.ProviderOptions]) -> None:
    assert call().exit_code == 0
    words = "--kubeconfig k --namespace n --watch-filter w --concurrency 7 --harvester-cache-size 64 --leader-elect"
    more = "--metrics-secure --metrics-cert-dir certs --metrics-bind-address :1 --health-probe-bind-address :2"
    result = call(*words.split(), *more.split(), "--allow-harvester-cidr", "127.0.0.0/8", "--no-cross-namespace-refs")
    assert result.exit_code == 0, result.output
    default, given = started
    assert (default.kubeconfig, default.namespace, default.watch_filter, default.leader_elect) == ("", "", "", False)
    assert (default.concurrency, default.harvester_cache_mib, default.cross_namespace_refs) == (32, 32, True)
    assert (default.secure_metrics, default.metrics_certificate) == (False, None)
    assert default.allow_insecure_identities is False
    assert (given.kubeconfig, given.namespace, given.watch_filter, given.leader_elect) == ("k", "n", "w", True)
    assert (given.concurrency, given.harvester_cache_mib, given.cross_namespace_refs) == (7, 64, False)
    assert (given.secure_metrics, given.metrics_certificate) == (True, Path("certs"))
    assert default.address_policy != given.address_policy
    assert (default.addresses.metrics, given.addresses.metrics, given.addresses.health) == (":8080", ":1", ":2")


def test_a_certificate_without_guarded_metrics_is_wrong_usage(started: list[manager.ProviderOptions]) -> None:
    result = call("--metrics-cert-dir", "certs")
    assert (result.exit_code, "has no effect without --metrics-secure" in result.output) == (2, True)
    assert started == []


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LeaseLost("lost"), 3),
        (KubeconfigError("no kubeconfig"), 1),
        (ApiError(500, "", "broken"), 1),
        (OSError("the address is in use"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_its_exit_status_says_why_it_ended(error: Exception, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(manager, "run", fail)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    assert call().exit_code == status


@pytest.mark.parametrize(
    ("arguments", "log_format"),
    [
        ([], "auto"),
        (["--log-format", "text"], "text"),
        (["--zap-encoder=json"], "json"),
        (["--zap-encoder=console"], "text"),
        (["--log-format", "text", "--zap-encoder=json"], "json"),
    ],
)
def test_the_encoder_of_the_go_provider_sets_the_format(
    arguments: list[str],
    log_format: str,
    monkeypatch: pytest.MonkeyPatch,
    started: list[manager.ProviderOptions],
) -> None:
    formats: list[str] = []
    monkeypatch.setattr(logs, "configure", lambda _level, log_format: formats.append(log_format))
    assert call(*arguments).exit_code == 0
    assert (len(started), formats) == (1, [log_format])
