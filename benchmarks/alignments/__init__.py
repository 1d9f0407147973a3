"""Alignments of speech and of sequences, beside what people use for them."""
