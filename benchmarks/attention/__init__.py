"""Attention with exact zeros, beside softmax attention: the workloads, the peers, the oracles."""
