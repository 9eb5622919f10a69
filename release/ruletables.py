"""The lists of rules in the docs. `python -m release.ruletables` writes them; with `--check` it only compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import yaml

from caphv import data
from caphv.api.object import Obj
from caphv.validation import documentation
from caphv.validation import schema as compiled
from caphv.validation.finding import Finding
from caphv.validation.rule import Rule
from caphv.validation.yaml import yaml_rules
from packager.addons import validation as addons
from packager.definitions import validation as definitions
from webhooks.admission import KINDS, RULES
from webhooks.crossobject import CROSS_OBJECT_RULES
from webhooks.rules.model import CLUSTER, MACHINE, Subject

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


def _schema() -> Iterator[str]:
    for kind, example in _FORM:
        schema = compiled.load(KINDS[kind].schema)
        obj = schema.example()
        obj["spec"] |= yaml.safe_load(example)
        obj["spec"] = {name: value for name, value in obj["spec"].items() if value is not None}
        yield "```text"
        yield example
        yield from (f"{finding} [{finding.rule}]" for finding in schema.findings(obj))
        yield from ("```", "")


def _one_object() -> Iterator[str]:
    for rule in RULES.values():
        yield from documentation.section(rule, _example(rule))


def _example(rule: Rule) -> str:
    """Return what breaks a rule, and what the rule reports."""
    before = f"{rule.before}\n# changed to\n" if rule.before else ""
    reported = "\n".join(map(str, findings_of_example(rule)))
    return f"```text\n{before}{rule.example}\n```\n\n```text\n{reported}\n```"


def findings_of_example(rule: Rule) -> list[Finding]:
    """Return what a rule finds in its own example, as an object of the first of its kinds."""
    old = _object(rule, rule.before) if rule.before else None
    return list(rule.findings(Subject.of(rule.kinds[0], _object(rule, rule.example), old=old)))


def _object(rule: Rule, example: str) -> Obj:
    # Where it takes much to break a rule, an ellipsis stands for it.
    spec: Obj = yaml.safe_load(example.replace("…", "x" * _MUCH))
    outside = {name: spec.pop(name) for name in ("metadata", "status", "spec") if name in spec}
    template = {"metadata": spec.pop("template", {}), "spec": spec}
    return {"spec": {"template": template} if rule.kinds[0].endswith("Template") else spec} | outside


def _several_objects() -> Iterator[str]:
    for rule in CROSS_OBJECT_RULES:
        yield from documentation.section(rule, f"Example: {rule.example}")


def _yaml() -> Iterator[str]:
    for rule in yaml_rules.RULES:
        yield from documentation.section(rule, f"```text\n{rule.example}\n```")


PARTS: dict[str, documentation.Part] = {
    "schemas": _schema,
    "one-object": _one_object,
    "several-objects": _several_objects,
    "yaml": _yaml,
    "definitions": lambda: documentation.table(definitions.rules()),
    "addons": lambda: documentation.table(addons.rules()),
}


def main(arguments: list[str] | None = None) -> int:
    """Write the lists, or with `--check` only compare; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m release.ruletables", description="Generate the lists of rules in docs/."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a list is stale")
    check = parser.parse_args(arguments).check
    stale = documentation.stale(data.folder("docs"), PARTS)
    for path, text in stale.items():
        if check:
            sys.stderr.write(f"{path.name} is stale: run python -m release.ruletables\n")
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
