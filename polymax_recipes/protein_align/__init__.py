"""Pairs of sequences: scores of substitutions and gaps that are learned from known alignments."""
