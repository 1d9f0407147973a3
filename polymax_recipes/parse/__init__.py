"""Dependency parsing: biaffine scores of arcs, and trees over them whose loss is any of the structured ones."""
