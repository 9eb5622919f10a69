"""Check the runtime extensions that update machines in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from caphv.api.counting import name_some
from caphv.api.object import Obj, at, dict_at, labels_of, list_at
from operations.read.objects import condition_of
from operations.read.selectors import selects
from operations.status.check import Check, Result, ok, skipped

_CHECK = "in-place-updates"
_HOOKS = frozenset({"CanUpdateMachine", "CanUpdateMachineSet", "UpdateMachine"})


def checks(configs: Sequence[Obj], namespaces: Sequence[Obj], subject: str) -> Iterator[Check]:
    """Yield the checks of ExtensionConfigs.

    :param configs: all ExtensionConfigs
    :param namespaces: all Namespaces, empty if they may not be read
    :param subject: what the checks are about
    """
    for config in sorted(configs, key=_name):
        discovered = condition_of(config, "Discovered")
        if discovered.get("status") == "False":
            message = f"ExtensionConfig {_name(config)}: {discovered.get('message')}"
            remedy = (
                "Check clientConfig, its certificate authority, and that the extension is served, "
                "or delete the ExtensionConfig: rollouts may stop, and a core of Cluster API that "
                "restarts meanwhile stops for all clusters"
            )
            yield Check(_CHECK, subject, Result.ERROR, message=message, remedy=remedy)

    updaters = [config for config in configs if _updates_in_place(config)]
    if len(updaters) > 1 and not namespaces:
        why = "namespaces may not be read, so two ExtensionConfigs may serve the same one"
        yield skipped(_CHECK, subject, why)
        return

    shared: dict[tuple[str, ...], list[str]] = {}
    for namespace in namespaces:
        extensions = tuple(
            sorted(_name(config) for config in updaters if _serves(config, namespace))
        )
        if len(extensions) > 1:
            shared.setdefault(extensions, []).append(_name(namespace))

    for extensions, names in sorted(shared.items()):
        message = (
            f"ExtensionConfigs {', '.join(extensions)} all update machines in place in namespace "
            f"{name_some(sorted(names))}: Cluster API stops every rollout there"
        )
        remedy = "Let the namespaceSelector of all but one leave these namespaces out"
        yield Check(_CHECK, subject, Result.ERROR, message=message, remedy=remedy)
    if updaters and not shared:
        serving = name_some(sorted(map(_name, updaters)))
        yield ok(_CHECK, subject, f"ExtensionConfig {serving} updates machines in place")


def _updates_in_place(config: Obj) -> bool:
    handlers = list_at(config, "status", "handlers")
    return any(at(handler, "requestHook", "hook") in _HOOKS for handler in handlers)


def _serves(config: Obj, namespace: Obj) -> bool:
    # Cluster API sets an empty selector, which selects all, where a user gives none.
    return selects(dict_at(config, "spec", "namespaceSelector"), labels_of(namespace))


def _name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])
