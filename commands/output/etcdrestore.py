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
    out.print(Text("# These steps run in this order and end at the first failure."))
    out.print(Text("# Correct its cause, and run all again: complete steps do nothing."))
    out.print(Text("(set -e"))
    for number, step in enumerate(steps, 1):
        title = f"{number}/{len(steps)} {step.title}: Machine {step.machine}"
        if not step.script:
            title += " (press Enter afterwards)"
        # A shell at a terminal need not know comments.
        line = Text.assemble("echo ", (shlex.quote(title), "bold"))
        out.print(line, soft_wrap=True)
        if not step.script:
            out.print(Text("read -r _ </dev/tty"))
            continue
        out.print(Text(f"ssh -a -x {shlex.quote(step.login)} sudo sh -s <<'CAPHV'"), soft_wrap=True)
        for command in step.script.splitlines():
            out.print(Text(command), soft_wrap=True)
        out.print(Text("CAPHV"))
    out.print(Text(")"))
    end = remedies.FINISH_RESTORE(ref=cluster)
    out.print(Text(f"# When its Nodes are ready again: {end}"), soft_wrap=True)
