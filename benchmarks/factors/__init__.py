"""Factor graphs and chains that count: SparseMAP where constraints hold."""
