"""Latent trees: classification of sentences by trees that no annotator gave."""
