"""The provenance of the files of a release: an in-toto statement with SLSA's predicate.

Formats: in-toto attestation framework, spec/v1/statement.md, and slsa.dev/spec/v1.0/provenance. The
statement is not signed by itself: `SHA256SUMS`, which is signed, covers it. The workflow of the
release also publishes a statement that GitHub signs.
"""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.release.krew import REPOSITORY

NAME = "provenance.intoto.json"
# What `externalParameters` means, and how to build the files again.
BUILD_TYPE = f"{REPOSITORY}/blob/main/RELEASE.md"
LOCAL_BUILDER = f"{BUILD_TYPE}#make-a-release"
# Further inputs of the build, whose content decides what is in the files and images.
LOCKS = ("requirements.lock", "tools/release/uv.lock")
_BASE_IMAGE = re.compile(r"^ARG PYTHON=(\S+)@sha256:([0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """The sources and the machine of a build.

    `commit` is empty without Git. `builder` and `invocation` are URIs. Only runs of a workflow have
    an invocation, and a ref of Git.
    """

    commit: str
    builder: str = LOCAL_BUILDER
    invocation: str = ""
    ref: str = ""


def source(checkout: Path, environ: Mapping[str, str] = os.environ) -> Source:
    """Read the commit of a checkout, and which run of a workflow this is, if it is one."""
    git = ["git", "-C", str(checkout), "rev-parse", "--verify", "HEAD"]
    try:
        result = subprocess.run(git, capture_output=True, text=True, check=False)
        commit = result.stdout.strip() if result.returncode == 0 else ""
    except OSError:
        commit = ""

    server = environ.get("GITHUB_SERVER_URL")
    workflow = environ.get("GITHUB_WORKFLOW_REF")
    if not (server and workflow):
        return Source(commit)

    run = "/".join(
        (
            *(server, environ["GITHUB_REPOSITORY"], "actions/runs", environ["GITHUB_RUN_ID"]),
            *("attempts", environ["GITHUB_RUN_ATTEMPT"]),
        )
    )
    return Source(commit, f"{server}/{workflow}", run, environ.get("GITHUB_REF", ""))


def document(files: Mapping[str, bytes], version: str, checkout: Path, source: Source) -> bytes:
    """Return the statement about files by name, in JSON.

    It has no time, so the same files of the same run have the same statement.
    """
    subjects = [
        {"name": name, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
        for name, content in sorted(files.items())
    ]
    details: dict[str, Any] = {"builder": {"id": source.builder}}
    if source.invocation:
        details["metadata"] = {"invocationId": source.invocation}

    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": version},
                "resolvedDependencies": _dependencies(checkout, source),
            },
            "runDetails": details,
        },
    }
    return json.dumps(statement, indent=2).encode() + b"\n"


def _dependencies(checkout: Path, source: Source) -> list[dict[str, Any]]:
    """Return the inputs of the build with their digests."""
    dependencies: list[dict[str, Any]] = []
    if source.commit:
        uri = f"git+{REPOSITORY}" + (f"@{source.ref}" if source.ref else "")
        dependencies.append({"uri": uri, "digest": {"gitCommit": source.commit}})

    for name in LOCKS:
        digest = hashlib.sha256((checkout / name).read_bytes()).hexdigest()
        dependencies.append({"name": name, "digest": {"sha256": digest}})

    dockerfile = (checkout / "Dockerfile").read_text(encoding="utf-8")
    for tag, digest in _BASE_IMAGE.findall(dockerfile):
        dependencies.append({"uri": f"pkg:docker/python@{tag}", "digest": {"sha256": digest}})
    return dependencies
