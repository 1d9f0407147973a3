"""Distributions over whole structures."""
