"""Structured inference: the workloads, the oracles, the peers."""
