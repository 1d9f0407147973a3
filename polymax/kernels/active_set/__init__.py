"""The compiled parts of SparseMAP's loops: how each kind of problem is searched, and how structures are weighed.

    max over p in the simplex of Y of  sum_y p_y <scores, y> - 1/2 ||mu||^2,        mu = sum_y p_y y (first tensor)

problem.py says what a problem and a list of structures are. A kind of search has a file for a device: cpu_<kind>.py
with `problem` and `best`, cuda_<kind>.py with `plan`, `slots`, `listed` and `best`. numba_loop.py and cuda_loop.py are
the loops, over arrays. solvers/loops calls them, and has the reference: the same loop in torch for any set.
"""
