"""The command `polymax` as `python -m polymax`."""

from importlib import import_module

# the command is a package of its own, which this one does not import
import_module("polymax_recipes.cli").main()
