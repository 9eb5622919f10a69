"""The tree of `caphv sandbox demo`, from the first frame on, on a terminal of 80 columns."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from commands.sandbox.demo import tree
from sandbox.cluster import ClusterSpec
from sandbox.scenario.view import MachineRow, Step

pytestmark = pytest.mark.unit


def rendered(*rows: MachineRow, endpoint: str = "", steps: tuple[Step, ...] = ()) -> list[str]:
    view = SimpleNamespace(
        steps=steps,
        harvester_cluster=lambda: {"status": {"ready": bool(endpoint)}},
        endpoint=lambda: endpoint,
        machine_rows=lambda: list(rows),
    )
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(tree(SimpleNamespace(spec=ClusterSpec(), view=view)))  # type: ignore[arg-type]
    return capture.get().splitlines()


def test_the_first_frame_has_no_invented_endpoint() -> None:
    lines = rendered(steps=(Step("Push a cluster definition"),))
    assert any("no control plane endpoint yet" in line for line in lines)
    assert not any("None" in line for line in lines)


def test_machines_are_grouped_by_role_and_have_a_version_within_80_columns() -> None:
    row = MachineRow("demo-n6zq2-7hx4k", True, "v1.36.2+rke2r1", "127.10.8.1", "zone-1", "harvester-1", "Running")
    worker = MachineRow("demo-workers-hgx5z-kqwlp-8f2tn", False, "v1.36.3+rke2r1", "", "", "", "Provisioning")
    lines = rendered(row, worker, endpoint="https://127.10.10.1:6443")
    assert [next(n for n, line in enumerate(lines) if word in line) for word in ("Control plane", "v1.36.2")] == [2, 3]
    assert [next(n for n, line in enumerate(lines) if word in line) for word in ("Workers", "v1.36.3")] == [4, 5]
    assert "Running" in lines[3]
    assert max(map(len, lines)) <= 80
