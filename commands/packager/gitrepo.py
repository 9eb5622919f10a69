"""`caphv packager gitrepo`: the GitRepo with which Fleet applies manifests."""

from __future__ import annotations

from typing import IO

import click

from commands.main import CONTEXT_SETTINGS


@click.command(
    context_settings=CONTEXT_SETTINGS,
    epilog="""\b
Examples:
  caphv packager gitrepo --repo https://git.example.com/fleet.git --client-secret fleet-git | \
kubectl apply -f -
""",
)
@click.option(
    "--repo",
    envvar="CAPHV_GIT_REPO",
    required=True,
    metavar="URL",
    help="URL of the Git repository with the manifests.",
)
@click.option(
    "--branch",
    envvar="CAPHV_GIT_BRANCH",
    default="main",
    show_default=True,
    metavar="BRANCH",
    help="Branch of the repository.",
)
@click.option(
    "--path",
    "inner",
    envvar="CAPHV_GIT_PATH",
    default="",
    metavar="PATH",
    help="Directory in the repository.  [default: its root]",
)
@click.option(
    "--client-secret",
    default="",
    metavar="NAME",
    help="Secret in namespace fleet-local with Fleet's credentials for the repository.",
)
@click.option(
    "--ca-file",
    type=click.File(),
    metavar="FILE",
    help="PEM file with the CA certificates that Fleet trusts.",
)
def gitrepo(
    repo: str, branch: str, inner: str, client_secret: str, ca_file: IO[str] | None
) -> None:
    """Print the GitRepo with which Fleet applies all manifests of a repository to the management
    cluster.

    Apply it once. Fleet deletes a cluster only after its removal was confirmed; namespaces and
    ClusterClasses stay.
    """
    from packager.definitions.files import management_git_repo
    from packager.rendering import yaml
    from packager.rendering.gitrepo import GitRepoOptions, check_is_remote

    try:
        check_is_remote(repo)
        options = GitRepoOptions(
            repo,
            branch,
            folder=inner,
            client_secret_name=client_secret,
            ca_bundle=ca_file.read() if ca_file else "",
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(yaml.dump(management_git_repo(options)), nl=False)
