"""The command `polymax` as `python -m polymax`."""

from polymax.cli import main

main()
