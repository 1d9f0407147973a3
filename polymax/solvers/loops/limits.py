"""Sizes up to which the compiled loops of a GPU take a problem."""

# a search of so few iterations may be recorded by a CUDA graph, and finds all of its structures by itself
FEW = 255
# the largest side of the first tensor that one program of a GPU holds
LARGEST = 4096
