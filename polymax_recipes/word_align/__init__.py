"""Word alignment: which words of a sentence pair are translations of each other, learned from pairs alone."""
