"""What the command `polymax` runs: training, the demo, the measuring of speed. Not imported by `import polymax`."""

from polymax.recipes.training.run import load as load
