"""Write the lists of rules in docs/: `python -m tools.generate.ruletables`.

With `--check`, only compare. The long lists of docs/validation.md are only on the site: `--site
out/pages` writes that page with them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from caphv import data
from caphv.api import generated
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
# Examples that the schemas refuse. Each has a kind, and the fields of a valid object that are
# changed or, with the value null, removed.
_FORM = (
    (CLUSTER, "targetNamespace: null"),
    (CLUSTER, 'targetNamespace: ""'),
    (CLUSTER, "targetNamespace: Production"),
    (CLUSTER, "identitySecret: {name: harvester-identity}"),
    (CLUSTER, "loadBalancerConfig: {ipamType: static}"),
    (
        CLUSTER,
        (
            "loadBalancerConfig: {ipamType: dhcp, listeners: [{name: web, port: 80, backendPort: "
            "70000, protocol: TCP}]}"
        ),
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


def _schema_lines() -> Iterator[str]:
    for kind, example in _FORM:
        schema = compiled.load(KINDS[kind].schema)
        obj = schema.example()
        obj["spec"] |= yaml.safe_load(example)
        obj["spec"] = {name: value for name, value in obj["spec"].items() if value is not None}

        yield "```text"
        yield example
        yield from (f"{finding} [{finding.rule}]" for finding in schema.findings(obj))
        yield from ("```", "")


def _one_object_lines() -> Iterator[str]:
    for rule in RULES.values():
        yield from documentation.section(rule, _example(rule))


def _example(rule: Rule) -> str:
    """Return the example of a rule with the findings that the rule reports for it."""
    before = f"{rule.before}\n# changed to\n" if rule.before else ""
    reported = "\n".join(map(str, findings_of_example(rule)))
    return f"```text\n{before}{rule.example}\n```\n\n```text\n{reported}\n```"


def findings_of_example(rule: Rule) -> list[Finding]:
    """Return the findings of a rule in its own example, as an object of the rule's first kind."""
    old = _object(rule, rule.before) if rule.before else None
    return list(rule.findings(Subject.of(rule.kinds[0], _object(rule, rule.example), old=old)))


def _object(rule: Rule, example: str) -> Obj:
    # An ellipsis replaces a value that is too long for the page.
    spec: Obj = yaml.safe_load(example.replace("…", "x" * _MUCH))

    # An example shows the fields of the spec, unless it names the level above.
    outside = {name: spec.pop(name) for name in ("metadata", "status", "spec") if name in spec}
    if rule.kinds[0].endswith("Template"):
        template = {"metadata": spec.pop("template", {}), "spec": spec}
        return {"spec": {"template": template}} | outside

    return {"spec": spec} | outside


def _several_objects_lines() -> Iterator[str]:
    for rule in CROSS_OBJECT_RULES:
        yield from documentation.section(rule, f"Example: {rule.example}")


def _yaml_lines() -> Iterator[str]:
    for rule in yaml_rules.RULES:
        yield from documentation.section(rule, f"```text\n{rule.example}\n```")


PARTS: dict[str, documentation.Part] = {
    "definitions": lambda: documentation.table(definitions.rules()),
    "addons": lambda: documentation.table(addons.rules()),
}
SITE_PARTS: dict[str, documentation.Part] = {
    "schemas": _schema_lines,
    "one-object": _one_object_lines,
    "several-objects": _several_objects_lines,
    "yaml": _yaml_lines,
}
_SITE_PAGE = "validation.md"


def site_page() -> str:
    """Return the page about validation with all lists of rules.

    Raises `ValueError` if the page lacks one of the lists.
    """
    page = (data.folder("docs") / _SITE_PAGE).read_text(encoding="utf-8")
    text, names = documentation.render(page, SITE_PARTS, mark=documentation.ON_SITE)
    if sorted(names) != sorted(SITE_PARTS):
        msg = (
            f"docs/{_SITE_PAGE} must have a mark for each of {', '.join(SITE_PARTS)}, not for "
            f"{', '.join(names)}"
        )
        raise ValueError(msg)
    return text


def main(arguments: list[str] | None = None) -> int:
    """Write the lists, or with `--check` only compare; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.generate.ruletables",
        description="Generate the lists of rules in docs/.",
    )
    generated.add_check(parser)
    parser.add_argument(
        "--site",
        type=Path,
        metavar="DIR",
        help="write only the page of the site, below this folder",
    )
    options = parser.parse_args(arguments)

    if options.site:
        page: Path = options.site / "docs" / _SITE_PAGE
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(site_page(), encoding="utf-8")
        return 0

    stale = documentation.stale(data.folder("docs"), PARTS)
    return generated.write("tools.generate.ruletables", stale, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
