"""What the command `polymax` runs: the demo and the measuring of speed. Not imported by `import polymax`."""
