"""The file `caphv-status.yaml` at the top of a repository: all defined clusters and the problems of their definitions.

The same source and repository make the same file, so it never causes a commit by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from caphv.api.object import Key
from packager.definitions import files
from packager.definitions.builder import BuildResult
from packager.git.prune import Plan
from packager.git.snapshot import Snapshot
from packager.rendering import yaml


def with_status(plan: Plan, built: BuildResult, snapshot: Snapshot) -> Plan:
    """Return a plan that also writes the status file if its content changes."""
    status = _status(built, plan)
    return plan if snapshot.read(files.STATUS) == status else replace(plan, write={**plan.write, files.STATUS: status})


def _status(built: BuildResult, plan: Plan) -> bytes:
    held = [one.what.split("/") for one in plan.held]
    states: Mapping[Key, str] = {
        **{Key(parts[1], parts[2]): "HeldBack" for parts in held if parts[0] == files.MANIFESTS},
        **dict.fromkeys(built.objects, "Written"),
        **dict.fromkeys(built.suspended, "Suspended"),
        **dict.fromkeys((key for key in built.invalid if key.name), "Faulty"),
    }
    content = {
        "clusters": [{"name": str(key), "state": states[key]} for key in sorted(states)],
        "problems": [
            {
                "file": one.file,
                "line": one.line,
                "severity": "warning" if one.advice else "error",
                "message": one.message,
            }
            for one in built.problems
        ],
    }
    return yaml.dump(content).encode()
