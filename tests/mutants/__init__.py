"""Realistic faults in the code, and whether the tests of their files find them.

    python -m tests.mutants --seed 1 --count 50

A mutant is one small change of one file. It runs in a copy of the tree, against the tests that are about its file.
"""
