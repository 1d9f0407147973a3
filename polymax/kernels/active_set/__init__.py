"""SparseMAP's solvers as loops: a reference for any structure, and loops for the CPU and CUDA."""
