"""What OpenSSF Scorecard checks in a repository's files, in our words.

The checks are those of ossf/scorecard, docs/checks.md: Pinned-Dependencies, Token-Permissions, Dangerous-Workflow,
License, Security-Policy, Signed-Releases and Binary-Artifacts. The others need GitHub.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import CHECKOUT

pytestmark = pytest.mark.unit

WORKFLOWS = {path.name: path for path in sorted((CHECKOUT / ".github" / "workflows").iterdir())}
# The only jobs that may write, and what.
WRITES = {("release.yaml", "publish"): {"contents", "packages", "id-token", "attestations"}}
# Events whose workflow has the secrets of the repository while others choose what it runs on.
DANGEROUS_EVENTS = {
    "pull_request_target",
    "workflow_run",
    "issue_comment",
    "issues",
    "discussion",
    "discussion_comment",
}
# In a script, an expression is replaced by text before the shell reads it, and others may have written that text.
EXPRESSION = re.compile(r"\$\{\{")
SECRET = re.compile(r"secrets\.(\w+)")
INSTALLS = re.compile(r"(?:pip|\$\(PIP_INSTALL\)|npm|gem|go) +(?:install|get)\b.*|curl .*\|.*sh\b.*")
# Either each file of a package has a hash in a lock, or nothing is installed but what was built here.
PINNED = ("--require-hashes", "--no-deps --editable .", "--no-deps --no-index")
BINARIES = {
    ".a",
    ".class",
    ".dll",
    ".dylib",
    ".egg",
    ".exe",
    ".jar",
    ".lib",
    ".o",
    ".pyc",
    ".pyo",
    ".so",
    ".wasm",
    ".whl",
}


def workflow(name: str, text: str = "") -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load(text or WORKFLOWS[name].read_text(encoding="utf-8"))
    return content


def findings(name: str, content: dict[Any, Any]) -> Iterator[str]:
    """Find what Scorecard would report in a workflow."""
    # YAML 1.1 reads `on` as true.
    events = content[True] if isinstance(content[True], dict) else dict.fromkeys([content[True]])
    yield from (f"event {event}" for event in sorted(DANGEROUS_EVENTS & events.keys()))

    if content.get("permissions") not in ({}, {"contents": "read"}):
        yield f"permissions of the workflow: {content.get('permissions')}"
    for job_name, job in content["jobs"].items():
        writes = {scope for scope, access in (job.get("permissions") or {}).items() if access != "read"}
        if writes != WRITES.get((name, job_name), set()):
            yield f"permissions of {job_name}: {sorted(writes)}"
        if "uses" in job:
            yield from _action(job["uses"])
        for step in job.get("steps", ()):
            yield from _step(step)


def _action(reference: str) -> Iterator[str]:
    if not reference.startswith("./") and not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", reference):
        yield f"not pinned: {reference}"


def _step(step: dict[str, Any]) -> Iterator[str]:
    if "uses" in step:
        yield from _action(step["uses"])
        is_checkout = step["uses"].startswith("actions/checkout@")
        if is_checkout and (step.get("with") or {}).get("persist-credentials") is not False:
            yield "a checkout keeps its token"
        if is_checkout and "head" in str((step.get("with") or {}).get("ref", "")):
            yield "a checkout of what others wrote"
    script = step.get("run", "")
    if EXPRESSION.search(script):
        yield f"an expression in a script: {script}"
    yield from unpinned(script)


def unpinned(text: str) -> list[str]:
    """Find commands that install what has no hash."""
    lines = text.replace("\\\n", " ").splitlines()
    calls = [" ".join(match[0].split()) for line in lines if (match := INSTALLS.search(line))]
    return [f"not pinned: {call}" for call in calls if not any(words in call for words in PINNED)]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_have_pinned_actions_few_rights_and_no_dangerous_pattern(name: str) -> None:
    assert list(findings(name, workflow(name))) == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_pinned_actions_say_their_version(name: str) -> None:
    lines = [line for line in WORKFLOWS[name].read_text(encoding="utf-8").splitlines() if "uses: " in line]
    assert [line for line in lines if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


@pytest.mark.parametrize("name", WORKFLOWS)
def test_secrets_are_those_of_the_run(name: str) -> None:
    assert set(SECRET.findall(WORKFLOWS[name].read_text(encoding="utf-8"))) <= {"GITHUB_TOKEN"}


GOOD = """
on: {push: {branches: [main]}}
permissions: {contents: read}
jobs:
  test:
    steps:
    - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683
      with: {persist-credentials: false}
    - run: make test
