"""Entry point of the commands `caphv` and `caphv-generate`, and of `python -m caphv`."""


def main() -> None:
    """Run the command line."""
    from commands.main import main as run

    run()


def generate() -> None:
    """Run `caphv generate` under the name of the Go provider's generator."""
    from commands.generate import generate as run

    run()


if __name__ == "__main__":
    main()
