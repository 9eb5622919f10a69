"""Options of rendering: templates of a user, a mirror of charts, and the release of Fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packager.rendering import sources


@dataclass(frozen=True)
class RenderOptions:
    """Options of rendering.

    `templates` is a user's folder that overrides the shipped templates, and `chart_repository` is
    the URL of a mirror of all charts. Leaving one out is refused while a lockfile pins it:
    `default` as the repository restores the charts' own repositories, and `shipped` the shipped
    templates. `force` allows changes that break the network of a live cluster. `fleet_version` is
    the release of Fleet that reads the bundles, empty for the oldest supported.
    """

    templates: Path | None = None
    chart_repository: str = ""
    force: bool = False
    shipped: bool = False
    fleet_version: str = ""

    @property
    def mirror(self) -> str:
        """URL of the mirror, empty for the charts' own repositories."""
        return "" if self.chart_repository == sources.DEFAULT else self.chart_repository


def render_options(
    templates: str, chart_repository: str, *, force: bool = False, fleet_version: str = ""
) -> RenderOptions:
    """Return options from the values of flags; the first two may be empty or `default`."""
    # An empty value keeps the choice in the lockfile, and `default` asks for the shipped templates.
    shipped = templates == sources.DEFAULT
    folder = Path(templates) if templates and not shipped else None
    return RenderOptions(
        templates=folder,
        chart_repository=chart_repository,
        force=force,
        shipped=shipped,
        fleet_version=fleet_version,
    )
