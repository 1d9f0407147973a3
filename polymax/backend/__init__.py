"""Dispatch, compilation, threads and launches: the only room that knows insides of torch, Numba and Triton."""
