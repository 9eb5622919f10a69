"""`python -m caphv` is the command `caphv`, where the package is importable and not installed."""

from caphv.cli import main

if __name__ == "__main__":
    main()
