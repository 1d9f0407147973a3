"""Acyclic hypergraphs as arrays: the graph, its builder, and its levels in the order of a dynamic program."""
