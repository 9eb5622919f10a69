"""Options for endpoints and logs, on a command that has nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click
import pytest
from click.testing import CliRunner, Result

from caphv.runtime.client import ApiClient
from commands.options.endpoints import (
    EndpointOptions,
    certificate_folder,
    log_options,
    metrics_auth,
    metrics_options,
    probe_option,
)

pytestmark = pytest.mark.unit

DEFAULTS: dict[str, Any] = {
    "metrics_bind_address": ":8080",
    "metrics_secure": False,
    "metrics_cert_dir": "",
    "health_probe_bind_address": ":9440",
    "log_level": "info",
    "log_format": "auto",
}


def call(*words: str) -> tuple[Result, dict[str, Any]]:
    """Run the command; return its result, and the values that it got."""
    values: dict[str, Any] = {}

    def command(**options: Any) -> None:
        values.update(options)

    for decorate in (log_options, probe_option, metrics_options):
        command = decorate(command)
    return CliRunner().invoke(click.command()(command), words), values


def test_a_command_has_the_options_of_all_endpoints() -> None:
    assert call()[1] == DEFAULTS


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (("--metrics-bind-address", "0", "--health-probe-bind-address", "127.0.0.1:1"), ("0", "127.0.0.1:1")),
        (("--log-level", "debug", "--log-format", "json"), ("debug", "json")),
        (("--metrics-secure", "--metrics-cert-dir", "certs"), (True, "certs")),
    ],
)
def test_an_option_changes_only_its_value(words: tuple[str, ...], changed: tuple[Any, ...]) -> None:
    _, values = call(*words)
    assert set(values) == set(DEFAULTS)
    assert tuple(value for name, value in values.items() if value != DEFAULTS[name]) != ()
    assert {value for name, value in values.items() if value != DEFAULTS[name]} == set(changed)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("--metrics-bind-address", "nowhere"),
        ("--health-probe-bind-address", "nowhere"),
        ("--log-level", "loud"),
        ("--log-format", "xml"),
    ],
)
def test_a_value_without_a_meaning_is_wrong_usage(name: str, value: str) -> None:
    result, _ = call(name, value)
    assert (result.exit_code, name in result.output) == (2, True)


def options(**fields: Any) -> EndpointOptions:
    return EndpointOptions(**{**DEFAULTS, **fields})


def test_a_folder_of_certificates_is_only_for_metrics_over_tls() -> None:
    assert certificate_folder(options()) is None
    assert certificate_folder(options(metrics_secure=True)) is None
    assert certificate_folder(options(metrics_secure=True, metrics_cert_dir="certs")) == Path("certs")
    with pytest.raises(click.UsageError, match="no effect without --metrics-secure"):
        certificate_folder(options(metrics_cert_dir="certs"))


def test_metrics_are_guarded_only_on_request_and_with_a_client_to_ask() -> None:
    client = cast(ApiClient, object())
    assert metrics_auth(options(), client) is None
    assert metrics_auth(options(metrics_secure=True), None) is None
    assert metrics_auth(options(metrics_secure=True), client) is not None
