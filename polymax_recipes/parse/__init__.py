"""Dependency parsing: biaffine scores of arcs, and trees over them, trained by any of the structured losses."""
