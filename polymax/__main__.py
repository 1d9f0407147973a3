"""The command `polymax` as `python -m polymax`."""

from importlib import import_module

# by name, since the library does not import polymax_recipes
import_module("polymax_recipes.cli").main()
