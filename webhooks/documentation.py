"""Writes the list of rules in `docs/validation.md` from the rules themselves, so that none is forgotten.

`python -m webhooks.documentation` writes it; with `--check` it writes nothing and fails when it is stale. What stands
before the mark is written by hand.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from caphv import data
from caphv.validation import schema as compiled
from caphv.validation.finding import Finding
from caphv.validation.yaml.yaml_rules import TRAPS
from webhooks.admission import KINDS, RULES
from webhooks.crossobject import CHECKS
from webhooks.rules.model import CLUSTER, MACHINE, Rule, Subject

Obj = dict[str, Any]

_MUCH = 1024 * 1024
# What the schemas refuse, each form of it once or more: kind, and fields of a right object to change or remove (null).
_FORM = (
    (CLUSTER, "targetNamespace: null"),
    (CLUSTER, 'targetNamespace: ""'),
    (CLUSTER, "targetNamespace: Production"),
    (CLUSTER, "identitySecret: {name: harvester-identity}"),
    (CLUSTER, "loadBalancerConfig: {ipamType: static}"),
    (
        CLUSTER,
        "loadBalancerConfig: {ipamType: dhcp, listeners: [{name: web, port: 80, backendPort: 70000, protocol: TCP}]}",
    ),
    (CLUSTER, "vmNetworkConfig: {subnetMask: 255.255.255.0, ipPoolRef: vm-pool}"),
    (CLUSTER, "controlPlaneEndpoint: {}"),
    (MACHINE, "cpu: 0"),
    (MACHINE, 'cpu: "4"'),
    (MACHINE, "memory: 8GB"),
    (MACHINE, "{sshUser: null, sshKeyPair: null}"),
    (MACHINE, "{networks: [], volumes: []}"),
    (MACHINE, "volumes: [{volumeType: pvc, volumeSize: 40Gi}]"),
    (MACHINE, "volumes: [{volumeType: image, imageName: default/opensuse, volumeSize: [40Gi]}]"),
    (MACHINE, "networkConfig: {gateway: 172.17.1.1}"),
)
MARK = "<!-- From here on: python -m webhooks.documentation -->\n"


def rendered(page: str) -> str:
    """Return the page with the list of rules as it has to be. Raises ValueError when the page lacks the mark."""
    by_hand, mark, _ = page.partition(MARK)
    if not mark:
        msg = f"docs/validation.md has no line {MARK.strip()!r}: write it where the rules are to stand"
        raise ValueError(msg)
    return by_hand + mark + "\n".join(["", *_form(), *_rules(), *_checks(), *_traps()])


def _form() -> Iterator[str]:
    yield from (
        "## The form of fields",
        "",
        "Told by the schemas, at every door. Rules are called after keywords of JSON Schema, as `schema-required`; all",
        "limits are in the [reference](reference/README.md). Examples, with null for a field that is left out:",
        "",
    )
    for kind, example in _FORM:
        schema = compiled.load(KINDS[kind].schema)
        obj = schema.example()
        obj["spec"] |= yaml.safe_load(example)
        obj["spec"] = {name: value for name, value in obj["spec"].items() if value is not None}
        yield "```text"
        yield example
        yield from (f"{finding} [{finding.rule}]" for finding in schema.findings(obj))
        yield from ("```", "")


def _rules() -> Iterator[str]:
    yield from ("## One object", "", "Told by the webhook and by `caphv validate` alike.", "")
    for rule in RULES.values():
        fields = ", ".join(f"`{field}`" for field in rule.fields)
        yield from _section(rule.name, rule.severity, rule.kinds, rule.description, _example(rule), fields=fields)


def _example(rule: Rule) -> str:
    """What is wrong in YAML, and what is said of it."""
    before = f"{rule.before}\n# changed to\n" if rule.before else ""
    said = "\n".join(map(str, findings_of_example(rule)))
    return f"```text\n{before}{rule.example}\n```\n\n```text\n{said}\n```"


def findings_of_example(rule: Rule) -> list[Finding]:
    """Return what a rule finds in its own example, of the first of its kinds."""
    old = _object(rule, rule.before) if rule.before else None
    return list(rule.findings(Subject.of(rule.kinds[0], _object(rule, rule.example), old=old)))


def _object(rule: Rule, example: str) -> Obj:
    # Where much is needed to break a rule, an ellipsis stands for it.
    spec: Obj = yaml.safe_load(example.replace("…", "x" * _MUCH))
    beside = {name: spec.pop(name) for name in ("metadata", "status") if name in spec}
    template = {"metadata": spec.pop("template", {}), "spec": spec}
    return beside | {"spec": {"template": template} if rule.kinds[0].endswith("Template") else spec}


def _checks() -> Iterator[str]:
    yield from ("## Several objects, and objects of Cluster API", "", "Told by `caphv validate` only.", "")
    for check in CHECKS:
        severity = "warning" if check.advice else "error"
        yield from _section(check.name, severity, check.kinds, check.description, f"Example: {check.example}")


def _traps() -> Iterator[str]:
    yield from ("## YAML", "", "Told by `caphv validate` only, of any file.", "")
    for trap in TRAPS:
        severity = "warning" if trap.advice else "error"
        yield from _section(trap.name, severity, (), trap.description, f"```text\n{trap.example}\n```")


def _section(
    name: str, severity: str, kinds: tuple[str, ...], description: str, example: str, *, fields: str = ""
) -> Iterator[str]:
    where = " · ".join(filter(None, (severity.capitalize(), ", ".join(kinds), fields)))
    yield from (f"### {name}", "", f"*{where}*", "", description, "", example, "")


def main(arguments: list[str] | None = None) -> int:
    """Write `docs/validation.md`, or with `--check` compare only; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m webhooks.documentation", description="Generate docs/validation.md."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is stale")
    check = parser.parse_args(arguments).check
    path: Path = data.folder("docs") / "validation.md"
    page = path.read_text(encoding="utf-8")
    wanted = rendered(page)
    if check and page != wanted:
        sys.stderr.write("docs/validation.md is stale: run python -m webhooks.documentation\n")
        return 1
    if page != wanted:
        path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
