"""Kernels: rows in, rows out. One folder per operator, one file per device; `reference.py` is the specification."""
