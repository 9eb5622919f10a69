"""docs/reference/contract.md has every rule of Cluster API's contract, each with tests that exist."""

import re

import pytest

from tests.support.paths import CHECKOUT
from tests.support.syntax import functions

pytestmark = pytest.mark.unit

PAGE = (CHECKOUT / "docs" / "reference" / "contract.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))
# The rules of cluster-api v1.13.6, docs/book/src/developer/providers/contracts, whether they are mandatory (M),
# mandatory for ClusterClasses or clusterctl (C), or optional (O).
RULES = {
    "infra-cluster.md": {
        "All resources: scope": "M",
        "All resources: TypeMeta and ObjectMeta": "M",
        "All resources: APIVersion": "M",
        "InfraCluster: resource definition": "M",
        "InfraCluster: control plane endpoint": "O",
        "InfraCluster: failure domains": "O",
        "InfraCluster: initialization completed": "M",
        "InfraCluster: conditions": "O",
        "InfraCluster: terminal failures": "O",
        "InfraClusterTemplate: resource definition": "C",
        "Externally managed infrastructure": "O",
        "Multi tenancy": "C",
        "Clusterctl support": "C",
        "InfraCluster: pausing": "O",
    },
    "infra-machine.md": {
        "All resources: scope": "M",
        "All resources: TypeMeta and ObjectMeta": "M",
        "All resources: APIVersion": "M",
        "InfraMachine: resource definition": "M",
        "InfraMachine: provider ID": "M",
        "InfraMachine: failure domain": "O",
        "InfraMachine: addresses": "O",
        "InfraMachine: initialization completed": "M",
        "InfraMachine: conditions": "O",
        "InfraMachine: terminal failures": "O",
        "InfraMachine: support for in-place changes": "O",
        "InfraMachineTemplate: resource definition": "M",
        "InfraMachineTemplate: support for SSA dry run": "C",
        "Multi tenancy": "C",
        "Clusterctl support": "C",
        "InfraMachine: pausing": "O",
        "InfraMachineTemplate: support cluster autoscaling from zero": "O",
    },
    "clusterctl.md": {
        "Provider repository: files and their names": "M",
        "Metadata YAML: validation rules": "M",
        "Components YAML: target namespace": "M",
        "Components YAML: controllers and watching namespace": "M",
        "Components YAML: variables": "O",
        "Components YAML: labels": "O",
        "Workload cluster templates": "O",
        "ClusterClass definitions": "O",
        "OwnerReferences chain": "M",
        "Move": "M",
    },
}


def rows(section: str) -> dict[str, list[str]]:
    """The other cells of the rows in the table after the name of a file, by the first cell."""
    table = section.partition("|---|")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[1:]]
    return {row[0]: row[1:] for row in cells}


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_named_test_exists(path: str, name: str) -> None:
    assert name in functions(path)


@pytest.mark.parametrize("file", RULES)
def test_every_rule_has_its_row_and_no_other_is_called_one(file: str) -> None:
    found = rows(PAGE.partition(f"\n`{file}`:\n")[2])
    assert {rule: cells[0] for rule, cells in found.items() if not rule.startswith("Workflow: ")} == {
        rule.strip(): kind for rule, kind in RULES[file].items()
    }


def test_every_row_says_what_caphv_does_and_names_a_test() -> None:
    tables = [found for part in PAGE.split("\n## ")[1:] if (found := rows(part))]
    assert [len(table) > 5 for table in tables] == [True] * 5
    incomplete = [rule for table in tables for rule, (_, what, tests) in table.items() if not what or "::" not in tests]
    assert incomplete == []
