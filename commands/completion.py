"""`caphv completion`: shell completion scripts."""

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete


@click.command(
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
    """Print the completion script for a shell."""
    complete = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell]
    click.echo(complete(ctx.find_root().command, {}, "caphv", "_CAPHV_COMPLETE").source())
