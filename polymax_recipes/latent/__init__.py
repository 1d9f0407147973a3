"""Latent trees: sentences are classified by way of trees that nobody gave."""