"""


@pytest.mark.parametrize(
    ("old", "new", "finding"),
    [
        ("push: {branches: [main]}", "pull_request_target: {}", "event pull_request_target"),
        ("{push: {branches: [main]}}", "workflow_run", "event workflow_run"),
        ("permissions: {contents: read}", "permissions: write-all", "permissions of the workflow: write-all"),
        ("permissions: {contents: read}", "", "permissions of the workflow: None"),
        ("steps:", "permissions: {packages: write}\n    steps:", "permissions of test: ['packages']"),
        ("11bd71901bbe5b1630ceea73d27597364c9af683", "v4", "not pinned: actions/checkout@v4"),
        ("steps:", "uses: a/b/c.yaml@main\n    steps:", "not pinned: a/b/c.yaml@main"),
        ("persist-credentials: false", "fetch-depth: 0", "a checkout keeps its token"),
        (
            "{persist-credentials: false}",
            "{persist-credentials: false, ref: '${{ github.event.pull_request.head.sha }}'}",
            "a checkout of what others wrote",
        ),
        ("make test", "echo ${{ github.head_ref }}", "an expression in a script: echo ${{ github.head_ref }}"),
        ("make test", "pip install caphv", "not pinned: pip install caphv"),
        ("make test", "curl https://example.com | sh", "not pinned: curl https://example.com | sh"),
    ],
)
def test_each_dangerous_pattern_is_found(old: str, new: str, finding: str) -> None:
    assert list(findings("ci.yaml", workflow("", GOOD))) == []
    assert old in GOOD
    assert list(findings("ci.yaml", workflow("", GOOD.replace(old, new)))) == [finding]


def test_builds_install_only_what_has_a_hash() -> None:
    files = [CHECKOUT / name for name in ("Makefile", "Dockerfile", ".ci/run")]
    assert [finding for path in files for finding in unpinned(path.read_text(encoding="utf-8"))] == []
    makefile = files[0].read_text(encoding="utf-8")
    assert re.search(r"^PIP_INSTALL := .*--require-hashes$", makefile, re.MULTILINE)
    # Each Python package that users and developers get has hashes, too.
    for lock in ("requirements.lock", "tools/website/requirements.lock", "tools/release/uv.lock"):
        entries = re.split(r"\n(?=\S)", (CHECKOUT / lock).read_text(encoding="utf-8"))
        packages = [entry for entry in entries if re.match(r"[A-Za-z0-9][\w.-]*==", entry)]
        assert packages
        assert [entry.split()[0] for entry in packages if "--hash=sha256:" not in entry] == []


def test_the_licence_is_apache_2_and_the_same_everywhere() -> None:
    text = (CHECKOUT / "LICENSE").read_text(encoding="utf-8")
    assert text.lstrip().startswith("Apache License")
    assert "Version 2.0, January 2004" in text
    assert re.search(
        r'^license = "Apache-2\.0"$', (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
    )


def test_the_security_policy_has_a_way_an_expectation_and_a_time() -> None:
    text = (CHECKOUT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Report a vulnerability* of the repository from which you have caphv" in text
    assert {"vulnerability", "disclosure"} <= set(re.findall(r"\w+", text.lower()))
    assert re.search(r"at most \d+ days", text)
    # Reports would reach the maintainers of another program.
    assert "cluster-api-provider-harvester" not in text


def test_releases_have_a_signature_and_a_provenance_as_files() -> None:
    job = workflow("release.yaml")["jobs"]["publish"]
    (create,) = [step["run"] for step in job["steps"] if "gh release create" in step.get("run", "")]
    assert create.split()[-3:] == ["SHA256SUMS", "SHA256SUMS.sigstore.json", "caphv.intoto.jsonl"]


def test_no_program_is_in_the_repository() -> None:
    assert [str(path.relative_to(CHECKOUT)) for path in sources() if path.suffix in BINARIES] == []
    assert [str(path.relative_to(CHECKOUT)) for path in sources() if starts_as_program(path)] == []


def sources() -> Iterator[Path]:
    """Files of the checkout, without what builds and tests leave there."""
    for top in CHECKOUT.iterdir():
        if top.is_dir() and (top.name.startswith(".") or top.name in ("out", "dist")):
            continue
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.is_file() and not {"__pycache__", "node_modules"} & set(path.parts):
                yield path


def starts_as_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in (b"\x7fELF", b"MZ\x90\x00", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
