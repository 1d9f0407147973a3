"""Dynamic programs as hypergraphs: how they are written, and the passes over them."""
