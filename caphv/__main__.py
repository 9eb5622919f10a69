"""Entry points of `caphv`, `kubectl caphv`, `caphv-generate` and `python -m caphv`."""


def main() -> None:
    """Run the command line."""
    from commands.main import main as run

    run()


def kubectl_plugin() -> None:
    """Run the command line as `kubectl caphv`; kubectl runs `kubectl-caphv` on the PATH."""
    from commands.main import main as run

    run("kubectl caphv")


def generate() -> None:
    """Run `caphv generate` under the name of the Go provider's generator."""
    from commands.generate import generate as run

    run()


if __name__ == "__main__":
    main()
