"""The tree of `caphv sandbox demo`, from the first frame on, on a terminal of 80 columns."""

from dataclasses import replace
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


@pytest.mark.parametrize(
    ("state", "colour"),
    [
        ("Running", "32"),
        ("Provisioning", "33"),
        ("Failed", "31"),
        ("deleted on Harvester", "31"),
    ],
)
def test_the_state_of_a_machine_has_a_colour(state: str, colour: str) -> None:
    row = MachineRow("demo-1", True, "v1.36.2+rke2r1", "127.10.8.1", "zone-1", "harvester-1", state)
    view = SimpleNamespace(
        steps=(), harvester_cluster=lambda: None, endpoint=lambda: "", machine_rows=lambda: [row, replace(row)]
    )
    console = Console(width=120, force_terminal=True, color_system="standard")
    with console.capture() as capture:
        console.print(tree(SimpleNamespace(spec=ClusterSpec(), view=view)))  # type: ignore[arg-type]
    assert capture.get().count(f"\x1b[{colour}m{state}") == 2


def test_a_row_that_is_too_wide_stays_one_line() -> None:
    row = MachineRow("demo-" + "x" * 90, True, "v1.36.2", "127.10.8.1", "zone-1", "harvester-1", "Running")
    lines = rendered(row)
    assert len([line for line in lines if "demo-" in line or "xxx" in line]) == 1
    assert len([line for line in lines if "…" in line]) == 1


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
