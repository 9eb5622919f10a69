"""Renders what clusters of the same settings have in common once, and gives each cluster its own names.

Most fleets have few sets of settings and many clusters. Templates that only write a cluster's name, and ask nothing
about it, make the same files for all of them but for that name: they are rendered for a stand-in, whose names are then
exchanged. That is done only where it gives the same bytes as rendering the cluster itself: `only_writes_names` proves
it of the templates, `is_plain` of the names.
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

# They look like generated passwords: a template that puts a name where a credential stands is refused for them.
STAND_IN = Key("n5x8q2w7k4v9r3", "c6t1z8m3y7p2d5h9")

_NO_CLUSTER = Key("", "")
_NAMES = frozenset({"cluster", "targets", "bundle_name", "labels"})
_FIELDS = frozenset({"namespace", "name"})
_PLAIN = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")


def is_plain(cluster: Key) -> bool:
    """Whether YAML writes the names of a cluster as they are, alone and in a longer text, like the stand-in's."""
    return all(_PLAIN.fullmatch(name) and not yaml.is_part_of_ambiguous(name) for name in cluster)


def key(settings: AddonSettings, versions: Versions) -> bytes | None:
    """Return a key, equal for equal settings of several clusters; None if settings contain a name of the stand-in."""
    try:
        content = orjson.dumps([replace(settings, cluster=_NO_CLUSTER, origins={}), versions], default=list)
    except TypeError:  # a number that is too large for it
        return None
    return None if any(name.encode() in content for name in STAND_IN) else content


def only_writes_names(templates: Iterable[nodes.Template], bundles: Collection[str]) -> bool:
    """Whether templates do nothing with what is a cluster's own but `{{ … }}` it as a whole."""
    names = frozenset(bundles)
    return all(_only_writes_names(template, names) for template in templates)


def renamed(files: Mapping[str, bytes], cluster: Key, bundles: Iterable[str]) -> dict[str, bytes]:
    """Return the files of the stand-in with the names of a cluster."""
    names = {STAND_IN.namespace: cluster.namespace, STAND_IN.name: cluster.name}
    # First in the pattern: a name of a bundle may hold that of its cluster.
    names = {bundle_name(STAND_IN, bundle): bundle_name(cluster, bundle) for bundle in bundles} | names
    encoded = {old.encode(): new.encode() for old, new in names.items()}
    pattern = re.compile(b"|".join(map(re.escape, encoded)))
    return {path: pattern.sub(lambda match: encoded[match[0]], content) for path, content in files.items()}


# All renderers of a process have the shipped templates, parsed once.
@functools.lru_cache(maxsize=1024)
def _only_writes_names(template: nodes.Template, bundles: frozenset[str]) -> bool:
    written = {
        id(name)
        for output in template.find_all(nodes.Output)
        for node in output.nodes
        if (name := _name(node, bundles))
    }
    read = {
        id(node.node)
        for node in template.find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == "settings" and node.attr != "cluster"
    }
    return all(
        id(name) in (read if name.name == "settings" else written)
        for name in template.find_all(nodes.Name)
        if name.name in _NAMES or name.name == "settings"
    )


def _name(node: nodes.Node, bundles: Collection[str]) -> nodes.Node | None:
    """Return the name in `cluster.name`, `targets`, `labels("…")` or `bundle_name("…")`, None for anything else."""
    if isinstance(node, nodes.Name):
        return node if node.name == "targets" else None
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name) and node.node.name == "cluster":
        return node.node if node.attr in _FIELDS else None
    if (
        isinstance(node, nodes.Call)
        and isinstance(node.node, nodes.Name)
        and node.node.name in ("bundle_name", "labels")
    ):
        known = [isinstance(argument, nodes.Const) and argument.value in bundles for argument in node.args]
        return node.node if known == [True] and not (node.kwargs or node.dyn_args or node.dyn_kwargs) else None
    return None
