"""Sentences as words and characters, and the network that reads them: what tagging and parsing share."""
