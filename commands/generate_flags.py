"""The flags of `caphv generate`, and the groups in which its help lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import make_dataclass
from functools import partial
from typing import Any, TypeVar

import click

from caphv.api import resources
from caphv.api.object import NAMESPACES
from commands.options.completion import Completion, complete_namespaces, complete_on_harvester
from packager.definitions.flags import FLAGS, Flag

# The group of a flag by the field that it sets. The longest matching path counts.
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
    ("spec", "identityRef"): "Harvester",
    ("spec", "addons"): "Network and add-ons",
    ("spec", "clusterNetwork"): "Network and add-ons",
    ("spec", "fleet"): "Network and add-ons",
    ("spec", "registries"): "Registries",
    ("spec", "addons", "imageRegistry"): "Registries",
    ("spec", "hardening"): "Hardening",
    ("spec", "etcdSnapshots"): "Snapshots of etcd",
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
    "fleet_version": "Network and add-ons",
    "pushed": "Network and add-ons",
    "fips_required": "Hardening",
    "stig": "Hardening",
    "definition": "Input",
    "interactive": "Input",
}
# Flags that name objects of Harvester.
_ON_HARVESTER = {
    "--target-namespace": NAMESPACES,
    "--image": resources.IMAGES,
    "--ssh-keypair": resources.KEY_PAIRS,
    "--network": resources.NETWORKS,
    "--ip-pool": resources.IP_POOLS,
    "--ip-pool-refs": resources.IP_POOLS,
    "--lb-ip-pool": resources.IP_POOLS,
}
_GROUPS = ("Input", *dict.fromkeys(_BY_FIELD.values()))
_LAST = "Output"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _field(flag: Flag) -> str:
    """Return the name of a flag's value, which must not be a keyword such as `class`."""
    return f"flag_{flag.parameter}"


# A group of options, like others, for the values of `cluster_flags`. The flags define its fields.
ClusterFlags = make_dataclass(
    "ClusterFlags", [(_field(flag), str) for flag in FLAGS], frozen=True, kw_only=True
)


def flag_values(flags: object) -> dict[str, str]:
    """Return the values of `ClusterFlags` by flag, as typed."""
    return {flag.name: str(getattr(flags, _field(flag))) for flag in FLAGS}


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
    flag = next((flag for flag in FLAGS if _field(flag) == parameter.name), None)
    if flag is None:
        return _BY_PARAMETER.get(str(parameter.name), _LAST)
    fitting = [path for path in _BY_FIELD if flag.path[: len(path)] == path]
    return _BY_FIELD[max(fitting, key=len)]


def cluster_flags(command: _Command) -> _Command:
    """Add the flags that set fields of a definition."""
    # click lists options in the reverse order of their decorators.
    for flag in reversed(FLAGS):
        complete: Completion = partial(_complete, flag.choices)
        if flag.name == "--namespace":
            complete = complete_namespaces
        elif flag.name in _ON_HARVESTER:
            complete = complete_on_harvester(_ON_HARVESTER[flag.name])
        option = click.option(
            flag.name,
            _field(flag),
            default="",
            metavar=flag.metavar,
            help=flag.help,
            shell_complete=complete,
        )
        command = option(command)
    return command


def _complete(
    choices: Sequence[str], _ctx: click.Context, _option: click.Parameter, begun: str
) -> list[str]:
    return [choice for choice in choices if choice.startswith(begun)]
