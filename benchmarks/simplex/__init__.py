"""Mappings to the simplex: the workloads, the oracles, the peers."""
