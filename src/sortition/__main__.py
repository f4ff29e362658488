"""``python -m sortition``: the same as ``sortition``."""

from sortition.cli import main

if __name__ == "__main__":
    main()
