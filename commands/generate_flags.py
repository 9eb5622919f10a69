"""The flags of `caphv generate`, and the groups in which its help lists them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from packager.definitions.flags import FLAGS

# By the field that a flag sets: the longest path that fits.
_BY_FIELD = {
    ("metadata",): "Cluster",
    ("spec",): "Cluster",
    ("spec", "controlPlane"): "Machines",
    ("spec", "workers"): "Machines",
    ("spec", "machines"): "Machines",
    ("spec", "addresses"): "Addresses",
    ("spec", "loadBalancer"): "Addresses",
    ("spec", "targetNamespace"): "Harvester",
    ("spec", "identitySecret"): "Harvester",
    ("spec", "addons"): "Network and add-ons",
    ("spec", "clusterNetwork"): "Network and add-ons",
    ("spec", "fleet"): "Network and add-ons",
    ("spec", "registries"): "Registries",
    ("spec", "addons", "imageRegistry"): "Registries",
    ("spec", "hardening"): "Hardening",
}
_BY_PARAMETER = {
    "individual_objects": "Cluster",
    "rancher_auto_import": "Cluster",
    "disable_fstrim_timer": "Machines",
    "no_guest_agent": "Machines",
    "user_data": "Machines",
    "harvester_kubeconfig": "Harvester",
    "check_kubeconfig": "Harvester",
    "replace_identity": "Harvester",
    "no_harvester": "Harvester",
    "chart_repo": "Network and add-ons",
    "templates": "Network and add-ons",
    "pushed": "Network and add-ons",
    "fips_required": "Hardening",
    "stig": "Hardening",
    "definition": "Input",
    "interactive": "Input",
}
_GROUPS = ("Input", *dict.fromkeys(_BY_FIELD.values()))
_LAST = "Output"


class GroupedCommand(click.Command):
    """A command whose help lists its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each in its group."""
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group in (*_GROUPS, _LAST)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                groups[group_of(parameter)].append(record)

        for group, records in groups.items():
            if records:
                with formatter.section(group):
                    formatter.write_dl(records)


def group_of(parameter: click.Parameter) -> str:
    """Return the group of an option."""
    flag = next((flag for flag in FLAGS if flag.parameter == parameter.name), None)
    if flag is None:
        return _BY_PARAMETER.get(str(parameter.name), _LAST)
    fitting = [path for path in _BY_FIELD if flag.path[: len(path)] == path]
    return _BY_FIELD[max(fitting, key=len)]


def cluster_flags(command: Any) -> Any:
    """Add the flags that set fields of a definition."""
    for flag in reversed(FLAGS):
        complete = partial(_complete, flag.choices)
        option = click.option(
            flag.name, flag.parameter, default="", metavar="TEXT", help=flag.help, shell_complete=complete
        )
        command = option(command)
    return command


def _complete(choices: Sequence[str], _ctx: click.Context, _option: click.Parameter, begun: str) -> list[str]:
    return [choice for choice in choices if choice.startswith(begun)]
