"""`caphv completion`: shell completion scripts."""

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete


@click.command(
    short_help="Print the completion script for a shell.",
    epilog="""\b
Examples:
  eval "$(caphv completion bash)"                                   in ~/.bashrc
  eval "$(caphv completion zsh)"                                    in ~/.zshrc, after compinit
  caphv completion fish > ~/.config/fish/completions/caphv.fish     once
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    It completes commands, options, clusters and their namespaces, and objects of Harvester: with
    its kubeconfig on the command line, else with the identities of clusters. A server that does not
    answer within two seconds completes nothing.
    """
    complete = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell]
    click.echo(complete(ctx.find_root().command, {}, "caphv", "_CAPHV_COMPLETE").source())
