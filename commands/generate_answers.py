"""`caphv generate --interactive`: asks for what no flag provides, offers what Harvester has, and checks each answer."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caphv.api.counting import counted
from caphv.api.plaintext import one_line
from commands.output.echo import echo
from packager.definitions.flags import FLAGS, Flag

if TYPE_CHECKING:
    from overview.plan.pools import Pool
    from overview.surroundings import Surroundings
    from packager.definitions.model import Definition

Choice = tuple[str, str]
"""A value, and what there is to say about it."""
_OF_POOLS = ("--gateway", "--subnet-mask", "--dns")
_SYSTEM = ("kube-", "cattle-", "fleet-", "longhorn-", "harvester-system", "local")
_MOST = 30


class Interview:
    """Questions on standard error, so that the output can be piped. `answers` are by flag, as typed.

    `read` reads a kubeconfig for Harvester and what Harvester has; it raises `click.UsageError`.
    """

    def __init__(self, given: Mapping[str, str], read: Callable[[Path], Surroundings | None]) -> None:
        self.given, self.answers = dict(given), dict[str, str]()
        self.harvester: Surroundings | None = None
        self._read = read

    @property
    def values(self) -> dict[str, str]:
        """What flags and answers say so far."""
        return self.given | self.answers

    def ask_kubeconfig(self, known: Path | None) -> Path | None:
        """Ask for the kubeconfig of Harvester unless it is known, and read what Harvester has."""
        if known:
            try:
                self.harvester = self._read(known)
            except click.UsageError as error:
                _say(f"warning: {error.format_message()}")
            return known

        def read(answer: str) -> Path | None:
            if not answer.strip():
                return None
            path = Path(answer.strip()).expanduser()
            self.harvester = self._read(path)
            return path

        question = "Kubeconfig for Harvester (empty when the identity Secret exists)"
        found: Path | None = click.prompt(question, default="", show_default=False, value_proc=read, err=True)
        return found

    def ask(self) -> None:
        """Ask for everything else that is missing."""
        for flag in FLAGS:
            if not flag.ask or self.given[flag.name]:
                continue
            if flag.name in _OF_POOLS and not self.values.get("--ip-pool-refs") and not self.values.get("--ip-pool"):
                continue  # with DHCP there are none
            self.answers[flag.name] = self._ask(flag)

    def _ask(self, flag: Flag) -> str:
        # What Harvester offers can be a name only if it is printable; click writes a default as it is.
        choices = [each for each in self._choices(flag) if each[0].isprintable()]
        if choices:
            _show(flag, choices)
        default = self._default(flag, choices)
        default = default if default is None or default.isprintable() else flag.default
        question = f"{flag.ask}, or a number" if choices else flag.ask
        answer: str = click.prompt(
            question,
            default=default or "",  # click repeats a question without a default, and does not say why
            show_default=bool(default),
            value_proc=partial(self._checked, flag, choices),
            err=True,
        )
        return answer

    def _choices(self, flag: Flag) -> list[Choice]:
        found = self.harvester
        if found is None:
            return []
        if flag.name == "--image":
            return sorted(_images(found))
        if flag.name in ("--ip-pool-refs", "--lb-ip-pool"):
            return [(name, _pool_note(found, name)) for name in sorted(found.pools or ())]
        known = {"--ssh-keypair": found.key_pairs, "--network": found.networks}.get(flag.name)
        names: list[str] = sorted(known or ())
        if flag.name == "--target-namespace":
            names = [name for name in found.namespaces or () if not name.startswith(_SYSTEM)]
        return [(name, "") for name in names]

    def _default(self, flag: Flag, choices: list[Choice]) -> str | None:
        if flag.name == "--namespace":
            return self.values.get("--name")
        if flag.name in ("--gateway", "--subnet-mask"):
            return self._of_pool(flag) or flag.default
        return choices[0][0] if flag.default is None and len(choices) == 1 else flag.default

    def _of_pool(self, flag: Flag) -> str:
        """Gateway or mask of the first range of the first IPPool."""
        wanted = (self.values.get("--ip-pool-refs") or self.values.get("--ip-pool") or "").split(",")[0].strip()
        pool = ((self.harvester.pools or {}) if self.harvester else {}).get(wanted) or {}
        ranges = (pool.get("spec") or {}).get("ranges") or [{}]
        try:
            subnet = ipaddress.ip_network(str(ranges[0].get("subnet")), strict=False)
        except ValueError:
            return ""
        return str(ranges[0].get("gateway") or "") if flag.name == "--gateway" else str(subnet.netmask)

    def _checked(self, flag: Flag, choices: list[Choice], answer: str) -> str:
        """Return a valid answer; an invalid one is asked for again, so that other answers are not lost."""
        from packager.definitions.flags import fault_of

        text = _chosen(flag, choices, answer)
        if not text and flag.default is None:
            raise click.UsageError(f"an answer is required, or give {flag.name}")
        if text and (fault := fault_of(flag, text)):
            raise click.UsageError(fault)
        if text:
            self._check_harvester(flag, text)
        return text

    def _check_harvester(self, flag: Flag, text: str) -> None:
        from overview.newcluster import NewCluster, findings
        from packager.definitions.flags import definition

        if self.harvester is None:
            return
        cluster = NewCluster(definition(self.values | {flag.name: text}, {}), self._machines())
        about = [each for each in findings(cluster, self.harvester) if each.path[: len(flag.path)] == flag.path]
        if wrong := "; ".join(each.detail for each in about if not each.advice):
            raise click.UsageError(one_line(wrong))
        for each in about:
            _say(f"warning: {each.detail}")

    def _machines(self) -> list[Pool]:
        """Numbers of machines, as far as they are known."""
        from overview.plan.pools import Pool as PlannedPool

        numbers = {name: self.values.get(name) or "" for name in ("--cp-replicas", "--worker-replicas")}
        return [PlannedPool(name, int(number)) for name, number in numbers.items() if number.isdigit()]


def show_summary(definition: Definition, harvester: Surroundings | None, server: str) -> None:
    """Write what the answers make, before anything is written."""
    _say("")
    _say("Summary")
    for name, value in _summary(definition, harvester, server):
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


def _summary(found: Definition, harvester: Surroundings | None, server: str) -> list[tuple[str, str]]:
    pools = [each.rpartition("/")[2] for each in found.addresses.get("ipPoolRefs") or ()]
    addresses, balancer = "DHCP", "DHCP"
    if pools:
        mask, gateway = found.addresses.get("subnetMask"), found.addresses.get("gateway")
        addresses = f"{_named(pools, harvester)}; gateway {gateway}, mask {mask}"
    if name := found.load_balancer.get("ipPoolRef"):
        balancer = _named([str(name)], harvester)
    sizes = [
        (pool, f"{pool.replicas} of {pool.cpu} CPU, {pool.memory} memory, disks {_disks(pool.volumes)}")
        for pool in (found.control_plane, *found.workers)
    ]
    return [
        ("Cluster", f"{found.key}, {found.distribution} {found.version}"),
        *(("Control plane" if pool is found.control_plane else f"Pool {pool.name}", text) for pool, text in sizes),
        ("Image", str(found.control_plane.volumes[0].get("imageName"))),
        ("Login", f"user {found.ssh_user}, KeyPair {found.ssh_key_pair}"),
        ("Networks", ", ".join(found.networks)),
        ("Machine addresses", addresses),
        ("Control plane address", balancer),
        ("Harvester", f"namespace {found.target_namespace}{f' on {server}' if server else ''}"),
        ("Identity", f"Secret {found.key.namespace}/{found.identity_secret}{'' if server else ', which must exist'}"),
        ("Add-ons", f"by {found.delivery}" if found.delivery != "None" else "none"),
    ]


def _disks(volumes: tuple[Mapping[str, Any], ...]) -> str:
    return " + ".join(str(each.get("volumeSize")) for each in volumes)


def _named(pools: list[str], harvester: Surroundings | None) -> str:
    return ", ".join(f"IPPool {name}{f' ({_pool_note(harvester, name)})' if harvester else ''}" for name in pools)


def _images(found: Surroundings) -> list[Choice]:
    """Images by the name that people gave them, with what is odd about them."""
    from caphv.api.object import key_of
    from overview.objects import condition_of

    choices = []
    for image in found.capacity.harvester.images:
        shown = str((image.get("spec") or {}).get("displayName") or key_of(image).name)
        ready = condition_of(image, "Imported").get("status") in (None, "True")
        choices.append((f"{key_of(image).namespace}/{shown}", "" if ready else "not imported"))
    return choices


def _pool_note(found: Surroundings, name: str) -> str:
    pool = (found.pools or {}).get(name) or {}
    network = ((pool.get("spec") or {}).get("selector") or {}).get("network")
    free = found.free(name)
    text = "ranges are invalid" if free is None else f"{counted(free, 'address')} free"
    return f"{text}, for {network}" if network else text


def _chosen(flag: Flag, choices: list[Choice], answer: str) -> str:
    """Replace numbers by what they stand for; several answers are separated by commas."""
    several = isinstance(flag.value("a,b"), list) and len(flag.value("a,b")) == 2

    def one(text: str) -> str:
        known = text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) <= len(choices)
        return choices[int(text) - 1][0] if known else text

    parts = answer.split(",") if several else [answer]
    return ",".join(one(part.strip()) for part in parts if part.strip())


def _show(flag: Flag, choices: list[Choice]) -> None:
    _say("")
    for number, (value, note) in enumerate(choices[:_MOST], 1):
        _say(f"  {number:>2}  {value}{f'  ({note})' if note else ''}")
    if len(choices) > _MOST:
        _say(f"      and {len(choices) - _MOST} more")


def _say(text: str) -> None:
    echo(text, err=True)
