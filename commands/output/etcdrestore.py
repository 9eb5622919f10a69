"""Show the scripts that restore etcd."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from caphv.api import remedies
from caphv.api.object import Key
from commands.output.overview import console
from commands.output.text import Text
from operations.change.etcdsteps import Step


def show(cluster: Key, steps: Sequence[Step]) -> None:
    """Write the scripts in order, for a shell that reaches the machines, and the end.

    :param cluster: the cluster that is restored
    :param steps: the script of each machine
    """
    out = console()
    out.print(Text("Run these steps in this order, each after the previous one has succeeded."))
    out.print(Text("Stop at the first failure, correct its cause, and repeat that step."))
    for number, step in enumerate(steps, 1):
        title = (f"# {number}. {step.title}", "bold")
        out.print(Text.assemble(title, f": Machine {step.machine}"), soft_wrap=True)
        if not step.script:
            continue
        out.print(Text(f"ssh {shlex.quote(step.login)} sudo sh -s <<'CAPHV'"), soft_wrap=True)
        for line in step.script.splitlines():
            out.print(Text(line), soft_wrap=True)
        out.print(Text("CAPHV"))
    end = remedies.FINISH_RESTORE(ref=cluster)
    out.print(Text(f"# {len(steps) + 1}. When its Nodes are ready again: {end}"), soft_wrap=True)
