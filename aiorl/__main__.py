"""`python -m aiorl`."""

from aiorl.cli import main

if __name__ == "__main__":
    main()
