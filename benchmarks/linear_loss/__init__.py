"""Losses of a linear layer over a large vocabulary: the workloads, the oracle, the peers."""
