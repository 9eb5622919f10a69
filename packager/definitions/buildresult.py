"""Results of building definitions, for one cluster and for a whole source."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from caphv.api.object import Key, Obj
from packager.contents.uninstall import UninstallPolicy
from packager.definitions import files
from packager.definitions.sourcefile import SourceProblem
from packager.git.folder import Folder, Root
from packager.git.pruning import Skipped
from packager.tree import CLUSTER_ROOT

MANIFEST_ROOT = Root(files.MANIFESTS, definitions=True)
NAMESPACE_ROOT = Root(files.NAMESPACES)
GITREPO_ROOT = Root(files.GITREPOS)


@dataclass(frozen=True)
class EmptyPools:
    """Dropped MachineDeployments without machines, and the manifest that unprotects them."""

    pools: tuple[Obj, ...]
    release: Folder


@dataclass
class BuildResult:
    """The result of building a source: folders by root, objects by cluster, and problems.

    `staying_pools` are MachineDeployments that are no longer defined and stay in the manifest of
    their cluster, because machines may run. `empty_pools` are MachineDeployments that leave the
    manifest of their cluster, and must lose their protection first. `foreign` are the clusters
    among `invalid` that another source defines. `invalid_groups` are ClusterClasses that have
    errors, and are neither written nor replaced.
    """

    # All roots exist from the beginning. A root without folders means that no folder is wanted.
    wanted: dict[Root, dict[str, Folder]] = field(
        default_factory=lambda: {
            MANIFEST_ROOT: {},
            NAMESPACE_ROOT: {},
            GITREPO_ROOT: {},
            CLUSTER_ROOT: {},
        }
    )
    objects: dict[Key, Sequence[Obj]] = field(default_factory=dict)
    groups: dict[tuple[str, str], Sequence[Obj]] = field(default_factory=dict)
    problems: list[SourceProblem] = field(default_factory=list)
    invalid: set[Key] = field(default_factory=set)
    invalid_groups: set[Key] = field(default_factory=set)
    foreign: set[Key] = field(default_factory=set)
    suspended: set[Key] = field(default_factory=set)
    uninstall: dict[Key, UninstallPolicy] = field(default_factory=dict)
    staying_pools: list[Skipped] = field(default_factory=list)
    empty_pools: dict[Key, EmptyPools] = field(default_factory=dict)

    @property
    def errors(self) -> list[SourceProblem]:
        """Problems that are more than advice."""
        return [problem for problem in self.problems if not problem.advice]


@dataclass(frozen=True)
class ClusterBuild:
    """The result for one cluster; `manifest` is None if the cluster is invalid.

    `bundles` is None for a cluster that is suspended or gets its add-ons in another way.
    `workspace` is set if Fleet reads the bundles. With `own_repo`, the cluster's own objects have
    the GitRepo.
    """

    problems: tuple[SourceProblem, ...] = ()
    objects: Sequence[Obj] = ()
    shared: Mapping[str, Sequence[Obj]] = field(default_factory=dict)
    manifest: Folder | None = None
    staying_pools: tuple[Skipped, ...] = ()
    empty_pools: EmptyPools | None = None
    bundles: Folder | None = None
    suspended: bool = False
    workspace: str = ""
    group: str = ""
    own_repo: bool = False
    uninstall: UninstallPolicy = field(default_factory=UninstallPolicy)


@dataclass(frozen=True, kw_only=True)
class Memo:
    """The last result of a cluster, and the input for which it holds.

    `inputs` are the objects from the source. `manifests` and `bundles` are Git's ids of the
    cluster's manifest and of its folder of bundles, as they were when the result was built and as
    the result writes them: building on top of its own result gives the same result.
    """

    inputs: tuple[object, ...]
    source: str
    manifests: frozenset[str]
    bundles: frozenset[str]
    result: ClusterBuild

    def matches(self, inputs: tuple[object, ...], source: str, manifest: str, bundles: str) -> bool:
        """Return whether the result holds for these inputs and ids."""
        # Compare by identity, because the reader returns the same objects for an unchanged file.
        return (
            len(inputs) == len(self.inputs)
            and all(map(operator.is_, inputs, self.inputs))
            and source == self.source
            and manifest in self.manifests
            and bundles in self.bundles
        )
