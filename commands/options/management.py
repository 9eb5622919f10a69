"""Options for the management cluster, and for the clusters and namespaces on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from caphv.api import remedies
from caphv.api.object import Key
from caphv.validation.finding import did_you_mean
from commands.errors import InputError
from commands.options.completion import complete_clusters, complete_namespaces
from commands.options.groups import with_options

if TYPE_CHECKING:
    from operations.status.query import Query

_Command = TypeVar("_Command", bound=Callable[..., Any])

KUBECONFIG = click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="Kubeconfig of the management cluster.  [default: KUBECONFIG, else ~/.kube/config]",
)
CONTEXT = click.option(
    "--context",
    default="",
    metavar="NAME",
    help="Context in the kubeconfig.  [default: the current one]",
)


@dataclass(frozen=True, kw_only=True)
class ManagementOptions:
    """The options of `management_options` for the management cluster."""

    kubeconfig: str = ""
    context: str = ""


@dataclass(frozen=True, kw_only=True)
class ScopeOptions(ManagementOptions):
    """The management cluster, and the namespaces of the clusters on it.

    These are options of `cluster_argument` or `namespace_options`.
    """

    namespace: str = ""
    all_namespaces: bool = False


def management_options(command: _Command) -> _Command:
    """Add the options that name the management cluster: `kubeconfig` and `context`."""
    return with_options(
        command,
        CONTEXT,
        KUBECONFIG,
    )


def namespace_options(command: _Command) -> _Command:
    """Add the options for a namespace, as kubectl has them: `namespace` and `all_namespaces`."""
    return with_options(
        command,
        click.option("-A", "--all-namespaces", is_flag=True, help="Use all namespaces."),
        click.option(
            "-n",
            "--namespace",
            default="",
            metavar="NAMESPACE",
            shell_complete=complete_namespaces,
            help="Use this namespace.  [default: the context's]",
        ),
    )


def cluster_argument(command: _Command) -> _Command:
    """Add `cluster`, and the option `namespace` for its name without one."""
    return with_options(
        command,
        namespace_option("Namespace of the cluster.  [default: the context's]"),
        click.argument("cluster", shell_complete=complete_clusters),
    )


def clusters_argument(*, required: bool = False) -> Callable[[_Command], _Command]:
    """Return the argument `clusters`, of any number."""
    metavar = "CLUSTER..." if required else "[CLUSTER]..."
    return click.argument(
        "clusters", metavar=metavar, nargs=-1, required=required, shell_complete=complete_clusters
    )


def namespace_option(help_text: str) -> Callable[[_Command], _Command]:
    """Return the option `namespace`."""
    return click.option(
        "-n",
        "--namespace",
        default="",
        metavar="NAMESPACE",
        shell_complete=complete_namespaces,
        help=help_text,
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """The clusters of a command line: `keys`, or without keys all clusters of `namespace`.

    An empty namespace means all namespaces.
    """

    namespace: str
    keys: tuple[Key, ...] = ()

    def query(self, *, deep: bool = False) -> Query:
        """Return the query for these clusters; `deep` includes Harvesters and API servers."""
        from operations.status.query import Query

        return Query(self.namespace, frozenset(self.keys), deep)

    def require(self, keys: set[Key], known: Iterable[Key] = ()) -> None:
        """Raise `InputError` unless each cluster exists, with similar names among those `known`."""
        names = sorted(map(str, known))
        missing = [f"{key}{did_you_mean(str(key), names)}" for key in self.keys if key not in keys]
        if missing:
            hint = "" if names else f"; clusters of all namespaces: {remedies.STATUS_OF_ALL}"
            raise InputError(f"no such cluster on Harvester: {', '.join(missing)}{hint}")

    def none_there(self) -> InputError:
        """Return the error for a selection by namespace that has no cluster."""
        if self.namespace:
            return InputError(f"no clusters in namespace {self.namespace}; all namespaces: -A")
        return InputError("no clusters on Harvester are in this management cluster")


def selection(clusters: Sequence[str], scope: ScopeOptions) -> Selection:
    """Return the selected clusters, each written as `NAMESPACE/NAME`, or as `NAME` only.

    Raises `click.UsageError`, also for a `NAME` without a namespace next to `all_namespaces`.
    """
    if scope.all_namespaces and scope.namespace:
        raise click.UsageError("--all-namespaces and --namespace are mutually exclusive")

    default = "" if scope.all_namespaces else scope.namespace or context_namespace(scope)
    if not clusters:
        return Selection(default)

    # If all clusters are in one namespace, only this namespace is read, because the user may lack
    # rights for others.
    keys = [object_key(text, "CLUSTER", default) for text in clusters]
    namespaces = {key.namespace for key in keys}
    return Selection(namespaces.pop() if len(namespaces) == 1 else "", tuple(keys))


def object_key(text: str, param_hint: str, default: str = "") -> Key:
    """Parse `NAMESPACE/NAME`, or only `NAME` if there is a default namespace.

    Raises `click.BadParameter`.
    """
    namespace, _, name = text.rpartition("/")
    namespace = namespace or default
    if not name or not namespace or "/" in namespace:
        form = "not NAMESPACE/NAME, for example team-a/demo"
        if default:
            form = "neither NAME nor NAMESPACE/NAME"
        raise click.BadParameter(f"{text!r} is {form}", param_hint=param_hint)
    return Key(namespace, name)


def context_namespace(client: ManagementOptions) -> str:
    """Return the namespace of the context, as kubectl does; `default` if none is set."""
    from caphv.runtime import user_kubeconfig

    return user_kubeconfig.context_namespace(client.kubeconfig, client.context)
