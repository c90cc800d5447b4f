"""The program `mlrh`, also as `python -m mlrh`."""

import sys


def main() -> None:
    """Run the command line; an interrupt ends it quietly, also while it is still being loaded."""
    try:
        from mlrh.cli import run

        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
