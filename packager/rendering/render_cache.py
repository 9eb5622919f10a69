"""Renders clusters with equal settings once, and gives each cluster its own names.

Most fleets have few sets of settings and many clusters. Templates that only write a cluster's name,
and never test it, produce the same files for clusters with equal settings, except for the name. So
they are rendered once for a stand-in, whose names are then replaced. This must give the same bytes
as rendering the cluster itself. `only_writes_names` proves that for the templates, and `is_plain`
for the names.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import orjson
from jinja2 import nodes

from caphv.api.object import Key
from packager.addons.settings import AddonSettings
from packager.addons.versions import Versions
from packager.rendering import yaml
from packager.rendering.bundles import bundle_name

# The names look like generated passwords. So a template that puts a name into the field of a
# credential is refused for the stand-in.
STAND_IN = Key("n5x8q2w7k4v9r3", "c6t1z8m3y7p2d5h9")

_NO_CLUSTER = Key("", "")
_NAMES = frozenset({"cluster", "targets", "bundle_name", "labels"})
_FIELDS = frozenset({"namespace", "name"})
_PLAIN = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


def is_plain(cluster: Key) -> bool:
    """Whether YAML needs no quotes for the names of a cluster, alone or in a longer text."""
    return all(_PLAIN.fullmatch(name) and not yaml.is_part_of_ambiguous(name) for name in cluster)


def cache_key(settings: AddonSettings, versions: Versions) -> bytes | None:
    """Return equal keys for equal settings; None if settings contain a name of the stand-in."""
    try:
        content = orjson.dumps(
            [replace(settings, cluster=_NO_CLUSTER, origins={}), versions], default=list
        )
    except TypeError:  # an integer of more than 64 bits
        return None
    return None if any(name.encode() in content for name in STAND_IN) else content


def only_writes_names(templates: Iterable[nodes.Template], bundles: Collection[str]) -> bool:
    """Whether templates use the names of a cluster only as a whole in `{{ … }}`."""
    names = frozenset(bundles)
    return all(_only_writes_names(template, names) for template in templates)


def rename(files: Mapping[str, bytes], cluster: Key, bundles: Iterable[str]) -> dict[str, bytes]:
    """Return the files of the stand-in with the names of a cluster."""
    # The names of bundles come first in the pattern, because they may hold the cluster's name.
    names = {bundle_name(STAND_IN, bundle): bundle_name(cluster, bundle) for bundle in bundles}
    names |= {STAND_IN.namespace: cluster.namespace, STAND_IN.name: cluster.name}
    encoded = {old.encode(): new.encode() for old, new in names.items()}
    pattern = re.compile(b"|".join(map(re.escape, encoded)))
    return {
        path: pattern.sub(lambda match: encoded[match[0]], content)
        for path, content in files.items()
    }


# All renderers of a process have the shipped templates, parsed once.
@functools.lru_cache(maxsize=1024)
def _only_writes_names(template: nodes.Template, bundles: frozenset[str]) -> bool:
    # Jinja2's nodes compare by content, so only their identity distinguishes two uses of a name.
    written = {
        id(name)
        for output in template.find_all(nodes.Output)
        for node in output.nodes
        if (name := _name(node, bundles))
    }

    # All settings but the cluster's names are the same for clusters that share files.
    read = {
        id(node.node)
        for node in template.find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name)
        and node.node.name == "settings"
        and node.attr != "cluster"
    }

    return all(
        id(name) in (read if name.name == "settings" else written)
        for name in template.find_all(nodes.Name)
        if name.name in _NAMES or name.name == "settings"
    )


def _name(node: nodes.Node, bundles: Collection[str]) -> nodes.Node | None:
    """Return the name in `cluster.name`, `targets`, `labels(…)` or `bundle_name(…)`, or None."""
    if isinstance(node, nodes.Name):
        return node if node.name == "targets" else None
    if not isinstance(node, nodes.Getattr | nodes.Call) or not isinstance(node.node, nodes.Name):
        return None

    name = node.node
    if isinstance(node, nodes.Getattr):
        return name if name.name == "cluster" and node.attr in _FIELDS else None
    if name.name not in ("bundle_name", "labels"):
        return None

    # The only argument must be the name of a bundle. Anything else may depend on the cluster.
    if len(node.args) != 1 or node.kwargs or node.dyn_args or node.dyn_kwargs:
        return None
    argument = node.args[0]
    return name if isinstance(argument, nodes.Const) and argument.value in bundles else None
