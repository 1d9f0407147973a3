"""Dispatch, compilation, threads and launches: the only package that uses internals of torch, Numba and Triton."""
