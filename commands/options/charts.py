"""Options for the sources of bundles: charts and templates. A cluster's record pins both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.options.groups import with_options

if TYPE_CHECKING:
    from packager.rendering.options import RenderOptions

_Command = TypeVar("_Command", bound=Callable[..., Any])
DEFAULT = "default"


class _Templates(click.Path):
    """A folder, or the word `default`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in ("", DEFAULT) else super().convert(value, param, ctx)


FLEET_VERSION = click.option(
    "--fleet-version",
    default="",
    show_default=False,
    envvar="CAPHV_FLEET_VERSION",
    metavar="RELEASE",
    help=(
        "Fleet release that reads the bundles, such as v0.16.1.  [default: the oldest supported "
        "one]"
    ),
)


@dataclass(frozen=True, kw_only=True)
class ChartOptions:
    """The sources of charts and templates, and the Fleet that reads them, of `chart_options`."""

    templates: str
    chart_repo: str
    fleet_version: str


def chart_options(command: _Command) -> _Command:
    """Add the options for the sources of charts and templates, and for the release of Fleet."""
    return with_options(
        command,
        FLEET_VERSION,
        click.option(
            "--chart-repo",
            default="",
            show_default=False,
            envvar="CAPHV_CHART_REPO",
            metavar="URL",
            help=(
                "Repository that mirrors all charts, https://… or oci://….  [default: each "
                "chart's own repository]"
            ),
        ),
        click.option(
            "--templates",
            type=_Templates(exists=True, file_okay=False),
            default="",
            show_default=False,
            envvar="CAPHV_TEMPLATES",
            metavar="DIRECTORY",
            help=(
                "Directory with templates that replace or add to the built-in ones.  [default: "
                "the built-in ones only]"
            ),
        ),
    )


def helm_secret_options(command: _Command) -> _Command:
    """Add the options for the credentials with which Fleet pulls charts."""
    return with_options(
        command,
        click.option(
            "--helm-repo-regex",
            default="",
            show_default=False,
            envvar="CAPHV_HELM_REPO_REGEX",
            metavar="REGEX",
            help=(
                "Regular expression for the chart repositories that get the credentials of "
                "--helm-secret, field helmRepoURLRegex of the GitRepos."
            ),
        ),
        click.option(
            "--helm-secret",
            default="",
            show_default=False,
            envvar="CAPHV_HELM_SECRET",
            metavar="NAME",
            help=(
                "Secret with Fleet's credentials for chart repositories, field helmSecretName "
                "of the GitRepos."
            ),
        ),
    )


def rendering(options: ChartOptions, *, force: bool = False) -> RenderOptions:
    """Return the rendering options for `chart_options`."""
    from packager.rendering.options import render_options

    return render_options(
        options.templates, options.chart_repo, force=force, fleet_version=options.fleet_version
    )
