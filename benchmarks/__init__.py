"""How fast polymax is beside its peers: `python -m benchmarks run SUITE`."""
