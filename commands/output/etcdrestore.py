"""Show the commands that restore etcd."""

from __future__ import annotations

from collections.abc import Sequence

from caphv.api import remedies
from caphv.api.object import Key
from commands.output.overview import console
from commands.output.text import Text
from operations.change.etcdsteps import Step


def show(cluster: Key, steps: Sequence[Step]) -> None:
    """Write the commands in order, and how to end the restore.

    :param cluster: the cluster that is restored
    :param steps: the commands of each machine
    """
    out = console()
    out.print(Text("Run these steps in this order, each after the previous one has succeeded."))
    out.print(Text("Stop at the first failure: the steps after it would lose what still works."))
    for number, step in enumerate(steps, 1):
        place = f"ssh {step.login}" if step.login else "it has no address"
        title = (f"{number}. {step.title}", "bold")
        out.print(Text.assemble(title, f": Machine {step.machine} ({place})"), soft_wrap=True)
        for command in step.commands:
            out.print(Text(f"     {command}"), soft_wrap=True)
    end = remedies.FINISH_RESTORE(ref=cluster)
    out.print(Text(f"{len(steps) + 1}. When its Nodes are ready again: {end}"), soft_wrap=True)
