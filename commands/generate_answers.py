"""`caphv generate --interactive`: ask for values that no flag provides.

It offers the objects of Harvester, and checks each answer.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caphv.api.bootimage import look_up
from caphv.api.counting import counted
from caphv.api.object import at
from caphv.api.plaintext import one_line
from caphv.api.remedies import NEW_IDENTITY
from commands.output.echo import echo
from packager.definitions.flags import FLAGS, Flag

if TYPE_CHECKING:
    from operations.capacity.machinepools import Pool
    from operations.capacity.surroundings import Surroundings
    from packager.definitions.model import Definition

Choice = tuple[str, str]
"""A value, and a note on it."""
_POOL_FLAGS = ("--gateway", "--subnet-mask", "--dns")
_SYSTEM = ("kube-", "cattle-", "fleet-", "longhorn-", "harvester-system", "local")
_MAX_CHOICES = 30


class Interview:
    """Questions on standard error, so that the output can be piped.

    `answers` maps flags to answers as typed. `read` reads a kubeconfig for Harvester and the
    objects of Harvester. It raises `click.UsageError`.
    """

    def __init__(
        self, flag_values: Mapping[str, str], read: Callable[[Path], Surroundings | None]
    ) -> None:
        self.flag_values = dict(flag_values)
        self.answers: dict[str, str] = {}
        self.harvester: Surroundings | None = None
        self._read = read

    @property
    def values(self) -> dict[str, str]:
        """The values of flags and answers so far."""
        return self.flag_values | self.answers

    def ask_kubeconfig(self, named: Path | None) -> Path | None:
        """Ask for the kubeconfig of Harvester unless the user named one, and read Harvester."""
        if named:
            try:
                self.harvester = self._read(named)
            except click.UsageError as error:
                _say(f"warning: {error.format_message()}")
            return named

        def read_answer(answer: str) -> Path | None:
            if not answer.strip():
                return None
            path = Path(answer.strip()).expanduser()
            self.harvester = self._read(path)
            return path

        question = "Kubeconfig for Harvester (empty when the identity Secret exists)"
        kubeconfig: Path | None = click.prompt(
            question, default="", show_default=False, value_proc=read_answer, err=True
        )
        return kubeconfig

    def ask(self) -> None:
        """Ask for all other missing values."""
        for flag in FLAGS:
            if not flag.ask or self.flag_values[flag.name]:
                continue
            # Machines without IPPools use DHCP, which provides these values.
            has_pool = self.values["--ip-pool-refs"] or self.values["--ip-pool"]
            if flag.name in _POOL_FLAGS and not has_pool:
                continue
            if flag.name == "--image" and self.values["--image-lookup"]:
                continue
            self.answers[flag.name] = self._ask(flag)

    def _ask(self, flag: Flag) -> str:
        """Ask for the value of a flag until the answer is valid."""
        # click prints a default without escaping it, so that only printable names are offered.
        choices = [choice for choice in self._choices(flag) if choice[0].isprintable()]
        if choices:
            _show(flag, choices)

        default = self._default(flag, choices)
        default = default if default is None or default.isprintable() else flag.default
        question = f"{flag.ask}, or a number" if choices else flag.ask
        answer: str = click.prompt(
            question,
            # Without a default, click repeats the question without a reason.
            default=default or "",
            show_default=bool(default),
            value_proc=partial(self._check_answer, flag, choices),
            err=True,
        )
        return answer

    def _choices(self, flag: Flag) -> list[Choice]:
        """Return what Harvester has for a flag, with notes; none if it was not read."""
        harvester = self.harvester
        if harvester is None:
            return []
        if flag.name == "--image":
            return sorted(_images(harvester))
        if flag.name in ("--ip-pool-refs", "--lb-ip-pool"):
            return [(name, _pool_note(harvester, name)) for name in sorted(harvester.pools or ())]
        options = {"--ssh-keypair": harvester.key_pairs, "--network": harvester.networks}.get(
            flag.name
        )
        names: list[str] = sorted(options or ())
        if flag.name == "--target-namespace":
            names = [name for name in harvester.namespaces or () if not name.startswith(_SYSTEM)]
        return [(name, "") for name in names]

    def _default(self, flag: Flag, choices: list[Choice]) -> str | None:
        if flag.name == "--namespace":
            return self.values["--name"]
        if flag.name in ("--gateway", "--subnet-mask"):
            return self._pool_default(flag) or flag.default
        if flag.default is None and len(choices) == 1:
            return choices[0][0]
        return flag.default

    def _pool_default(self, flag: Flag) -> str:
        """Return gateway or mask of the first range of the first IPPool; empty if unknown."""
        names = self.values["--ip-pool-refs"] or self.values["--ip-pool"]
        first_name = names.split(",")[0].strip()
        pools = self.harvester.pools if self.harvester else None
        pool = (pools or {}).get(first_name) or {}

        ranges = at(pool, "spec", "ranges") or [{}]
        try:
            subnet = ipaddress.ip_network(str(ranges[0].get("subnet")), strict=False)
        except ValueError:
            return ""
        if flag.name == "--gateway":
            return str(ranges[0].get("gateway") or "")
        return str(subnet.netmask)

    def _check_answer(self, flag: Flag, choices: list[Choice], answer: str) -> str:
        """Return a valid answer. Raises `click.UsageError`.

        After an error click asks again, so that other answers are not lost.
        """
        from packager.definitions.fromflags import fault_of

        text = _replace_numbers(flag, choices, answer)
        if not text and flag.default is None:
            raise click.UsageError(f"an answer is required, or give {flag.name}")
        if text and (fault := fault_of(flag, text)):
            raise click.UsageError(fault)
        if text:
            self._check_harvester(flag, text)
        return text

    def _check_harvester(self, flag: Flag, text: str) -> None:
        from operations.capacity.newcluster import NewCluster, findings
        from packager.definitions.fromflags import definition_of

        if self.harvester is None:
            return
        cluster = NewCluster(definition_of(self.values | {flag.name: text}, {}), self._machines())
        about = [
            finding
            for finding in findings(cluster, self.harvester)
            if finding.path[: len(flag.path)] == flag.path
        ]
        if wrong := "; ".join(finding.detail for finding in about if not finding.advice):
            raise click.UsageError(one_line(wrong))
        for finding in about:
            _say(f"warning: {finding.detail}")

    def _machines(self) -> list[Pool]:
        """Return the pools of machines whose numbers are known."""
        from operations.capacity.machinepools import Pool as PlannedPool

        numbers = {name: self.values[name] for name in ("--cp-replicas", "--worker-replicas")}
        return [
            PlannedPool(name, int(number)) for name, number in numbers.items() if number.isdigit()
        ]


def show_summary(
    definition: Definition,
    harvester: Surroundings | None,
    server: str,
    *,
    creates_identity: bool = False,
) -> None:
    """Show a summary of the cluster, before anything is written.

    :param definition: the definition of the cluster
    :param harvester: the objects of Harvester, None if it was not read
    :param server: the URL of Harvester, empty if it is unknown
    :param creates_identity: whether the identity Secret is among the objects
    """
    _say("")
    _say("Summary")
    for name, value in _summary(definition, harvester, server, creates_identity=creates_identity):
        if value:
            _say(f"  {name:<21} {value}")
    _say("")


def command_line(values: Mapping[str, str], kubeconfig: Path | None) -> str:
    """Return the command line that gives these answers as flags."""
    words = ["caphv", "generate", "--interactive"]
    if kubeconfig:
        words += ["--harvester-kubeconfig", str(kubeconfig)]
    for flag in FLAGS:
        if values.get(flag.name):
            words += [flag.name, values[flag.name]]
    return shlex.join(words)


def _summary(
    definition: Definition,
    harvester: Surroundings | None,
    server: str,
    *,
    creates_identity: bool,
) -> list[tuple[str, str]]:
    """Return the titles and texts of a summary of the cluster.

    :param definition: the definition of the cluster
    :param harvester: the Harvester, which has the free addresses of pools; None if it was not read
    :param server: the URL of the Harvester, empty if it is not known
    :param creates_identity: whether the identity Secret is created with the cluster
    """
    pools = [ref.rpartition("/")[2] for ref in definition.addresses.get("ipPoolRefs") or ()]
    addresses = "DHCP"
    balancer = "DHCP"
    if pools:
        mask = definition.addresses.get("subnetMask")
        gateway = definition.addresses.get("gateway")
        addresses = f"{_pool_names(pools, harvester)}; gateway {gateway}, mask {mask}"
    if name := definition.load_balancer.get("ipPoolRef"):
        balancer = _pool_names([str(name)], harvester)

    sizes = []
    for pool in (definition.control_plane, *definition.workers):
        title = "Control plane" if pool is definition.control_plane else f"Pool {pool.name}"
        size = f"{pool.replicas} of {pool.cpu} CPU, {pool.memory} memory"
        sizes.append((title, f"{size}, disks {_disks(pool.volumes)}"))

    target = f"namespace {definition.target_namespace}"
    if server:
        target += f" on {server}"

    return [
        ("Cluster", f"{definition.key}, {definition.distribution} {definition.version}"),
        *sizes,
        ("Image", _image(definition)),
        ("Login", f"user {definition.ssh_user}, KeyPair {definition.ssh_key_pair}"),
        ("Networks", ", ".join(definition.networks)),
        ("Machine addresses", addresses),
        ("Control plane address", balancer),
        ("Harvester", target),
        ("Identity", _identity(definition, creates_identity=creates_identity)),
        ("Add-ons", f"by {definition.delivery}" if definition.delivery != "None" else "none"),
    ]


def _identity(definition: Definition, *, creates_identity: bool) -> str:
    """Describe the identity of the cluster, and how to create one that must exist."""
    if definition.cluster_identity:
        namespace = definition.key.namespace
        return (
            f"HarvesterClusterIdentity {definition.cluster_identity}, which must allow namespace "
            f"{namespace}"
        )
    secret = f"Secret {definition.key.namespace}/{definition.identity_secret}"
    if creates_identity:
        return secret
    command = NEW_IDENTITY(
        target=definition.target_namespace,
        namespace=definition.key.namespace,
        name=definition.identity_secret,
    )
    return f"{secret}, which must exist: {command}"


def _image(definition: Definition) -> str:
    """Return the image of the boot disks, which all pools have in common."""
    boot = definition.control_plane.volumes[0]
    if lookup := boot.get("imageLookup"):
        return look_up(lookup, definition.version)
    return str(boot.get("imageName"))


def _disks(volumes: tuple[Mapping[str, Any], ...]) -> str:
    return " + ".join(str(volume.get("volumeSize")) for volume in volumes)


def _pool_names(pools: list[str], harvester: Surroundings | None) -> str:
    if not harvester:
        return ", ".join(f"IPPool {name}" for name in pools)
    return ", ".join(f"IPPool {name} ({_pool_note(harvester, name)})" for name in pools)


def _images(surroundings: Surroundings) -> list[Choice]:
    """Return images by the name that people gave them, with a note if one is not imported."""
    from caphv.api.object import at, key_of
    from operations.read.objects import condition_of

    choices = []
    for image in surroundings.capacity.harvester.images:
        shown = str(at(image, "spec", "displayName") or key_of(image).name)
        ready = condition_of(image, "Imported").get("status") in (None, "True")
        choices.append((f"{key_of(image).namespace}/{shown}", "" if ready else "not imported"))
    return choices


def _pool_note(surroundings: Surroundings, name: str) -> str:
    pool = (surroundings.pools or {}).get(name) or {}
    network = at(pool, "spec", "selector", "network")
    free = surroundings.free(name)
    text = "ranges are invalid" if free is None else f"{counted(free, 'address')} free"
    return f"{text}, for {network}" if network else text


def _replace_numbers(flag: Flag, choices: list[Choice], answer: str) -> str:
    """Replace the numbers of choices in an answer; several answers are separated by commas."""
    takes_several = flag.value("a,b") == ["a", "b"]

    def replace_number(text: str) -> str:
        if not re.fullmatch("[0-9]{1,5}", text):
            return text
        number = int(text)
        return choices[number - 1][0] if 0 < number <= len(choices) else text

    parts = answer.split(",") if takes_several else [answer]
    return ",".join(replace_number(part.strip()) for part in parts if part.strip())


def _show(flag: Flag, choices: list[Choice]) -> None:
    _say("")
    for number, (value, note) in enumerate(choices[:_MAX_CHOICES], 1):
        suffix = f"  ({note})" if note else ""
        _say(f"  {number:>2}  {value}{suffix}")
    if len(choices) > _MAX_CHOICES:
        _say(f"      and {len(choices) - _MAX_CHOICES} more")


def _say(text: str) -> None:
    echo(text, err=True)
