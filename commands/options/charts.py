"""Options for the sources of bundles: charts and templates. A cluster's record pins both."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from packager.rendering.renderer import RenderOptions

_Command = TypeVar("_Command", bound=Callable[..., Any])
DEFAULT = "default"


class _Templates(click.Path):
    """A folder, or the word `default`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value in ("", DEFAULT) else super().convert(value, param, ctx)


def chart_options(command: _Command) -> _Command:
    """Add the options for the sources of charts and templates."""
    for add in (
        click.option(
            "--chart-repo",
            default="",
            show_default=False,
            envvar="CAPHV_CHART_REPO",
            metavar="URL",
            help="Mirror of all charts, https://… or oci://…; default: each chart's own repository.",
        ),
        click.option(
            "--templates",
            type=_Templates(exists=True, file_okay=False),
            default="",
            show_default=False,
            envvar="CAPHV_TEMPLATES",
            metavar="FOLDER",
            help="Folder with templates that replace or add to the shipped ones; default: the shipped ones.",
        ),
    ):
        command = add(command)
    return command


def helm_secret_options(command: _Command) -> _Command:
    """Add the options for the credentials with which Fleet pulls charts."""
    for add in (
        click.option(
            "--helm-repo-regex",
            default="",
            show_default=False,
            envvar="CAPHV_HELM_REPO_REGEX",
            metavar="REGEX",
            help="Chart repositories that --helm-secret is for, for the GitRepos.",
        ),
        click.option(
            "--helm-secret",
            default="",
            show_default=False,
            envvar="CAPHV_HELM_SECRET",
            metavar="NAME",
            help="Secret with credentials for Fleet to pull charts, for the GitRepos.",
        ),
    ):
        command = add(command)
    return command


def rendering(flags: dict[str, Any], *, force: bool = False) -> RenderOptions:
    """Return how to render, from `chart_options`."""
    from packager.rendering.renderer import render_options

    return render_options(flags["templates"], flags["chart_repo"], force=force)
