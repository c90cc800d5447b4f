"""`python -m mlrh` is the program `mlrh`."""

from mlrh.cli import main

if __name__ == "__main__":
    main()
