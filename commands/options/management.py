"""Options of commands that read a management cluster with a person's kubeconfig, and what can go wrong with that."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from caphv.api import remedies
from caphv.api.object import Key, key_of
from caphv.validation.finding import did_you_mean
from commands.options.clusters import InputError, Step
from commands.options.completion import complete_clusters, complete_namespaces

if TYPE_CHECKING:
    from caphv.runtime.client import ApiClient
    from overview.query import Answer

_Command = TypeVar("_Command", bound=Callable[..., Any])
_T = TypeVar("_T")
_PATIENCE = 1.0


def management_options(command: _Command) -> _Command:
    """Add the options that name the management cluster: `kubeconfig` and `context`."""
    for add in (
        click.option("--context", default="", help="Context of the kubeconfig."),
        click.option("--kubeconfig", default="", help="Kubeconfig of the management cluster."),
    ):
        command = add(command)
    return command


def namespace_options(command: _Command) -> _Command:
    """Add the options that name a namespace, as kubectl has them: `namespace` and `all_namespaces`."""
    for add in (
        click.option("-A", "--all-namespaces", is_flag=True, help="Clusters of all namespaces."),
        click.option(
            "-n",
            "--namespace",
            default="",
            shell_complete=complete_namespaces,
            help="Clusters of this namespace.  [default: the context's]",
        ),
    ):
        command = add(command)
    return command


def cluster_argument(command: _Command) -> _Command:
    """Add `cluster`, and the option `namespace` for its name without one."""
    for add in (
        namespace_option("Namespace of the cluster.  [default: the context's]"),
        click.argument("cluster", shell_complete=complete_clusters),
    ):
        command = add(command)
    return command


def clusters_argument(*, required: bool = False) -> Callable[[_Command], _Command]:
    """Return the argument `clusters`, of any number."""
    metavar = "CLUSTER..." if required else "[CLUSTER]..."
    return click.argument("clusters", metavar=metavar, nargs=-1, required=required, shell_complete=complete_clusters)


def namespace_option(help_text: str) -> Callable[[_Command], _Command]:
    """Return the option `namespace`."""
    return click.option("-n", "--namespace", default="", shell_complete=complete_namespaces, help=help_text)


@dataclass(frozen=True, slots=True)
class Selection:
    """Clusters that a command line names: all of a namespace (empty: of all) unless there are keys."""

    namespace: str
    keys: tuple[Key, ...] = ()

    def require(self, keys: set[Key], known: Iterable[Key] = ()) -> None:
        """Raise `InputError` when a cluster that is named does not exist, with similar names among those `known`."""
        names = sorted(map(str, known))
        missing = [f"{key}{did_you_mean(str(key), names)}" for key in self.keys if key not in keys]
        if missing:
            hint = "" if names else f"; clusters of all namespaces: {remedies.STATUS_OF_ALL}"
            raise InputError(f"no such cluster on Harvester: {', '.join(missing)}{hint}")


def selection(clusters: Sequence[str], flags: dict[str, Any]) -> Selection:
    """Return which clusters are meant: `NAME` of the namespace, or `NAMESPACE/NAME`."""
    if flags["all_namespaces"] and flags["namespace"]:
        raise click.UsageError("--all-namespaces and --namespace exclude each other")
    default = flags["namespace"] or context_namespace(flags["kubeconfig"], flags["context"])
    if not clusters:
        return Selection("" if flags["all_namespaces"] else default)
    keys = [object_key(text, "CLUSTER", default) for text in clusters]
    namespaces = {key.namespace for key in keys}
    return Selection(namespaces.pop() if len(namespaces) == 1 else "", tuple(keys))


def object_key(text: str, param_hint: str, default: str = "") -> Key:
    """Read `NAMESPACE/NAME`, or only `NAME` where there is a default namespace. Raises `click.BadParameter`."""
    namespace, _, name = text.rpartition("/")
    namespace = namespace or default
    if not name or not namespace or "/" in namespace:
        form = "neither NAME nor NAMESPACE/NAME" if default else "not NAMESPACE/NAME, for example team-a/demo"
        raise click.BadParameter(f"{text!r} is {form}", param_hint=param_hint)
    return Key(namespace, name)


def context_namespace(kubeconfig: str, context: str) -> str:
    """Return the namespace of the context, as kubectl takes it; `default` where none is set."""
    from caphv.runtime import user_kubeconfig

    return user_kubeconfig.context_namespace(kubeconfig, context)


@contextlib.asynccontextmanager
async def management_client(flags: dict[str, Any], **options: Any) -> AsyncIterator[ApiClient]:
    """Lend a client for the management cluster that the options of `management_options` name."""
    from caphv.runtime.client import ApiClient
    from caphv.runtime.kubeconfig import own_configuration

    connection = await own_configuration(flags["kubeconfig"], flags["context"])
    client = ApiClient(connection, name="management", user_agent="caphv-cli", timeout=60.0, **options)
    try:
        yield client
    finally:
        await client.close()


def read_overview(flags: dict[str, Any], chosen: Selection, step: Step, *, deep: bool) -> Answer:
    """Read the selected clusters. Raises `InputError` when they cannot be read, or one does not exist."""
    import gc

    from overview.query import Query, ask

    async def read() -> Answer:
        async with management_client(flags) as client:
            return await ask(client, Query(chosen.namespace, frozenset(chosen.keys), deep), step)

    # Hundreds of thousands of values without a cycle: searching them again and again takes a third of the time.
    gc.disable()
    try:
        answer = run(read())
    finally:
        gc.enable()
    chosen.require({cluster.key for cluster in answer.overview.clusters}, map(key_of, answer.objects.clusters))
    return answer


def print_data(value: Any, output: str) -> None:
    """Write data of the model as a JSON or YAML document."""
    from commands.output.data import data_text

    click.echo(data_text(value, output), nl=False)


def run(work: Coroutine[Any, Any, _T], interrupted: str = "") -> _T:
    """Run a coroutine; what an API server refuses or does not answer becomes a message and exit status 2.

    When the user interrupts it, the message for that is written, and the exit status is 130.
    """
    from caphv.runtime.errors import ApiError, Forbidden, Unreachable
    from caphv.runtime.kubeconfig import KubeconfigError
    from overview.reader import NoClusterApiError

    found: list[_T] = []

    async def keep() -> None:
        # Not as the result of the task: asyncio.run ends with a text of the task, result and all, that no one reads.
        found.append(await work)

    try:
        asyncio.run(keep())
        return found[0]
    except Forbidden as error:
        hint = "; name a namespace that you may read with -n" if "cluster scope" in str(error) else ""
        raise InputError(f"your account may not do that: {error}{hint}") from None
    except KubeconfigError as error:
        raise InputError(f"the kubeconfig cannot be used: {error}") from None
    except (ApiError, Unreachable) as error:  # of any server, in reading or in writing
        raise InputError(f"a request failed: {error}") from None
    except NoClusterApiError as error:
        raise InputError(str(error)) from None
    except KeyboardInterrupt:
        if interrupted:
            click.echo(f"\n{interrupted}", err=True)
        sys.exit(130)


@contextlib.contextmanager
def patient_progress() -> Iterator[Step]:
    """Show on a terminal what is being done once it takes longer than a second; elsewhere say nothing."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from rich.console import Console

    from commands.output.text import Text

    status = Console(stderr=True).status("connecting …")
    timer = threading.Timer(_PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda text: status.update(Text(f"{text} …"))
    finally:
        timer.cancel()
        timer.join()
        status.stop()
