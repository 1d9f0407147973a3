"""The compiled parts of SparseMAP's loops: the search of each kind of problem, and the weights of structures.

    max over p in the simplex of Y of  sum_y p_y <scores, y> - 1/2 ||mu||^2,        mu = sum_y p_y y (first tensor)

problem.py defines problems and lists of structures. Each kind of search has a file for each device: cpu_<kind>.py with
`problem` and `best`, cuda_<kind>.py with `plan`, `slots`, `listed` and `best`. numba_loop.py and cuda_loop.py are the
loops, over arrays. solvers/loops calls them, and holds the reference: the same loop in torch for any set.
"""
